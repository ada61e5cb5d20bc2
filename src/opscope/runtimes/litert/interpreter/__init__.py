"""LiteRT through its Interpreter: what the compiled-model API refuses, and releases whose structures are not known."""
