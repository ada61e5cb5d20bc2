"""ExecuTorch: its files, its runners, its exporter."""

FORWARD = "forward"
"""The method of a program that has only one."""
