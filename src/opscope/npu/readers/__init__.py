"""The formats of AI Engine traces."""
