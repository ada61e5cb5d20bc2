"""Support for LiteRT: its package, its programs, the process that runs them and its traces."""
