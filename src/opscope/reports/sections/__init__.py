"""The sections of a report as Markdown and terminal text."""
