"""A report as a document: blocks with typed cells, and what writes them for a terminal, in Markdown and in HTML."""
