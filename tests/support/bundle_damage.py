"""Ways to damage a bundle: each changes a copy as a careless hand, a full disk or somebody with an interest would."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fakes import FakeTarget
from opscope.bundle.bundle import Bundle
from opscope.bundle.consistency import record_hashes
from opscope.experiment.protocol import Job
from opscope.experiment.target import JobOutcome
from opscope.readers.compressed import content_sha256, inflated
from opscope.workflows.reports.reports import REPORT_FORMATS, content_of, write_reports
from traces import etdump

ACCELERATED, BASELINE = "variants/accelerated", "variants/baseline"
TRACE = f"{ACCELERATED}/round-02/trace.etdump.zst"


class HashingTarget(FakeTarget):
    """A fake target that states the hash of the outputs it saves, as the real ones do."""

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """As the fake target, with the hash of its four numbers."""
        done = super().execute(job, directory)
        if done.measurement is None:
            return done
        sha256 = hashlib.sha256(np.arange(4, dtype=np.float32).tobytes()).hexdigest()
        return JobOutcome(measurement=msgspec.structs.replace(done.measurement, output_sha256=sha256))


class Damage(NamedTuple):
    """One way to damage a bundle.

    Attributes:
        name: what was done.
        do: does it to the bundle in a directory.
        fails: the checks that must fail, and no others.
        told: what one of their problems must say.
        may: checks that may fail too, as findings rest on many figures.
    """

    name: str
    do: Callable[[Path], object]
    fails: str
    told: str
    may: str = ""


def edit(file: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change a JSON document."""

    def do(bundle: Path) -> None:
        document = json.loads((bundle / file).read_text())
        change(document)
        (bundle / file).write_text(json.dumps(document))

    return do


def put(file: str, place: str, value: object) -> Callable[[Path], None]:
    """Put a value at a place of a JSON document: names and numbers with points between them."""

    def change(document: Any) -> None:
        *path, last = [int(word) if word.lstrip("-").isdigit() else word for word in place.split(".")]
        for word in path:
            document = document[word]
        document[last] = value(document[last]) if callable(value) else value

    return edit(file, change)


def manifest(place: str, value: object) -> Callable[[Path], None]:
    """Put a value into the manifest."""
    return put("manifest.json", place, value)


def record(variant: str, number: int, place: str, value: object, arm: str = "traced") -> Callable[[Path], None]:
    """Put a value into the record of a repetition."""

    def do(bundle: Path) -> None:
        records = json.loads((bundle / "manifest.json").read_text())["repetitions"]
        key = (variant, number, arm)
        at = next(n for n, r in enumerate(records) if (r["variant"], r["round"], r["arm"]) == key)
        manifest(f"repetitions.{at}.{place}", value)(bundle)

    return do


def flip(file: str, at: int) -> Callable[[Path], None]:
    """Change one bit of a file; a negative place counts from the end."""

    def do(bundle: Path) -> None:
        content = bytearray((bundle / file).read_bytes())
        content[at] ^= 0x10
        (bundle / file).write_bytes(content)

    return do


def inflate(file: str) -> Callable[[Path], None]:
    """The content of a compressed file in its place."""

    def do(bundle: Path) -> None:
        path = bundle / file
        path.write_bytes(inflated(path.read_bytes(), path))

    return do


def cut(file: str) -> Callable[[Path], None]:
    """Leave the first half of a file."""

    def do(bundle: Path) -> None:
        content = (bundle / file).read_bytes()
        (bundle / file).write_bytes(content[: len(content) // 2])

    return do


def delete(file: str) -> Callable[[Path], None]:
    """Delete a file."""
    return lambda bundle: (bundle / file).unlink()


def write(file: str, content: bytes = b"left") -> Callable[[Path], None]:
    """Write a file, in a directory that may be new."""

    def do(bundle: Path) -> None:
        (bundle / file).parent.mkdir(parents=True, exist_ok=True)
        (bundle / file).write_bytes(content)

    return do


def link(file: str, to: str) -> Callable[[Path], None]:
    """Replace a file by a link; ``{}`` in its target is the file's content outside of the bundle."""

    def do(bundle: Path) -> None:
        outside = bundle.parent / "outside"
        shutil.copyfile(bundle / file, outside)
        (bundle / file).unlink()
        (bundle / file).symlink_to(to.format(outside))

    return do


def pipe(file: str) -> Callable[[Path], None]:
    """Replace a file by a pipe, whose reader would wait for ever."""

    def do(bundle: Path) -> None:
        (bundle / file).unlink()
        os.mkfifo(bundle / file)

    return do


def swap(file: str, other: str) -> Callable[[Path], None]:
    """Exchange two files."""

    def do(bundle: Path) -> None:
        contents = (bundle / file).read_bytes(), (bundle / other).read_bytes()
        (bundle / file).write_bytes(contents[1])
        (bundle / other).write_bytes(contents[0])

    return do


def replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace a text in a file wherever it stands; it must be there."""

    def do(bundle: Path) -> None:
        text = (bundle / file).read_text()
        assert old in text
        (bundle / file).write_text(text.replace(old, new))

    return do


def forge(trace: bytes) -> Callable[[Path], None]:
    """Another trace of a repetition, with the manifest's hash made to fit."""

    def do(bundle: Path) -> None:
        write(TRACE, trace)(bundle)
        rehash(bundle)

    return do


def both(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    """Several damages, one after the other."""

    def do(bundle: Path) -> None:
        for step in steps:
            step(bundle)

    return do


def rehash(bundle: Path) -> None:
    """State the hashes that the traces and the records have now."""
    document = json.loads((bundle / "manifest.json").read_text())
    for repetition in document["repetitions"]:
        if repetition["trace"]:
            repetition["trace_sha256"] = content_sha256(bundle / repetition["trace"])
    (bundle / "manifest.json").write_text(json.dumps(document))
    state_hashes_of_records(bundle)


def state_hashes_of_records(bundle: Path) -> None:
    """State the hashes that the records have now."""
    document = json.loads((bundle / "manifest.json").read_text())
    for record_hash in record_hashes(document):
        document["repetitions"][record_hash.number]["record_sha256"] = record_hash.true
    (bundle / "manifest.json").write_text(json.dumps(document))


def computed_anew(bundle: Path) -> None:
    """All derived files from what the manifest says now, whatever its hashes say."""
    write_reports(bundle, content_of(Bundle(bundle, Bundle.open(bundle).manifest, hashes_checked=True)), REPORT_FORMATS)


def without(key: str) -> Callable[[Any], object]:
    """Remove a field."""
    return lambda document: document.pop(key)


def repeated_record(document: Any) -> None:
    """The first record twice."""
    document["repetitions"].append(document["repetitions"][0])


def dropped_round(document: Any) -> None:
    """The last planned round away."""
    document["plan"]["order"].pop()


def added_round(document: Any) -> None:
    """One more planned round, in both arms."""
    document["plan"]["rounds"] += 1
    for order in ("order", "timed_order"):
        document["plan"][order].append(document["plan"][order][0])


def moved(bundle: Path) -> None:
    """A repetition's directory under another name."""
    (bundle / ACCELERATED / "round-02").rename(bundle / ACCELERATED / "round-77")


INFERENCE = """
    Method::execute 100000
      DELEGATE_CALL @0 80000
        Convolution (NHWC, F32) IGEMM #1 50000
"""
SHORT_PARENT = INFERENCE.replace("Method::execute 100000", "Method::execute 40000")

ANALYSIS = "analysis.json"
CHANGED = "was changed after it was measured: its SHA-256 is"
FAILURE = {"kind": "signal", "message": "ended by SIGSEGV", "signal": "SIGSEGV", "exit_code": None}


def up(value: Any) -> Any:
    """A little more."""
    return value + 1000


DAMAGES: Sequence[Damage] = (
    # the manifest
    Damage("truncated manifest", cut("manifest.json"), "manifest", "not valid JSON"),
    Damage("manifest nested too deeply", write("manifest.json", b"[" * 200_000), "manifest", "nested too deeply"),
    Damage("newer manifest", manifest("schema", "opscope.bundle/2"), "manifest", "upgrade opscope"),
    Damage("unknown field", manifest("model.colour", "red"), "manifest", "a field unknown"),
    Damage("missing field", edit("manifest.json", without("target")), "manifest", "missing required field `target`"),
    Damage("another type", manifest("plan.rounds", "six"), "manifest", "Expected `int`, got `str`"),
    Damage("no hash of the program", manifest("model.sha256", None), "manifest", "is null"),
    Damage("a round dropped from the plan", edit("manifest.json", dropped_round), "plan", "is not in the plan"),
    Damage("a variant planned twice", manifest("plan.order.1", ["baseline", "baseline"]), "plan", "is not in the plan"),
    Damage(
        "two variants of one name",
        manifest("variants.1.name", "accelerated"),
        "plan leftovers",
        "2 are called accelerated",
    ),
    Damage(
        "a variant's name points outside",
        manifest("variants.1.name", "../../x"),
        "paths leftovers",
        "points outside",
    ),
    Damage("a round that was not run", edit("manifest.json", added_round), "complete", "was not run", "analyses"),
    Damage("running", manifest("status", "running"), "complete", "is running"),
    Damage("a failure", record("baseline", 1, "failure", FAILURE), "hashes complete", "failed: ended by SIGSEGV"),
    Damage("a record lost", edit("manifest.json", lambda d: d["repetitions"].pop()), "complete", "was not run"),
    Damage("a record twice", edit("manifest.json", repeated_record), "plan", "succeeded 2 times"),
    Damage(
        "another inference count",
        record("baseline", 1, "inferences", 4),
        "hashes traces",
        CHANGED,
    ),
    Damage("a call lost", record("baseline", 1, "measurement.wall_ns", [1, 2]), "hashes", CHANGED),
    Damage(
        "an enormous call",
        record("baseline", 1, "measurement.wall_ns.2", 10**30, "timed"),
        "hashes",
        CHANGED,
    ),
    Damage(
        "times off the CPU of other calls",
        record("baseline", 1, "measurement.off_cpu_ns", [0, 0], "timed"),
        "hashes",
        CHANGED,
    ),
    Damage(
        "a call that was off the CPU for longer than it took",
        record("baseline", 1, "measurement.off_cpu_ns", [0, 10**12, 0], "timed"),
        "hashes",
        CHANGED,
    ),
    Damage(
        "another directory",
        record("baseline", 1, "directory", f"{ACCELERATED}/round-01"),
        "hashes leftovers",
        CHANGED,
    ),
    Damage(
        "a trace outside",
        record("baseline", 1, "trace", "../../../etc/passwd"),
        "paths hashes leftovers",
        "points outside",
    ),
    Damage("the program outside", manifest("model.program", "/etc/passwd"), "paths", "is not a path within"),
    Damage("a link out", link(TRACE, "{}"), "paths", "points outside the bundle"),
    Damage("a pipe", pipe(TRACE), "paths", "is not a regular file"),
    # files
    Damage("no trace", delete(TRACE), "files", "is missing; manifest.json names it"),
    Damage("no program", delete("model/tiny.pte"), "files", "names it at model.program"),
    Damage(
        "no outputs",
        delete(f"{ACCELERATED}/timed-00/outputs.npz"),
        "files",
        "every run that succeeds writes it",
    ),
    Damage("no analysis", delete(ANALYSIS), "analyses", "every run that succeeds writes it"),
    Damage("no ceilings", delete(f"{ACCELERATED}/ceilings.json"), "analyses", "ceilings"),
    Damage("a repetition moved", moved, "files leftovers", "is a directory without a repetition"),
    Damage("a bit of a trace", both(inflate(TRACE), flip(TRACE, -1)), "hashes", "its SHA-256 is"),
    Damage("a bit of a compressed trace", flip(TRACE, -1), "hashes traces", "its content cannot be read"),
    Damage("half a trace", cut(TRACE), "hashes traces", "round-02/trace.etdump"),
    Damage("an empty trace", write(TRACE, b""), "hashes traces", "the file is empty"),
    Damage("another hash", record("accelerated", 2, "trace_sha256", "0" * 64), "hashes", "states 000000000000"),
    Damage("a bit of the program", flip("model/tiny.pte", -1), "hashes", "model/tiny.pte : its SHA-256 is"),
    Damage("another method", manifest("model.methods", ["backward"]), "program", "is ['backward']"),
    Damage("truncated analysis", cut(ANALYSIS), "analyses", "not valid JSON"),
    Damage("newer analysis", put(ANALYSIS, "schema", "opscope.analysis/4"), "analyses", "upgrade opscope"),
    Damage("older analysis", put(ANALYSIS, "schema", "opscope.analysis/2"), "analyses", "an earlier opscope wrote it"),
    Damage("truncated ceilings", cut(f"{ACCELERATED}/ceilings.json"), "hashes", "its SHA-256 is"),
    Damage(
        "ceilings of before without a probe",
        put(f"{ACCELERATED}/ceilings.json", "origin", "cache"),
        "hashes",
        "ceilings.json : its SHA-256 is",
    ),
    Damage("a temporary file", write(".analysis.json.00004711.tmp"), "leftovers", "temporary file"),
    Damage("an unknown attempt", write(f"{BASELINE}/round-99/trace.etdump.zst"), "leftovers", "without a repetition"),
    # traces and processes
    Damage(
        "fewer inferences",
        forge(etdump(INFERENCE, repeat=2)),
        "traces",
        "holds 2 inferences",
    ),
    Damage("a parent too short", forge(etdump(SHORT_PARENT, repeat=3)), "traces", "is shorter than"),
    Damage(
        "a call shorter than its inference",
        record("baseline", 1, "measurement.wall_ns.2", 1000),
        "hashes traces",
        "1,000",
    ),
    Damage("another thread count", record("baseline", 1, "measurement.threads", 2), "hashes", CHANGED),
    Damage("no proof", record("baseline", 1, "measurement.mask", None), "hashes", CHANGED),
    Damage("another proof", record("baseline", 1, "measurement.mask.cleared", []), "hashes", CHANGED),
    Damage(
        "other outputs stated",
        record("baseline", 1, "measurement.output_sha256", "1" * 64),
        "files hashes",
        CHANGED,
    ),
    Damage("a bit of the outputs", flip(f"{BASELINE}/timed-00/outputs.npz", 200), "hashes", "timed-00/outputs.npz"),
    Damage(
        "other inputs",
        record("baseline", 1, "measurement.inputs.0.shape", [1, 3, 9, 9]),
        "hashes",
        CHANGED,
    ),
    # figures
    Damage("another sample", put(ANALYSIS, "traced.samples_ns.3", up), "analyses", "traced.samples_ns[3]"),
    Damage("another untraced sample", put(ANALYSIS, "latency.samples_ns.3", up), "analyses", "samples_ns[3]"),
    Damage("another share", put(ANALYSIS, "operators.0.share", up), "analyses", "operators[0].share"),
    Damage(
        "times exchanged",
        swap(ANALYSIS, f"{BASELINE}/analysis.json"),
        "analyses",
        "variant",
    ),
    Damage("another kind", put(ANALYSIS, "operators.0.kind", "softmax"), "analyses", "states softmax"),
    Damage("a finding changed", put(ANALYSIS, "ruled_out.0.title", "all is well"), "analyses", "all is well"),
    Damage("another verdict", put("comparison.json", "end_to_end.verdict", "slower"), "comparisons", "states slower"),
    Damage("another headline", replace("report.md", "without it", "with it"), "reports", "states …"),
    Damage("half a page", cut("report.html"), "reports", "lines, the traces give"),
    Damage(
        "traces exchanged",
        swap(TRACE, f"{BASELINE}/round-02/trace.etdump.zst"),
        "hashes traces",
        "its SHA-256",
    ),
    Damage(
        "traces exchanged, hashes too",
        both(swap(TRACE, f"{BASELINE}/round-02/trace.etdump.zst"), rehash),
        "traces",
        "wall_ns",
    ),
    Damage(
        "a call prolonged",
        record("baseline", 1, "measurement.wall_ns.2", 10**9, "timed"),
        "hashes",
        CHANGED,
    ),
    Damage(
        "a call prolonged and all recomputed",
        both(record("baseline", 1, "measurement.wall_ns.2", 10**9, "timed"), computed_anew),
        "hashes",
        CHANGED,
    ),
    Damage(
        "a ceiling raised and all recomputed",
        both(put(f"{ACCELERATED}/ceilings.json", "seconds", up), computed_anew),
        "hashes",
        "ceilings.json : its SHA-256 is",
    ),
    Damage(
        "a machine cooler than it was, all recomputed",
        both(record("baseline", 1, "before.temperature_celsius", 20.0, "timed"), computed_anew),
        "hashes",
        CHANGED,
    ),
)
