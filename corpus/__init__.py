"""Models that others published, out of packages of the Python index: each ends in a report or a true refusal."""
