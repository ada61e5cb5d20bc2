"""What the program says about the operators of a trace."""
