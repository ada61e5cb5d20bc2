"""Ceilings of LiteRT's kernels, from small models that are made for it."""
