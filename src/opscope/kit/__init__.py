"""The Arm kit's files on disk: its run directories, its configuration, its columns."""
