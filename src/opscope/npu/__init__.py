"""AI Engine traces from words to report."""
