"""The work and traffic of operators: shapes, multiply-accumulates, bytes."""
