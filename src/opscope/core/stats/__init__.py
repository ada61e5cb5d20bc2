"""Numbers in, numbers out: summaries, intervals and tests, without tables or files."""
