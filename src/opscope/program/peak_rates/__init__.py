"""Measured ceilings of a machine: the peak rates that operators are compared with."""
