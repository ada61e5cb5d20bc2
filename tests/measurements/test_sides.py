"""Sides of bundles: which variants are compared, whose program a variant ran, and what its processes printed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role, Variant
from opscope.core.errors import UsageError
from opscope.experiment.protocol import LOG
from opscope.measurements.attribution import with_program
from opscope.measurements.bundle_kernels import printed_log
from opscope.measurements.notebook import check_most
from opscope.measurements.sides import bundle_side, compared_pairs
from opscope.measurements.trace_sides import trace_side
from opscope.program.partition.verdicts import Cause
from programs import write_tiny_program

DATA = Path(__file__).resolve().parents[1] / "data" / "litert"
SMALL = Settings(rounds=1, runs=2, warmup=1, ceilings=False, untraced=False)
LISTED = "Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_4x8__neon'.\n"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A bundle of two variants."""
    program = write_tiny_program(tmp_path)
    profile(program, settings=SMALL, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    return Bundle.open(tmp_path / "out")


def test_a_second_program_is_compared_with_the_first_that_runs_in_the_same_way(bundle: Bundle) -> None:
    """Each against its own baseline, then across: with as many threads, and the same features off."""
    other = msgspec.structs.replace(bundle.manifest.model, program="other.pte", sha256="0" * 64)
    variants = [
        Variant("off", Role.BASELINE, ["avx512"], [], 1),
        Variant("on", Role.ACCELERATED, [], [], 1),
        Variant("other-on", Role.CANDIDATE, [], [], 1),
        Variant("other-control", Role.CONTROL, [], [], 1),
        Variant("other-wide", Role.CANDIDATE, [], [], 4),
    ]
    programs = {one.name: other for one in variants if one.name.startswith("other")}
    manifest = msgspec.structs.replace(bundle.manifest, variants=variants, programs=programs)
    assert compared_pairs(manifest) == [("off", "on"), ("on", "other-on")]
    assert compared_pairs(msgspec.structs.replace(manifest, variants=variants[:2], programs={})) == [("off", "on")]


def test_the_model_of_a_side_is_that_of_its_variant(bundle: Bundle) -> None:
    """Of a side without a variant the first; without a bundle there is none."""
    other = msgspec.structs.replace(bundle.manifest.model, sha256="0" * 64)
    manifest = msgspec.structs.replace(bundle.manifest, programs={"accelerated": other})
    own = bundle_side(bundle, "accelerated", None)._replace(bundle=Bundle(bundle.path, manifest))
    assert own.model == other
    assert own._replace(variant=None).model == bundle.manifest.model
    assert own._replace(bundle=None).model is None


@pytest.mark.parametrize(("delegate", "off"), [(None, False), ("xnnpack", False), ("none", True)])
def test_operators_of_a_variant_without_a_delegate_are_portable_for_that_reason(
    delegate: str | None, *, off: bool
) -> None:
    """LiteRT chooses its delegate when it loads a program, so the program itself tells nothing of it."""
    traced = trace_side(DATA / "partial.litert.json", 0)
    own = traced._replace(variant=Variant("one", Role.ACCELERATED, [], [], 1, delegate=delegate))
    known = with_program(own, DATA / "partial.tflite", None).known
    assert known is not None
    causes = {reason.cause for reason in known.attributions.reasons.values()}
    assert causes == {Cause.SWITCHED_OFF if off else Cause.NO_RULE}


def test_kernels_that_processes_printed_are_a_source(bundle: Bundle) -> None:
    """None where nothing was printed, or no kernel was listed."""
    (repetition,) = bundle.manifest.completed("accelerated")
    log = bundle.path / repetition.directory / LOG
    log.unlink(missing_ok=True)
    assert printed_log(bundle, "accelerated") is None
    log.write_text("hello\n", "utf-8")
    assert printed_log(bundle, "accelerated") is None
    log.write_text(LISTED, "utf-8")
    found = printed_log(bundle, "accelerated")
    assert found is not None


def test_a_chart_of_nothing_is_refused() -> None:
    """One bar is a chart."""
    check_most(1)
    with pytest.raises(UsageError):
        check_most(0)
