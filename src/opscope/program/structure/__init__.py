"""A program as it was written: methods, values, number types, and the exporter's record."""
