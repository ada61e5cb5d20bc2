"""Operators against the ceilings of the machine."""
