"""LiteRT's Interpreter, for models that the compiled-model API refuses and for releases with unknown structures."""
