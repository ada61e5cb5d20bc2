"""The list of all rules: every name that the code tells a message under stands in it, once an area."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.findings.message import Severity
from opscope.analysis.findings.rule import rule_of
from opscope.analysis.preflight import preflight
from opscope.analysis.quality import quality
from opscope.analysis.rules import rules
from opscope.npu.analysis.calls import FAULTS
from opscope.workflows.rules import AREAS, MACHINE_CHECKS

CHECKS = (
    *(*rules.RULES, *rules.COMPARISON_RULES, *rules.EXPERIMENT_RULES),
    *(*preflight.RULES, *quality.CHECKS, *MACHINE_CHECKS),
)
SOURCE = Path(__file__).parents[2] / "src" / "opscope"
_TOLD = r"""(?:\bfinding|concern|passed|not_checked|_doubt|_finding)\(\s*"(\w+)\""""
_NAMED = re.compile(rf"""{_TOLD}|^    rule = "(\w+)"|check = "(\w+)"|^    "\w+_stall": \(\s*"(\w+)\"""", re.MULTILINE)
MACHINE_UNKNOWN = {"machine", "real_cpu"}
"""Told instead of the checks of a machine, where the machine is emulated or not known."""


def named(*folders: str) -> set[str]:
    """Names of rules in the source of some folders."""
    files = [file for folder in folders for file in (SOURCE / folder).rglob("*.py")]
    return {name for file in files for found in _NAMED.findall(file.read_text()) for name in found if name}


def listed(*titles: str) -> set[str]:
    """Names of rules in areas whose title begins so."""
    return {rule.name for title, area in AREAS.items() if title.startswith(titles) for rule in area}


@pytest.mark.parametrize("title", AREAS)
def test_each_rule_says_what_it_looks_for(title: str) -> None:
    """Say it under a name of its own, with the severity of its findings; checks of a measurement limit a grade."""
    assert all(rule.looks_for.endswith(".") for rule in AREAS[title])
    assert len({rule.name for rule in AREAS[title]}) == len(AREAS[title])
    assert "quality" in title or [rule.name for rule in AREAS[title] if not rule.severities] == []


def test_all_rules_are_in_the_list() -> None:
    """List every name in the source, and no other; those of starts and ends of calls come from their table."""
    assert named("analysis/rules") == listed("One variant", "A pair", "A whole")
    assert named("analysis/preflight") == listed("A program")
    assert named("analysis/quality") - MACHINE_UNKNOWN == listed("Measurement quality")
    assert named("npu/analysis") | {fault.rule for fault in FAULTS} == listed("NPU trace")


def test_rules_are_as_severe_as_the_list_says_and_compare_with_its_thresholds() -> None:
    """Hold severities of an NPU's rules against the source beside them; the constant itself is the threshold."""
    severities = {rule.name: rule.severities for rule in AREAS["NPU trace"]}
    beside = [
        (name, Severity[severity])
        for file in (SOURCE / "npu" / "analysis").glob("*.py")
        for name, severity in re.findall(r"""finding\(\s*"(\w+)",\s*Severity\.(\w+)""", file.read_text())
    ]
    assert len(beside) > len(severities) // 2
    assert [(name, severity) for name, severity in beside if severity not in severities[name]] == []
    rules = {rule.name: rule for area in AREAS.values() for rule in area}
    assert rules["portable_operators"].severities == (Severity.HIGH,)
    assert rules["portable_operators"].thresholds["LEAST_SHARE"] == pytest.approx(0.05)
    assert rules["precise"].thresholds["PRECISION"] == (0.05, 0.25)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_rule_declares_what_its_code_names(check: Callable[[Any], object]) -> None:
    """Every severity, and every public constant, that its own lines name."""
    rule, source = rule_of(check), inspect.getsource(check).split('"""', 2)[2]
    numbers = {name for name, value in vars(inspect.getmodule(check)).items() if _is_threshold(name, value)}
    assert numbers.intersection(re.findall(r"\b[A-Z][A-Z_]+\b", source)) <= set(rule.thresholds)
    assert set(re.findall(r"Severity\.(\w+)", source)) <= {severity.name for severity in rule.severities}


def _is_threshold(name: str, value: object) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return name.isupper() and name[0] != "_" and all(type(each) in {int, float} for each in values)
