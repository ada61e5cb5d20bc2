"""ETRecords: what the exporter wrote beside a program."""
