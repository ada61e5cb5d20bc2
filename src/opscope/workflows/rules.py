"""All rules in one list: of a variant, a comparison, an experiment, a measurement, a program, and a trace of an NPU.

Each area keeps its tuple beside what it examines; here they stand together, since nothing below sees them all.
"""

from __future__ import annotations

from opscope.analysis.findings.rule import Rule, rule_of
from opscope.analysis.preflight import preflight
from opscope.analysis.quality import disturbance, quality, quality_machine
from opscope.analysis.rules import rules
from opscope.npu.analysis import recommendations as tile_rules

MACHINE_CHECKS = (*quality_machine.CHECKS, quality_machine.not_throttled, quality_machine.one_run)

AREAS: dict[str, tuple[Rule, ...]] = {
    "One variant": tuple(map(rule_of, (*rules.RULES, *rules.PACKED_RULES))),
    "A pair of variants": tuple(map(rule_of, rules.COMPARISON_RULES)),
    "A whole experiment": tuple(map(rule_of, rules.EXPERIMENT_RULES)),
    "A program before it runs": tuple(map(rule_of, preflight.RULES)),
    "Measurement quality: other load": tuple(map(rule_of, disturbance.CHECKS)),
    "Measurement quality: figures": tuple(map(rule_of, quality.CHECKS)),
    "Measurement quality: machine": tuple(map(rule_of, MACHINE_CHECKS)),
    "NPU trace": tile_rules.RULES,
}
"""Rules by what they are about, in the order in which they are applied."""
