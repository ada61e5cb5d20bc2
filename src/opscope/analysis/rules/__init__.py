"""Findings: every rule with its evidence, its saving and the next step."""
