"""Latency: of inferences, of methods, with and without tracing."""
