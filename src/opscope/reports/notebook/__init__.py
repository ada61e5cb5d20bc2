"""Results as a notebook shows them: one line, a card of short tables, a data frame, a chart."""
