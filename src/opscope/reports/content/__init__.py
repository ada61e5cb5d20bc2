"""What reports show, and how names and numbers become text."""
