"""What an operator is: category, kind, arithmetic."""
