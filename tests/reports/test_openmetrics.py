"""OpenMetrics: what a dashboard gets, read back by Prometheus's own parser."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fakes import FakeClock, FakeTarget
from hostile_names import HOSTILE
from layered_model import analysed
from opscope.analysis.findings.message import Grade
from opscope.api import Settings, profile
from opscope.reports.content.content import ReportContent
from opscope.reports.formats.openmetrics import FAMILIES, openmetrics, openmetrics_of
from programs import write_tiny_program

_BASE = {"model": "tiny", "device": "Test CPU, Linux x86_64", "target": "fake", "cpu": "Test CPU"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """A report of six rounds at a slowdown of 2."""
    directory = tmp_path_factory.mktemp("metrics")
    program = write_tiny_program(directory)
    return profile(
        str(program),
        settings=Settings(rounds=6, runs=3, warmup=1),
        out=directory / "out",
        target=FakeTarget(),
        clock=FakeClock(),
    ).content


def samples(exposition: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels; the parser refuses what the format forbids, and none may be there twice."""
    families = list(text_string_to_metric_families(exposition.decode()))
    found = [sample for family in families for sample in family.samples]
    unique = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(unique) == len(found)
    return unique


def value(exposition: bytes, name: str, **labels: str) -> float:
    """The only sample of this name that has these labels among its own."""
    wanted = set(labels.items())
    (found,) = [number for (own, has), number in samples(exposition).items() if own == name and wanted <= has]
    return found


def test_families_say_what_they_are(content: ReportContent) -> None:
    """Every one that is described is there, with its type and unit; it is a unit's name that ends with the unit."""
    families = {family.name: family for family in text_string_to_metric_families(openmetrics(content).decode())}
    assert {name: (family.type, family.unit) for name, family in families.items()} == {
        family.name: (family.kind, family.unit) for family in FAMILIES
    }
    assert all(family.name.endswith(family.unit) for family in FAMILIES)
    assert all(family.documentation for family in families.values())


def test_the_exposition_ends_as_the_format_asks(content: ReportContent) -> None:
    """A collector takes a file without that for a part of one."""
    text = openmetrics(content)
    assert text.endswith(b"\n# EOF\n")
    assert b"\n\n" not in text


def test_latencies_are_those_of_the_report(content: ReportContent) -> None:
    """In seconds, with and without tracing, and what dashboards compute means from."""
    text = openmetrics(content)
    for result in content.variants:
        assert result.analysis is not None
        assert result.analysis.traced is not None
        for latency in (result.analysis.latency, result.analysis.traced):
            labels = {"variant": result.variant.name, "arm": latency.source}
            name = "opscope_latency_seconds"
            assert value(text, name, quantile="0", **labels) == pytest.approx(latency.min_ns / 1e9)
            assert value(text, name, quantile="0.95", **labels) == pytest.approx(latency.p95_ns / 1e9)
            assert value(text, "opscope_median_latency_seconds", **labels) == pytest.approx(latency.median_ns / 1e9)
            total = value(text, f"{name}_sum", **labels)
            assert total / value(text, f"{name}_count", **labels) == pytest.approx(latency.mean_ns / 1e9)


@pytest.mark.parametrize("split", ["category", "backend"])
def test_splits_add_up_to_the_latency(content: ReportContent, split: str) -> None:
    """Category by category, and backend by backend."""
    text = openmetrics(content)
    for result in content.variants:
        assert result.analysis is not None
        own = [
            number
            for (name, labels), number in samples(text).items()
            if name == f"opscope_{split}_seconds" and ("variant", result.variant.name) in labels
        ]
        copies = result.analysis.copies_ns if split == "backend" else 0
        assert math.fsum(own) == pytest.approx((result.analysis.headline_ns - copies) / 1e9)


def test_the_speedup_comes_with_its_interval_and_its_verdict(content: ReportContent) -> None:
    """One state of the set is on."""
    text, comparison = openmetrics(content), content.primary
    assert comparison is not None
    assert comparison.end_to_end.ci95 is not None
    sides = {"candidate": "accelerated", "baseline": "baseline"}
    assert value(text, "opscope_speedup_ratio", **sides) == comparison.end_to_end.speedup
    bounds = [value(text, "opscope_speedup_bound_ratio", bound=bound) for bound in ("lower", "upper")]
    assert bounds == list(comparison.end_to_end.ci95)
    states = {
        dict(labels)["opscope_verdict"]: number
        for (name, labels), number in samples(text).items()
        if name == "opscope_verdict"
    }
    assert states == {"faster": 1, "slower": 0, "no_difference": 0, "undecidable": 0, "withheld": 0}


def test_the_grade_is_one_of_its_states(content: ReportContent) -> None:
    """All of them are listed, so that a dashboard can tell which it is not."""
    text = openmetrics(content)
    assert content.quality is not None
    states = {g: value(text, "opscope_quality", opscope_quality=g.value) for g in Grade}
    assert states == {grade: int(grade is content.quality.grade) for grade in Grade}


def test_what_failed_is_counted(content: ReportContent) -> None:
    """Beside what succeeded: two variants, six rounds, timed and traced."""
    text = openmetrics(content)
    counts = [value(text, "opscope_repetitions", outcome=o) for o in ("completed", "failed", "not_run")]
    assert counts == [24, 0, 0]
    cut = msgspec.structs.replace(content.manifest, repetitions=content.manifest.repetitions[:20])
    text = openmetrics(msgspec.structs.replace(content, manifest=cut))
    counts = [value(text, "opscope_repetitions", outcome=o) for o in ("completed", "failed", "not_run")]
    assert counts == [20, 0, 4]


def test_series_carry_the_device_and_the_measurement_its_commit(content: ReportContent) -> None:
    """The name that was given, on every series; the commit where it begins no new series."""
    text = openmetrics(content, "left board", "1f3c2ab")
    for name, labels in samples(text):
        assert dict(labels)["device"] == "left board"
        assert dict(labels).get("commit") == ("1f3c2ab" if name == "opscope_measurement_info" else None)
    assert "commit=" not in openmetrics(content).decode()


def test_series_say_what_ran_where(content: ReportContent) -> None:
    """Labels that are empty are left out, which is the same to a store."""
    text = openmetrics(content)
    for name, labels in samples(text):
        assert _BASE.items() <= dict(labels).items(), name
        assert all(text for _, text in labels)
    info = [dict(labels) for name, labels in samples(text) if name == "opscope_measurement_info"]
    assert info[0]["model_sha256"] == content.manifest.model.sha256


def test_a_variant_without_a_result_has_no_series(content: ReportContent) -> None:
    """Its absence is counted, and never a value."""
    none = [msgspec.structs.replace(result, analysis=None) for result in content.variants]
    empty = msgspec.structs.replace(content, variants=none, comparisons=[], quality=None)
    assert not [name for name, _ in samples(openmetrics(empty)) if name.startswith("opscope_latency")]


def test_one_analysis_has_the_series_of_its_variant() -> None:
    """Of a trace alone too, which has no machine."""
    text = openmetrics_of(analysed(), "toy")
    assert value(text, "opscope_latency_seconds", quantile="0.5") == 0.001
    assert value(text, "opscope_category_seconds", category="Convolution") == 0.0003
    assert value(text, "opscope_operators", backend="portable") == 1
    assert not [name for name, _ in samples(text) if "speedup" in name]


@pytest.mark.parametrize("name", [*HOSTILE, 'a"b\\c\nd', "\\", "\r\n# EOF\r\n", "\ud800"])
def test_hostile_names_are_labels(content: ReportContent, name: str) -> None:
    """Of the model, the machine, variants and backends; they come back as they were, control characters aside."""
    replace: Any = msgspec.structs.replace
    manifest = replace(
        content.manifest,
        model=replace(content.manifest.model, name=name),
        environment=replace(content.manifest.environment, cpu=name),
        variants=[replace(v, name=f"{name}{v.name}") for v in content.manifest.variants],
    )
    variants = []
    for result in content.variants:
        assert result.analysis is not None
        backends = [replace(backend, backend=name) for backend in result.analysis.backends]
        analysis = replace(result.analysis, backends=backends)
        variants.append(replace(result, variant=replace(result.variant, name=name), analysis=analysis))
    found = samples(openmetrics(replace(content, manifest=manifest, variants=variants)))
    shown = {dict(labels)["model"] for _, labels in found}
    clean = "".join("\N{REPLACEMENT CHARACTER}" if ord(c) < 32 or c == "\ud800" else c for c in name)
    assert shown == {clean}
    assert {clean, f"{clean} (2)"} <= {dict(labels).get("variant") for _, labels in found}
