"""Peak rates of a machine: one native program measures them for whatever runtime, and a cache keeps them."""
