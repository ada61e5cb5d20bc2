"""Export of models to programs: the registry, number types and quantisation, and the export itself."""
