"""Runners without Python in the process, built here and started on any host: what all runtimes share of them."""
