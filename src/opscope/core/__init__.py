"""What everything stands on: errors, units, files that are written whole, statistics, the table."""
