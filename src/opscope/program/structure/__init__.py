"""A program as it was written: methods, values, number types, what the exporter recorded."""
