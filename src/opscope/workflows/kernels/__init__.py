"""Which kernels ran, from whatever tells of them."""
