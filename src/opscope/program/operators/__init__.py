"""What an operator is: category and kind."""
