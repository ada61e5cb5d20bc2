"""Support for ExecuTorch: its files, its runners, its exporter."""

FORWARD = "forward"
"""Name of the method of a program that has only one."""
