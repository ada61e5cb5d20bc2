"""AI Engine traces from a path to results and files."""
