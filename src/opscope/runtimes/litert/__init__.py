"""LiteRT: its installed package, its programs, the process that runs them and the traces of that process."""
