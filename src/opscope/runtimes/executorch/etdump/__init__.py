"""ETDump, the trace format of ExecuTorch."""
