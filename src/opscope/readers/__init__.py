"""Bytes become an EventTable or a typed value here; past a reader nothing is untyped."""
