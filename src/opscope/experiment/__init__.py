"""Configuration, variants, schedule and the engine that runs what a plan still lacks."""
