"""What the Arm kit leaves on disk: its run directories, its configuration, its columns."""
