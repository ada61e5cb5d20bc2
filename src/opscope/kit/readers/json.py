"""The JSON files of the Arm profiling kit as typed values: manifest, metrics, pipeline summary, config.

Only the fields that opscope uses are typed; others may hold anything. The kit writes ``NaN`` into JSON, which no
standard allows; here it becomes a float that is not finite, and the caller says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.system.memory import file_bytes
from opscope.core.system.usage import ThreadCount

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
_LONGEST_INTEGER = 18
_HINT = "the kit was interrupted while writing it, or it was edited; repair it or move it out of the directory"


class Metrics(ThreadCount, frozen=True):
    """Statements of the kit about the latency of an experiment, in ms, and the files that it read them from."""

    runs: int | None = None
    median_ms: float | str | None = None
    etdump: str | None = None
    log: str | None = None


class ExperimentKey(ThreadCount, msgspec.Struct, frozen=True):
    """An experiment at one thread count."""

    experiment: str

    @property
    def text(self) -> str:
        """Return the key as the kit's file names have it."""
        return self.experiment if self.threads is None else f"{self.experiment}_t{self.threads}"


class Result(ExperimentKey, frozen=True):
    """One experiment at one thread count, as a manifest, metrics file or summary lists it."""

    mode: str | None = None
    status: str | None = None
    runs: int | None = None
    warmup: int | None = None
    paths: dict[str, str | None] = {}
    metrics: Metrics | None = None

    @property
    def key(self) -> ExperimentKey:
        """Return the experiment with its thread count, which may be recorded with its metrics."""
        threads = self.metrics.threads if self.threads is None and self.metrics else self.threads
        return ExperimentKey(self.experiment, threads=threads)


class PairFields(ThreadCount, frozen=True):
    """A comparison that the config requests; a side is named alone, or with its thread count."""

    baseline: ExperimentKey | str
    candidate: ExperimentKey | str
    baseline_threads: int | None = None
    candidate_threads: int | None = None
    label: str | None = None

    @property
    def sides(self) -> tuple[ExperimentKey, ExperimentKey]:
        """Return the baseline and the candidate, each with the thread count that is recorded next to it."""
        return _counted_side(self.baseline, self.baseline_threads, self.threads), _counted_side(
            self.candidate, self.candidate_threads, self.threads
        )


def _counted_side(side: ExperimentKey | str, *counts: int | None) -> ExperimentKey:
    """Return a side with the first thread count that is known of it."""
    key = ExperimentKey(side) if isinstance(side, str) else side
    return ExperimentKey(key.experiment, threads=next((n for n in (key.threads, *counts) if n is not None), None))


class AnalysisPlan(msgspec.Struct, frozen=True):
    """The part of a config that says what to compare."""

    compare_pairs: list[PairFields] = []
    comparisons: list[PairFields] = []

    @property
    def pairs(self) -> list[PairFields]:
        """Return all comparisons that are requested."""
        return [*self.compare_pairs, *self.comparisons]


class PlannedPairs(AnalysisPlan, frozen=True):
    """A file that says what to compare, at its top or in a part of its own."""

    analysis: AnalysisPlan | None = None

    @property
    def pairs(self) -> list[PairFields]:
        """Return the comparisons that are requested, at the top or in the analysis part."""
        return [*(self.analysis.pairs if self.analysis else []), *self.compare_pairs, *self.comparisons]


class Executorch(msgspec.Struct, frozen=True):
    """The checkout of ExecuTorch that the kit found: its commit, and whether it had local changes."""

    sha: str | None = None
    dirty: bool | None = None


class Listing(PlannedPairs, frozen=True):
    """manifest.json, metrics.json or a pipeline summary: ``results`` in the first two, ``runs`` in the last."""

    generated_at: str | None = None
    config: str | None = None
    model: str | None = None
    executorch: Executorch | None = None
    results: list[Result] = []
    runs: list[Result] = []


class PlannedExperiment(msgspec.Struct, frozen=True):
    """An experiment of a config."""

    name: str
    mode: str | None = None
    runs: int | None = None
    warmup: int | None = None
    threads: list[int] | None = None


class KitConfigFields(PlannedPairs, frozen=True):
    """The kit's configuration."""

    model: str | None = None
    experiments: list[PlannedExperiment] = []


class StatedSide(msgspec.Struct, frozen=True):
    """One side of a comparison that the kit made: as it was called, and its median."""

    name: str = ""
    median_ms: float | str | None = None


class StatedComparison(msgspec.Struct, frozen=True):
    """A ``*_robust_comparison.json``: the first side is the baseline of the speedup."""

    config1: StatedSide = StatedSide()
    config2: StatedSide = StatedSide()


class AnalysisSummary(msgspec.Struct, frozen=True):
    """The analysis_summary.json."""

    etrecord: str | None = None


def decode(path: Path, kind: type[T]) -> T:
    """Return a JSON file as a typed value."""
    data = file_bytes(path)
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_int=_parse_integer)
        return msgspec.convert(value, kind)
    except UnicodeDecodeError as error:
        raise TraceFormatError("not valid UTF-8", where=path, offset=error.start, hint=_HINT) from error
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg}, line {error.lineno:,}"
        raise TraceFormatError(problem, where=path, offset=error.pos, hint=_HINT) from error
    except RecursionError:
        raise TraceFormatError("nested too deeply", where=path, hint=_HINT) from None
    except (msgspec.ValidationError, ValueError) as error:
        raise TraceFormatError(f"a field differs from what the kit writes: {error}", where=path, hint=_HINT) from error


def _parse_integer(text: str) -> int:
    """Return an integer; raise an error where it has too many digits."""
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text):,} digits")
    return int(text)
