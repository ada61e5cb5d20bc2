"""Graphs of XNNPACK, shared by all runtimes that delegate to it: nodes, rewrites, and events."""
