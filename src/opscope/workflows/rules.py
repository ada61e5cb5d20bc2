"""All rules in one list: of a variant, a comparison, an experiment, a measurement, a program, and a trace of an NPU.

Each area keeps its tuple beside what it examines; here they stand together, since nothing below sees them all.
"""

from __future__ import annotations

from typing import NamedTuple

from opscope.analysis.findings.rule import Rule, rule_of
from opscope.analysis.preflight import preflight
from opscope.analysis.quality import disturbance, quality, quality_machine
from opscope.analysis.rules import rules
from opscope.npu.analysis import recommendations as tile_rules


class RuleArea(NamedTuple):
    """Rules about one thing."""

    title: str  # what they are about
    rules: tuple[Rule, ...]  # in the order in which they are applied


MACHINE_CHECKS = (*quality_machine.CHECKS, quality_machine.not_throttled, quality_machine.one_run)

AREAS = (
    RuleArea("One variant", tuple(map(rule_of, rules.RULES))),
    RuleArea("A pair of variants", tuple(map(rule_of, rules.COMPARISON_RULES))),
    RuleArea("A whole experiment", tuple(map(rule_of, rules.EXPERIMENT_RULES))),
    RuleArea("A program before it runs", tuple(map(rule_of, preflight.RULES))),
    RuleArea("Measurement quality: other load", tuple(map(rule_of, disturbance.CHECKS))),
    RuleArea("Measurement quality: figures", tuple(map(rule_of, quality.CHECKS))),
    RuleArea("Measurement quality: machine", tuple(map(rule_of, MACHINE_CHECKS))),
    RuleArea("NPU trace", tile_rules.RULES),
)
