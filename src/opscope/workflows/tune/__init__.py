"""Searching settings of a runtime, and confirming what is faster and equal."""
