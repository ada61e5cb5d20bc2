"""Whether a manifest agrees with itself: its plan, its variants, its records. Nothing but the manifest is looked at.

What a repetition measured without a trace is in the manifest alone, and is hashed there.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.manifest import Manifest, Role, Status, TracingMode
from opscope.bundle.validation import Problem
from opscope.core.json import to_json
from opscope.core.units import counted_text
from opscope.program.phases import phase_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.manifest import Measurement, Plan, PlanSlot, Repetition, Variant

    Json: TypeAlias = Any
    """A decoded document of any shape."""


FILE = "manifest.json"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_LONGEST_NAME = 255
_LONGEST_NS = 1 << 53
_MOST_CALLS = 1 << 31
_LISTED = 6


def path_fault(path: str) -> str | None:
    """Why a path cannot be one within a bundle; None when it can, whatever stands there."""
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or re.match(r"[A-Za-z]:", path):
        return "is not a path within the bundle"
    if ".." in parts:
        return "points outside the bundle"
    return "is not a path" if "\0" in path or "" in parts or "." in parts else None


def unusable(manifest: Manifest) -> Iterator[str]:
    """Why nothing can be read of a bundle: it has no variants, or its paths lead out of it."""
    if not manifest.variants:
        yield "it has no variants"
    for at, path in _paths(manifest):
        if path is not None and (fault := path_fault(path)):
            yield f"{at} {fault}"


def _paths(manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    yield from values_paths(manifest)
    for number, variant in enumerate(manifest.variants):
        yield f"variants[{number}].name", variant.name
    for at, model in manifest.models.items():
        yield from ((f"{at}.{name}", getattr(model, name)) for name in ("program", "etrecord", "data"))
    for number, repetition in enumerate(manifest.repetitions):
        yield f"repetitions[{number}].directory", repetition.directory
        yield f"repetitions[{number}].trace", repetition.trace


def values_paths(manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    """Every file with values of inputs that a plan states, with its place in the manifest."""
    yield "plan.values", manifest.plan.values
    yield from (
        (f"plan.inputs_of.{name}.values", variant_inputs.values)
        for name, variant_inputs in manifest.plan.inputs_of.items()
    )


def model_problems(manifest: Manifest) -> Iterator[Problem]:
    """What a bundle always says about its model, and this one does not."""
    for at, model in manifest.models.items():
        for name in ("sha256", "size", "methods"):
            if getattr(model, name) is None:
                yield _problem(f"{at}.{name}", "is null, which only reports on other tools' directories may have")
        if model.sha256 is not None and not _SHA256.match(model.sha256):
            yield _problem(f"{at}.sha256", "is not a hexadecimal SHA-256")
    for at, named in (
        ("programs", manifest.programs),
        ("plan.inputs_of", manifest.plan.inputs_of),
        ("targets", manifest.targets),
    ):
        for name in named:
            if manifest.variant(name) is None:
                yield _problem(at, f"names {name!r}, which is not a variant")


def plan_problems(manifest: Manifest) -> Iterator[Problem]:
    """Variants and plan against each other."""
    plan, names = manifest.plan, [variant.name for variant in manifest.variants]
    yield from _number_problems(plan)
    if not names:
        yield _problem("variants", "missing")
    yield from (_problem("variants", f"{n} are called {name}") for name, n in Counter(names).items() if n > 1)
    for number, variant in enumerate(manifest.variants):
        yield from _variant_problems(variant, f"variants[{number}]")
    traced = [] if manifest.left_out.trace else names
    yield from _order_problems("plan.order", plan.order, traced, plan.rounds)
    if plan.timed_order or not traced:
        yield from _order_problems("plan.timed_order", plan.timed_order, names, plan.rounds)
    yield from _method_problems(plan, manifest.model.methods)
    for name, model in manifest.programs.items():
        yield from _method_problems(plan.of(name), model.methods)


def _method_problems(plan: Plan, methods: Sequence[str] | None) -> Iterator[Problem]:
    """The order of calls against the program's methods, and against the numbers of calls, which are whole rounds.

    The only method of a language model is called for its phases.
    """
    for name in dict.fromkeys(plan.calls):
        is_phase = methods is not None and len(methods) == 1 and phase_of(name) is not None
        if methods is not None and name not in methods and not is_phase:
            yield _problem("plan.calls", f"names {name!r}, which the program does not have")
    for name in ("runs", "warmup") if plan.calls else ():
        count = getattr(plan, name)
        if count is not None and count % len(plan.calls):
            yield _problem(
                f"plan.{name}", f"is {count:,}, no multiple of the {counted_text(len(plan.calls), 'call')} of a round"
            )


def _number_problems(plan: Plan) -> Iterator[Problem]:
    least = {"rounds": 1, "runs": 1, "warmup": 0, "seed": None, "timeout_seconds": 0}
    for name, low in least.items():
        value = getattr(plan, name)
        if value is None:
            yield _problem(f"plan.{name}", "is null, which only reports on other tools' directories may have")
        elif low is not None and not low <= value < _MOST_CALLS:
            yield _problem(f"plan.{name}", f"is {value:,}")


def _variant_problems(variant: Variant, at: str) -> Iterator[Problem]:
    name = variant.name
    if path_fault(name) or "/" in name or len(name.encode(errors="replace")) > _LONGEST_NAME:
        yield _problem(f"{at}.name", "cannot be the name of a directory")
    for field in ("role", "threads"):
        if getattr(variant, field) is None:
            yield _problem(f"{at}.{field}", "is null, which only reports on other tools' directories may have")
    if variant.threads is not None and variant.threads < 1:
        yield _problem(f"{at}.threads", f"is {variant.threads}")
    if variant.role is Role.CONTROL and (variant.cleared or variant.switch):
        yield _problem(f"{at}.role", "is control, which must run without a switch")
    if variant.ablated is not None and bool(variant.ablated) != bool(variant.cleared):
        yield _problem(f"{at}.cleared", f"{_list(variant.cleared)}, though {_list(variant.ablated)} was switched off")


def _order_problems(at: str, order: Sequence[Sequence[str]], names: list[str], rounds: int) -> Iterator[Problem]:
    if len(order) != rounds:
        yield _problem(at, f"has {counted_text(len(order), 'round')}, plan.rounds says {rounds}")
    for number, own in enumerate(order):
        if sorted(own) != sorted(names):
            yield _problem(f"{at}[{number}]", f"holds {_list(own)}, not each of {_list(names)} once")


def completeness_problems(manifest: Manifest) -> Iterator[Problem]:
    """What the plan asks for and no record gives."""
    if manifest.status is not Status.COMPLETE:
        yield _problem("status", f"is {manifest.status.value}")
    failed = {repetition.place: repetition.failure for repetition in manifest.failures()}
    for place in manifest.pending():
        failure = failed.get(place)
        reason = f"failed: {failure.message}" if failure else "was not run"
        yield _problem("repetitions", f"round {place.round} of {place.variant}, {place.arm.value}, {reason}")


def record_problems(manifest: Manifest) -> Iterator[tuple[str, Problem]]:
    """What is wrong with the records of repetitions; each with the name of the variant whose figures it concerns."""
    planned = set(manifest.planned())
    directories = Counter(repetition.directory for repetition in manifest.repetitions)
    done = Counter(repetition.place for repetition in manifest.repetitions if repetition.ok)
    attempts = Counter((repetition.place, repetition.attempt) for repetition in manifest.repetitions)
    for number, repetition in enumerate(manifest.repetitions):
        at, place = f"repetitions[{number}]", repetition.place
        problems = list(_own_problems(repetition, manifest, at))
        if place not in planned:
            problems.append(_problem(at, f"{_place(place)} is not in the plan"))
        if directories[repetition.directory] > 1:
            problems.append(_problem(f"{at}.directory", f"{repetition.directory} belongs to another repetition too"))
        if repetition.ok and done[place] > 1:
            problems.append(_problem(at, f"{_place(place)} succeeded {done[place]} times"))
        if attempts[place, repetition.attempt] > 1:
            problems.append(
                _problem(f"{at}.attempt", f"{repetition.attempt} of {_place(place)} appears more than once")
            )
        yield from ((repetition.variant, problem) for problem in problems)


def _own_problems(repetition: Repetition, manifest: Manifest, at: str) -> Iterator[Problem]:
    home = PurePosixPath("variants", repetition.variant)
    if PurePosixPath(repetition.directory).parent != home:
        yield _problem(f"{at}.directory", f"{repetition.directory} is not in {home}")
    if repetition.attempt < 1:
        yield _problem(f"{at}.attempt", f"is {repetition.attempt}")
    if (repetition.trace is None) != (repetition.trace_sha256 is None):
        yield _problem(f"{at}.trace_sha256", "a trace and its hash must come together")
    if repetition.trace_sha256 is not None and not _SHA256.match(repetition.trace_sha256):
        yield _problem(f"{at}.trace_sha256", "is not a hexadecimal SHA-256")
    if repetition.trace is not None and PurePosixPath(repetition.trace).parent != PurePosixPath(repetition.directory):
        yield _problem(f"{at}.trace", f"{repetition.trace} is not in {repetition.directory}")
    if repetition.ok:
        yield from _result_problems(repetition, manifest, at)


def _result_problems(repetition: Repetition, manifest: Manifest, at: str) -> Iterator[Problem]:
    """Of a repetition that says that it succeeded."""
    if (repetition.trace is not None) != (repetition.arm is TracingMode.TRACED):
        yield _problem(f"{at}.trace", f"is {repetition.trace or 'null'} of a {repetition.arm.value} repetition")
    asked = (manifest.plan.warmup or 0) + (manifest.plan.runs or 0)
    if repetition.inferences != asked:
        yield _problem(f"{at}.inferences", f"is {repetition.inferences:,}, the plan asks for {asked:,}")
    if repetition.measurement is None:
        yield _problem(f"{at}.measurement", "is null, but no failure is recorded")
        return
    yield from _call_problems(repetition.measurement, repetition, at)


def _call_problems(measurement: Measurement, repetition: Repetition, at: str) -> Iterator[Problem]:
    calls = measurement.wall_ns
    # The log of a foreign runner may tell fewer calls than its trace.
    if len(calls) != repetition.inferences and (calls or repetition.arm is TracingMode.TIMED):
        yield _problem(
            f"{at}.measurement.wall_ns", f"has {len(calls):,} calls, {repetition.inferences:,} inferences are recorded"
        )
    for number, duration in enumerate(calls):
        if not 0 <= duration < _LONGEST_NS:
            yield _problem(f"{at}.measurement.wall_ns[{number}]", f"is {duration:,} ns")
    yield from _off_cpu_problems(measurement, f"{at}.measurement.off_cpu_ns")
    if measurement.load_ns is not None and not 0 <= measurement.load_ns < _LONGEST_NS:
        yield _problem(f"{at}.measurement.load_ns", f"is {measurement.load_ns:,} ns")


def _off_cpu_problems(measurement: Measurement, at: str) -> Iterator[Problem]:
    """Of the times off the CPU: one for each call, and no longer than that."""
    lost, calls = measurement.off_cpu_ns, measurement.wall_ns
    if lost is None:
        return
    if len(lost) != len(calls):
        yield _problem(at, f"has {counted_text(len(lost), 'call', ',')}, {len(calls):,} were timed")
    for number, (off, duration) in enumerate(zip(lost, calls, strict=False)):
        if not 0 <= off <= duration:
            yield _problem(f"{at}[{number}]", f"is {off:,} ns of a call of {duration:,} ns")


def _place(place: PlanSlot) -> str:
    return f"round {place.round} of {place.variant}, {place.arm.value},"


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_LISTED]) or "nothing"
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


def _problem(at: str, message: str) -> Problem:
    return Problem(FILE, at, message)


FIELD = "record_sha256"
_NO_HASH = "none: it is nested too deeply"


class RecordHash(NamedTuple):
    """The hash of a record of a manifest beside the one that it states."""

    number: int  # its place among the repetitions
    variant: str  # whose repetition it is; empty where that cannot be told
    true: str  # of what stands there now
    stated: str | None  # what it was when it was written; None if the manifest states no hash

    @property
    def changed(self) -> bool:
        """Whether the record is not the one that was written, or cannot be told to be."""
        return self.stated != self.true

    @property
    def fault(self) -> str:
        """What is wrong with a record that is :attr:`changed`, behind its name in a sentence."""
        if self.stated is None:
            return f"has no {FIELD}: it cannot be told whether it was changed after it was measured"
        return f"was changed after it was measured: its SHA-256 is {self.true:.12}…, {FIELD} states {self.stated:.12}…"


def hashed_record(repetition: Repetition) -> Repetition:
    """The record with its hash."""
    document = msgspec.json.decode(to_json(repetition))
    return msgspec.structs.replace(repetition, record_sha256=_sha256(document))


def record_hashes(manifest: Json) -> Iterator[RecordHash]:
    """The hashes of all records of a manifest that was decoded without a schema, so that no field is lost."""
    records = manifest.get("repetitions") if isinstance(manifest, dict) else None
    for number, record in enumerate(records if isinstance(records, list) else []):
        if isinstance(record, dict):
            stated, variant = record.get(FIELD), record.get("variant")
            text = None if stated is None else str(stated)
            yield RecordHash(number, variant if isinstance(variant, str) else "", _sha256(record), text)


def _sha256(record: Json) -> str:
    """Hash of a record's canonical encoding: JSON without blanks, fields by name, without this hash.

    Fields that are null or empty are left out, so that a record keeps its hash when an opscope that knows more of them
    writes it again; every field that is added has such a default.
    """
    try:
        told = _without_absent({name: value for name, value in record.items() if name != FIELD})
    except RecursionError:
        return _NO_HASH  # nested more deeply than any record that was written
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()


def _without_absent(value: Json) -> Json:
    if isinstance(value, dict):
        told = {name: _without_absent(own) for name, own in value.items()}
        return {name: own for name, own in told.items() if own is not None and own not in ([], {}, "")}
    return [_without_absent(own) for own in value] if isinstance(value, list) else value
