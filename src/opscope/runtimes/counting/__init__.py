"""Counting the kernels of XNNPACK that a process calls, whichever runtime has the library."""
