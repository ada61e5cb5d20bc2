"""Checks of what the processes of a bundle reported about themselves: threads, features, outputs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle import validation
from opscope.bundle.bundle import MANIFEST
from opscope.bundle.manifest import Mechanism
from opscope.bundle.validation import Problem
from opscope.core.errors import TraceFormatError
from opscope.core.units import counted_text
from opscope.experiment.protocol import OUTPUTS
from opscope.readers.outputs import read_outputs, values_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest, Measurement, Repetition
    from opscope.bundle.validation import BundleCheck
    from opscope.program.structure.exported import Tensor


def thread_check(manifest: Manifest) -> BundleCheck:
    """Thread pools that were not as large as asked."""
    found, read = [], 0
    for number, repetition in enumerate(manifest.repetitions):
        variant, measured = manifest.variant(repetition.variant), repetition.measurement
        if variant is None or measured is None or not repetition.ok or measured.threads is None:
            continue
        read += 1
        if measured.threads != variant.threads:
            at = f"repetitions[{number}].measurement.threads"
            found.append(Problem(MANIFEST, at, f"is {measured.threads}, {variant.name} asks for {variant.threads}"))
    if not read:
        return validation.THREADS.skipped("no process reported its thread count")
    return validation.THREADS.answered(found, f"{counted_text(read, 'thread pool')} of the requested size")


def mask_check(manifest: Manifest) -> BundleCheck:
    """Features that were not proved to be off."""
    found, proved = [], 0
    for number, repetition in enumerate(manifest.repetitions):
        if not repetition.ok or repetition.measurement is None:
            continue
        faults = list(_mask_faults(manifest, repetition))
        found += [Problem(MANIFEST, f"repetitions[{number}].measurement.{at}", message) for at, message in faults]
        proved += repetition.measurement.mask is not None
    if not proved and not found:
        return validation.MASK.skipped("nothing was switched off, and no process reported a proof")
    return validation.MASK.answered(found, f"{counted_text(proved, 'proof')}, each for the fields its variant clears")


def _mask_faults(manifest: Manifest, repetition: Repetition) -> Iterator[tuple[str, str]]:
    variant = manifest.variant(repetition.variant)
    mask = repetition.measurement.mask if repetition.measurement else None
    if variant is None:
        return
    asked = variant.cleared
    if mask is None:
        if asked:
            yield "mask", f"no proof that {', '.join(asked)} were off"
        return
    if mask.cleared != asked:
        done, wanted = (", ".join(fields) or "nothing" for fields in (mask.cleared, asked))
        yield "mask.cleared", f"proves {done}, {repetition.variant} clears {wanted}"
    if mask.backend_loaded_before:
        yield "mask.backend_loaded_before", "the backend read the features before they were cleared"
    if not mask.same_symbol:
        yield "mask.same_symbol", "the cleared copy of the features is not the one the backend reads"
    wanted = variant.switch or Mechanism.CPUINFO
    if mask.mechanism is not wanted:
        yield "mask.mechanism", f"is {mask.mechanism.value}, {repetition.variant} is switched by {wanted.value}"
    if mask.masked is not None and bool(mask.masked) != bool(mask.cleared):
        yield "mask.masked", f"is {mask.masked:,} where {counted_text(len(mask.cleared), 'field')} are off"


def output_check(manifest: Manifest, found: Inventory) -> BundleCheck:
    """Outputs that differ between repetitions of a variant, or are not those whose hash is stated.

    Inputs are compared too: all repetitions have the same, since they are made of the plan's seed, but for variants
    whose program calls others than the plan.
    """
    done = [(n, r, r.measurement) for n, r in enumerate(manifest.repetitions) if r.ok and r.measurement]
    facts = [fact for number, repetition, measured in done for fact in _facts(number, repetition, measured, manifest)]
    problems = [*_unusual(facts), *(p for _, repetition, measured in done for p in _saved(repetition, measured, found))]
    hashed = sum(measured.output_sha256 is not None for _, _, measured in done)
    if not hashed and not problems:
        return validation.OUTPUTS.skipped("no process hashed its outputs")
    return validation.OUTPUTS.answered(problems, f"outputs of {hashed} repetitions match their variants")


class _Fact(NamedTuple):
    """What must be the same in all repetitions of a group."""

    group: tuple[str, str]
    at: str
    value: str


def _facts(number: int, repetition: Repetition, measured: Measurement, manifest: Manifest) -> Iterator[_Fact]:
    at = f"repetitions[{number}].measurement"
    given = repetition.variant if repetition.variant in manifest.plan.inputs_of else "the bundle"
    yield _Fact(("inputs", given), f"{at}.inputs", _tensors(measured.inputs))
    yield _Fact(("outputs", repetition.variant), f"{at}.outputs", _tensors(measured.outputs))
    if measured.output_sha256 is not None:
        yield _Fact(("hash", repetition.variant), f"{at}.output_sha256", f"{measured.output_sha256[:12]}…")


def _tensors(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in tensors) or "nothing"


def _unusual(facts: Sequence[_Fact]) -> Iterator[Problem]:
    """What differs from most of its group."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for fact in facts:
        groups.setdefault(fact.group, Counter())[fact.value] += 1
    for fact in facts:
        usual = groups[fact.group].most_common(1)[0][0]
        if fact.value != usual:
            message = f"is {fact.value}, most repetitions of {fact.group[1]} have {usual}"
            yield Problem(MANIFEST, fact.at, message)


def _saved(repetition: Repetition, measured: Measurement, found: Inventory) -> Iterator[Problem]:
    """What is wrong with the saved outputs of a repetition."""
    name, stated = f"{repetition.directory}/{OUTPUTS}", measured.output_sha256
    if stated is None or found.fault(name):
        return
    try:
        shapes, digest = _read(found, name)
    except TraceFormatError as error:
        yield Problem(name, "", error.problem)
        return
    if digest != stated:
        yield Problem(name, "", f"its values have the SHA-256 {digest[:12]}…, {MANIFEST} states {stated[:12]}…")
    if shapes != [tensor.shape for tensor in measured.outputs]:
        yield Problem(name, "", f"has the shapes {shapes}, {MANIFEST} states {_tensors(measured.outputs)}")


def _read(found: Inventory, name: str) -> tuple[list[list[int]], str]:
    """Shapes of the saved outputs, and the hash of all values as processes compute it."""
    arrays = read_outputs(found.root / name) or []
    return [list(array.shape) for array in arrays], values_sha256(arrays)


def output_files(manifest: Manifest) -> Iterator[str]:
    """Paths of the outputs that the first of several processes with the same left; foreign runners may keep none."""
    if manifest.environment.runs_build:
        return
    hashed = [own for own in manifest.repetitions if own.ok and own.output_sha256 is not None]
    first = {(own.variant, own.output_sha256): own.directory for own in reversed(hashed)}
    yield from (f"{directory}/{OUTPUTS}" for directory in reversed(first.values()))
