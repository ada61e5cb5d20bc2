"""Fuzzing of the readers: whatever a file holds, reading it ends in a value or in a TraceFormatError."""
