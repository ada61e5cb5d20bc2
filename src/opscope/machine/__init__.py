"""The CPU: its features, the layouts in which runtimes keep them, its state."""
