"""AI Engine results as text, pages and pictures."""
