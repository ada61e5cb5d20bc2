"""Category and kind of operators."""
