"""Many runs in one place: Parquet files, commits that are whole or absent, and views to query."""
