"""Bundles that earlier versions wrote: they open, say what they said, and can be used as any other.

``flat-rooms`` was written by the last commit in which the code stood in flat rooms (opscope 0.1.0), on an x86-64
machine with AVX2: two rounds of toy_cnn. ``with-ceilings`` is of the same program and kind of machine, from a later
commit: with measured ceilings, before records of processes had hashes and before reports named who wrote them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import opscope
from opscope.api import add_to_store, content, convert, query_store

BUNDLES = sorted((Path(__file__).parents[1] / "data" / "bundles").iterdir())


@pytest.fixture(params=BUNDLES, ids=lambda path: path.name)
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, since a lock is written beside the manifest."""
    return Path(shutil.copytree(request.param, tmp_path / "bundle"))


def test_it_says_what_it_said(bundle: Path) -> None:
    """Figures recomputed from the traces are those that were written then."""
    written = json.loads((bundle / "analysis.json").read_bytes())
    found = opscope.analyze(bundle)
    assert found.latency.mean_ns == written["latency"]["mean_ns"]
    assert [one.time_ns for one in found.categories] == [one["time_ns"] for one in written["categories"]]
    assert [one.name for one in found.operators] == [one["name"] for one in written["operators"]]
    change = opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated")
    assert change.end_to_end.speedup == json.loads((bundle / "comparison.json").read_bytes())["end_to_end"]["speedup"]


def failed(bundle: Path) -> list[str]:
    """Names of the checks that a bundle does not pass."""
    return [check.name for check in opscope.validate(bundle).checks if check.status.value == "failed"]


def test_it_is_valid(bundle: Path) -> None:
    """As it is, and with reports that are rewritten."""
    assert failed(bundle) == []
    opscope.report(bundle)
    assert failed(bundle) == []


def test_it_is_reported_and_converted(bundle: Path, tmp_path: Path) -> None:
    """In every format of a report, and as a trace for other tools."""
    assert content(bundle).manifest.model.name == "toy_cnn_xnnpack_fp32"
    written = opscope.report(bundle, out=tmp_path / "report")
    assert {path.suffix for path in written} == {".html", ".md", ".json"}
    assert convert(bundle, "perfetto", out=tmp_path / "trace.json")


def test_it_fits_into_a_store(bundle: Path, tmp_path: Path) -> None:
    """Beside bundles of today."""
    pytest.importorskip("duckdb")
    add_to_store([bundle], tmp_path / "store")
    assert query_store("select count(*) from runs", tmp_path / "store").rows == [(2,)]
