"""Which kernels ran, and how that is known."""
