"""Outputs of two sides: when they are a question, what is compared, and the reasons why not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import SampleRun, VariantInputs
from opscope.core.errors import InvalidBundleError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.measurements.analyses import accuracy_of, may_have_same_inputs, saved_outputs
from opscope.measurements.sides import bundle_side
from opscope.runtimes.side import Side
from programs import tiny_program

SMALL = Settings(rounds=1, runs=2, warmup=1, ceilings=False, untraced=False)
VALUES = np.arange(4, dtype=np.float32)


def measured(place: Path, seed: int = 0, program: str = "aten::add", values: np.ndarray = VALUES) -> Bundle:
    """A bundle of a program whose outputs are these values."""
    place.mkdir()
    (place / "tiny.pte").write_bytes(tiny_program(portable=program))
    target = FakeTarget()
    target.outputs = lambda _: values
    settings = msgspec.structs.replace(SMALL, seed=seed)
    profile(place / "tiny.pte", settings=settings, out=place / "out", target=target, clock=FakeClock())
    return Bundle.open(place / "out")


def side(bundle: Bundle, variant: str = "accelerated", **plan: object) -> Side:
    """A side of a bundle, with changes of its plan."""
    manifest = bundle.manifest
    changed = msgspec.structs.replace(manifest, plan=msgspec.structs.replace(manifest.plan, **plan))
    return bundle_side(Bundle(bundle.path, changed), variant, None)


@pytest.fixture
def one(tmp_path: Path) -> Bundle:
    """A bundle."""
    return measured(tmp_path / "one")


def outputs_of(one: Side) -> Path:
    """The file of the outputs that count."""
    assert one.bundle is not None
    return one.bundle.path / one.bundle.manifest.completed(one.label)[0].directory / "outputs.npz"


def test_equal_inputs_of_two_bundles_have_their_outputs_compared(one: Bundle, tmp_path: Path) -> None:
    """Drawn from the same seed; the largest difference is told."""
    other = measured(tmp_path / "other", values=VALUES + np.float32(0.5))
    found = accuracy_of(side(one), side(other))
    assert found is not None
    assert (found.inputs, found.equal, found.reason) == (1, False, None)
    assert found.outputs[0].max_abs == 0.5


def test_no_question_where_no_program_is_named_or_where_both_ran_it(one: Bundle, tmp_path: Path) -> None:
    """Traces without bundles; variants of one program in one bundle. The same program in two bundles is one."""
    bare = side(one)._replace(bundle=None)
    assert accuracy_of(bare, bare) is None
    assert accuracy_of(side(one, "baseline"), side(one)) is None
    assert accuracy_of(side(one), side(measured(tmp_path / "other"))) is not None


@pytest.mark.parametrize("which", ["baseline", "candidate"])
def test_a_side_without_a_bundle_or_outputs_is_named(one: Bundle, tmp_path: Path, which: str) -> None:
    """Not the other one."""
    sides = {"baseline": side(one), "candidate": side(measured(tmp_path / "other"))}
    without = sides | {which: sides[which]._replace(bundle=None)}
    outputs_of(sides[which]).unlink()
    for found in (accuracy_of(**without), accuracy_of(**sides)):
        assert found is not None
        assert found.inputs == 0
        assert found.reason is not None
        assert [name for name in sides if name in found.reason] == [which]


def test_values_other_than_were_recorded_are_refused(one: Bundle) -> None:
    """By the hash in the manifest."""
    own = side(one)
    (kept,) = saved_outputs(own) or []
    assert kept.tolist() == VALUES.tolist()
    np.savez(outputs_of(own), VALUES + 1)
    with pytest.raises(InvalidBundleError):
        saved_outputs(own)
    assert saved_outputs(own._replace(bundle=None)) is None


def with_inputs(bundle: Bundle, *arrays: np.ndarray, **plan: object) -> Side:
    """A side whose inputs are in its bundle."""
    file = bundle.path / "inputs.npz"
    np.savez(file, *arrays)
    return side(bundle, **{"values": file.name, "values_sha256": sha256_of(file)} | plan)


@pytest.mark.parametrize(
    ("left", "right", "compared"),
    [
        ([VALUES], [VALUES], True),
        ([VALUES], [VALUES.astype(np.float16)], True),
        ([VALUES.astype(np.float64) / 3], [VALUES / np.float32(3)], True),
        ([VALUES * np.nan], [VALUES * np.nan], True),
        ([VALUES], [VALUES + 1], False),
        ([VALUES], [VALUES.astype(np.int32)], False),
        ([VALUES.astype(np.int64)], [VALUES.astype(np.int32)], False),
        ([VALUES], [VALUES, VALUES], False),
        ([VALUES], [VALUES[:3]], False),
        ([VALUES.reshape(1, 4)], [VALUES.reshape(4, 1)], True),
    ],
    ids=["same", "half", "double", "nan", "others", "integers", "width", "more", "fewer", "turned"],
)
def test_inputs_are_the_same_up_to_rounding_and_order_of_axes(
    one: Bundle, tmp_path: Path, left: list[np.ndarray], right: list[np.ndarray], *, compared: bool
) -> None:
    """Else outputs are not compared, and it is said why."""
    found = accuracy_of(with_inputs(one, *left), with_inputs(measured(tmp_path / "other"), *right))
    assert found is not None
    assert (found.inputs, found.reason is None) == (int(compared), compared)


def test_without_known_inputs_nothing_is_compared(one: Bundle, tmp_path: Path) -> None:
    """No seed, another seed, other methods, values that somebody changed; the calls of one method may be named."""
    other = measured(tmp_path / "other")
    ways = [
        (side(one, seed=None), side(other)),
        (side(one), side(other, seed=1)),
        (side(one, calls=["encode", "decode"]), side(other, calls=["decode", "encode"])),
    ]
    reasons = [getattr(accuracy_of(*way), "reason", None) for way in ways]
    assert None not in reasons
    assert len(set(reasons)) == len(ways)
    named = accuracy_of(side(one, calls=["forward"]), side(other))
    assert named is not None
    assert named.reason is None
    with pytest.raises(InvalidBundleError):
        accuracy_of(side(one), with_inputs(other, VALUES, values_sha256="0" * 64))


def with_samples(bundle: Bundle, labels: np.ndarray, outputs: np.ndarray, **changes: object) -> Side:
    """A side that ran labelled inputs."""
    own = side(bundle)
    assert own.bundle is not None
    file = bundle.path / "variants/accelerated/samples.npz"
    np.savez(file, labels=labels, output_0=outputs)
    run = SampleRun("set.npz", len(labels), "1" * 64, {"accelerated": sha256_of(file)})
    manifest = msgspec.structs.replace(bundle.manifest, samples=msgspec.structs.replace(run, **changes))
    return own._replace(bundle=Bundle(bundle.path, manifest))


LABELS = np.array([0, 1, -1])
CLASSES = np.eye(3, 4, dtype=np.float32)


def test_labelled_inputs_of_both_sides_are_what_counts(one: Bundle, tmp_path: Path) -> None:
    """Every input is compared, and the classes of those that have a label; one side alone leaves the timed input."""
    other = measured(tmp_path / "other")
    found = accuracy_of(with_samples(one, LABELS, CLASSES), with_samples(other, LABELS, CLASSES[::-1]))
    assert found is not None
    assert (found.inputs, found.equal) == (3, False)
    assert found.top1 is not None
    assert (found.top1.agreement.n, found.top1.baseline and found.top1.baseline.n) == (3, 2)
    alone = accuracy_of(with_samples(one, LABELS, CLASSES), side(other))
    assert alone is not None
    assert (alone.inputs, alone.top1) == (1, None)


@pytest.mark.parametrize(
    ("labels", "changes"),
    [(LABELS, {"inputs_sha256": "2" * 64}), (LABELS + 1, {}), (LABELS, {"failures": {"accelerated": "it crashed"}})],
    ids=["other-inputs", "other-labels", "failed"],
)
def test_unlike_or_failed_labelled_inputs_are_not_compared(
    one: Bundle, tmp_path: Path, labels: np.ndarray, changes: dict[str, object]
) -> None:
    """Each with its reason; what failed by its own words."""
    other = with_samples(measured(tmp_path / "other"), labels, CLASSES, **changes)
    found = accuracy_of(with_samples(one, LABELS, CLASSES), other)
    assert found is not None
    assert (found.inputs, found.reason is not None) == (0, True)
    assert ("it crashed" in str(found.reason)) == ("failures" in changes)


def test_labelled_outputs_that_are_gone_or_not_one_for_each_label(one: Bundle, tmp_path: Path) -> None:
    """The first is a reason, the second damage; a file with other content is refused."""
    whole = with_samples(one, LABELS, CLASSES)
    other = measured(tmp_path / "other")
    with pytest.raises(TraceFormatError):
        accuracy_of(whole, with_samples(other, LABELS, CLASSES[:2]))
    with pytest.raises(InvalidBundleError):
        accuracy_of(whole, with_samples(other, LABELS, CLASSES, outputs_sha256={"accelerated": "0" * 64}))
    gone = with_samples(other, LABELS, CLASSES)
    (other.path / "variants/accelerated/samples.npz").unlink()
    found = accuracy_of(whole, gone)
    assert found is not None
    assert (found.inputs, found.reason is not None) == (0, True)


def test_variants_of_one_bundle_got_the_same_values_unless_it_says_otherwise(one: Bundle) -> None:
    """Either of them."""
    unlike = {"accelerated": VariantInputs([], unlike="other sizes")}
    pair = side(one, "baseline", inputs_of=unlike), side(one, inputs_of=unlike)
    assert not may_have_same_inputs(*pair)
    assert not may_have_same_inputs(*pair[::-1])
    assert may_have_same_inputs(side(one, "baseline"), side(one))
    assert may_have_same_inputs(side(one, "baseline", inputs_of={"accelerated": VariantInputs([])}), side(one))
