"""Questions asked of AI Engine traces."""
