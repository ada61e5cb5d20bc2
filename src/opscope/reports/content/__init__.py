"""What reports show, in words and figures."""
