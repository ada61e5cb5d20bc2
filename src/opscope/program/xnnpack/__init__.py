"""Graphs of XNNPACK, shared by all runtimes that delegate to it: nodes, rewrites, the events they give."""
