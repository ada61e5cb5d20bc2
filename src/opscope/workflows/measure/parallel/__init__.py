"""Experiments on several devices at once: side by side here, or on the workers of a Dask cluster."""
