"""Hand-written models, small and seeded: what transformers does not reach."""
