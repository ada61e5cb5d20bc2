"""What a token of a language model costs: where its time goes, what bounds it, and how that grows with the position."""
