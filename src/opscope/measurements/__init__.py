"""What a path holds, opened: events with the program, the bundle and the calls they belong to, and their analyses."""
