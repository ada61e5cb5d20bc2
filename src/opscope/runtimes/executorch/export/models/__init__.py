"""Models defined in the project, with seeded random weights: latency does not depend on what a model has learned."""
