"""One folder per runtime: its files, how its models are run and traced, how programs for it are made."""
