"""Models of many kinds that are exported, run and analysed, and the record of what came of it."""
