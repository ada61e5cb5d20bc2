"""Whether a change passes: thresholds and budgets."""
