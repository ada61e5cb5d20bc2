"""Switching CPU features off for libraries that were not built for it, and the proof that it happened."""
