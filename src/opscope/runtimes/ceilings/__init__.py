"""Measuring ceilings, as every runtime does: finding the best run of a probe, and the process around it."""
