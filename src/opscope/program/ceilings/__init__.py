"""Ceilings of a machine, as they were measured: what operators are compared with."""
