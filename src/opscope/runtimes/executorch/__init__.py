"""ExecuTorch: its files, its runners, its exporter."""
