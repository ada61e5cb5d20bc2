"""Analysing, comparing, gating and converting what a path holds."""
