"""What a run leaves on disk: a manifest, the traces and outputs, written so that nothing measured is ever lost."""
