"""Two sides: is there a difference, how large, where does it come from."""
