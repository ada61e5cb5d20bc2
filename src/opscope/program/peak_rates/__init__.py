"""Measured ceilings of a machine: the peak rates that operators are held against."""
