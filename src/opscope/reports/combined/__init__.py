"""One report over several bundles."""
