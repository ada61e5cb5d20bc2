"""Work of operators, counted exactly in place of their time."""
