"""LiteRT without Python in the process: a runner that is built here and drives the C API, on any host."""
