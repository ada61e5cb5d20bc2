"""Processes, binaries and the file system of the machine this runs on."""
