"""Whether a measurement can be trusted."""
