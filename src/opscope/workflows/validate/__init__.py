"""Is a bundle complete and true."""
