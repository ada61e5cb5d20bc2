"""The page of the zoo: what the results of a run hold, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from opscope.core.units import share_text, size_text
from zoo.catalogue import catalogue
from zoo.limits import limit_of
from zoo.record import Record, Results
from zoo.trial import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zoo.limits import Limit
    from zoo.record import Counted, Export, Run

RESULTS = ROOT / "zoo" / "results.json"
FP32 = "fp32"
ENOUGH = 0.95
"""Share of a model's delegate time that is to be attributed exactly."""
_COLUMNS = (
    "model", "type", "error", "delegated operators", "MACs", "attributed exactly", "accounted", "portable time",
    "preflight", "peak memory",
)  # fmt: skip


def read_results() -> Results:
    """The results of the run that is committed."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results)


class Summary(msgspec.Struct, frozen=True):
    """The figures of the page's first lines.

    Attributes:
        models: that were tried in fp32.
        passed: of those, the ones that export, agree with PyTorch and run.
        exact: share of the delegates' time that is attributed exactly, over all of them.
        enough: models of which at least ``ENOUGH`` is, or every operator where none takes a microsecond.
        trials: models and number types.
        passed_trials: of those, the ones that pass.
        largest_difference: of the sum of a split from its latency, as a share.
        counted: programs whose calls and operators are those that preflight counts.
    """

    models: int
    passed: int
    exact: float
    enough: int
    trials: int
    passed_trials: int
    largest_difference: float
    counted: int


def summary(results: Results) -> Summary:
    """What the results come to."""
    fp32 = [record for record in results.records if record.dtype == FP32]
    runs = [record.run for record in fp32 if record.run]
    every = [(record.preflight, record.run) for record in results.records if record.run]
    return Summary(
        models=len(fp32),
        passed=len(runs),
        exact=sum(run.exact_ns for run in runs) / sum(run.delegate_ns for run in runs),
        enough=sum(_share(run) >= ENOUGH for run in runs),
        trials=len(results.records),
        passed_trials=len(every),
        largest_difference=max(abs(run.split - 1) for _, run in every),
        counted=sum(planned == run.measured for planned, run in every),
    )


def _share(run: Run) -> float:
    if run.exact is not None:
        return run.exact
    return run.exact_operators / run.measured.delegated if run.measured.delegated else 1.0


def sections() -> Iterator[str]:
    """The page below its title."""
    results = read_results()
    yield _introduction(results)
    yield _meaning()
    found = {(record.name, record.dtype): record for record in results.records}
    kinds = list(dict.fromkeys(entry.kind for entry in catalogue()))
    for kind in kinds:
        entries = [entry for entry in catalogue() if entry.kind == kind]
        rows = [found[key] for entry in entries for dtype in entry.dtypes if (key := (entry.name, dtype)) in found]
        if not rows:
            continue
        yield f"## {kind[0].upper()}{kind[1:]}\n\n{_table(_COLUMNS, [_row(record) for record in rows])}"
    yield from _failures(results)


def _introduction(results: Results) -> str:
    told = summary(results)
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    limits = Counter(_whose(record) for record in _failed(results))
    whose = ", ".join(f"{count} {name}'s" for name, count in limits.most_common())
    return (
        f"**{told.passed} of {told.models} models export, agree with PyTorch and run in fp32**; with other number "
        f"types {told.passed_trials} of {told.trials} trials.\n"
        f"{share_text(told.exact)} of the time of their delegates is attributed exactly, in {told.enough} of "
        f"{told.passed} models at least {share_text(ENOUGH)}.\n"
        f"The split of the latency sums to it in every run, within {told.largest_difference:.0e}. Preflight counts the "
        f"calls and operators of {told.counted} of {told.passed_trials} programs as the trace has them.\n"
        f"{_untried(results)}Failures by whose limit it is: {whose or 'none'}; [reasons](#failures) below.\n\n"
        f"Run on {results.date}, {results.machine}, with {versions}. `make zoo` runs it anew: each model is exported, "
        "compared with\nPyTorch, looked at by preflight, and profiled with acceleration on and off, a few inferences "
        "each.\nWeights are random, sizes small; the page is about what works, and says nothing of speed or accuracy.\n"
    )


def _untried(results: Results) -> str:
    """What the catalogue holds beyond the results."""
    tried = {(record.name, record.dtype) for record in results.records}
    left = [
        f"{entry.name} {dtype}" for entry in catalogue() for dtype in entry.dtypes if (entry.name, dtype) not in tried
    ]
    return f"In the catalogue, but not tried in this run: {', '.join(left)}.\n" if left else ""


def _meaning() -> str:
    rows = [
        ["error", "largest difference from the model in PyTorch and fp32, relative to the largest output"],
        ["delegated operators", "of the program, those that XNNPACK runs"],
        ["MACs", "share of the multiply-accumulates that XNNPACK runs"],
        ["attributed exactly", "share of the delegates' time whose operators are known for certain; operators, where"],
        ["", "none of them takes a microsecond, below which XNNPACK does not resolve time"],
        ["accounted", "share of the latency that operators take; the rest is the framework's"],
        ["portable time", "share of the latency outside of delegates, and what preflight predicts by nominal rates"],
        ["preflight", "whether it counts calls of delegates, their operators and portable ones as the trace does"],
        ["peak memory", "largest resident size of a process that ran the program"],
    ]
    return _table(("column", "is"), rows)


def _row(record: Record) -> list[str]:
    if record.export is None or record.run is None or record.failure:
        failure = record.failure.step if record.failure else "?"
        return [record.name, record.dtype, f"[{failure} fails](#failures)", *[""] * (len(_COLUMNS) - 3)]
    export, run = record.export, record.run
    return [
        record.name,
        record.dtype,
        f"{export.error:.0e}",
        _delegated(export.operators),
        _macs(export),
        _exactly(run),
        share_text(1 - run.framework),
        share_text(run.portable) + ("" if run.forecast is None else f", predicted {share_text(run.forecast)}"),
        _counted(record.preflight, run.measured),
        size_text(run.peak_bytes),
    ]


def _delegated(counted: Counted) -> str:
    return f"{counted.delegated} of {counted.delegated + counted.portable}"


def _macs(export: Export) -> str:
    return share_text(export.delegated_macs / export.macs) if export.macs else "none"


def _exactly(run: Run) -> str:
    if run.exact is not None:
        return share_text(run.exact)
    return (
        f"{run.exact_operators} of {run.measured.delegated} operators"
        if run.measured.delegated
        else "nothing delegated"
    )


def _counted(planned: Counted | None, measured: Counted) -> str:
    if planned is None or planned == measured:
        return "as the trace"
    before, after = msgspec.structs.astuple(planned), msgspec.structs.astuple(measured)
    names = ("calls", "delegated", "portable")
    differ = [f"{old} {name}, trace {new}" for name, old, new in zip(names, before, after, strict=True) if old != new]
    return ", ".join(differ)


def _failed(results: Results) -> list[Record]:
    return [record for record in results.records if record.failure]


def _whose(record: Record) -> str:
    limit = _limit(record)
    return limit.whose if limit else "nobody"


def _limit(record: Record) -> Limit | None:
    return limit_of(record.name, record.failure.problem) if record.failure else None


def _failures(results: Results) -> Iterator[str]:
    failed = _failed(results)
    if not failed:
        return
    yield "## Failures\n"
    for limit in dict.fromkeys(map(_limit, failed)):
        records = [record for record in failed if _limit(record) == limit]
        names = ", ".join(f"`{record.name}` ({record.dtype})" for record in records)
        said = records[0].failure.problem if records[0].failure else ""
        if limit is None:
            yield f"{names}: nobody has looked yet: {said}\n"
            continue
        example = f"\n```python\n{limit.example}```\n" if limit.example else ""
        yield f"### {limit.title}\n\n{names}; the limit is {limit.whose}'s.\n\n{limit.reason}\n{example}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
