"""Models become programs here: the registry, number types and quantisation, and the export itself."""
