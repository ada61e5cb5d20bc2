"""What sampling profilers leave: perf, simpleperf, xctrace."""
