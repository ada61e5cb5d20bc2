"""Measuring a machine's ceilings with the kernels of the installed runtime."""
