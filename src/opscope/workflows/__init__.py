"""What joins the rooms, from a path to a result."""
