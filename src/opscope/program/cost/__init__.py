"""What an operator must compute and move: shapes, multiply-accumulates, bytes."""
