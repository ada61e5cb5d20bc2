"""The gate against the stored history of a model on its device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.analysis.compare.compare import ComparedSide
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD, Terms
from opscope.bundle.bundle import is_bundle
from opscope.bundle.manifest import device_text
from opscope.core.errors import MismatchError, NotFoundError, UsageError, did_you_mean
from opscope.fleet.analysis.history_gate import Predecessors, history_gate
from opscope.fleet.store.place import place_of
from opscope.fleet.store.querying import ask
from opscope.fleet.stored_bundle import origin_of, read_found
from opscope.fleet.stored_runs import ORDER, TRUSTED, run_filter
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import GateResult
from opscope.measurements.sides import usual_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Manifest, Variant
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.store.rows import Found
    from opscope.fleet.stored_runs import RunFilter

HISTORY = "store:"
"""How a baseline that is a history begins; behind it stands a filter."""


def check_history(
    candidate: str | Path,
    against: str,
    *,
    store: str | Path | None = None,
    threshold: float | None = None,
) -> GateResult:
    """Whether a bundle is slower than its stored predecessors, by more than is let through and their scatter explains.

    Its predecessors are the stored runs of the same model, number type, variant, threads, CPUs, kind of target, arm and
    device; whatever the filter says about one of these stands in its place.

    Args:
        candidate: a bundle (its accelerated variant) or ``BUNDLE#variant``.
        against: ``store:`` and which runs, as ``where`` of :func:`opscope.stored_history`.
        store: directory or URL; None: that of the environment variable OPSCOPE_STORE, else ``opscope-store``.
        threshold: the largest slowdown that is let through, as a fraction; None: 3 %.

    Raises:
        NotFoundError: there is no such bundle or variant, or no store.
        MismatchError: no stored run can be compared with it.
        UsageError: the filter is wrong, or the candidate is not a bundle.
    """
    text, chosen = against.removeprefix(HISTORY), run_filter(against.removeprefix(HISTORY))
    path, _, name = str(candidate).partition("#")
    if not is_bundle(Path(path)):
        raise UsageError("only a bundle can be judged against a history", where=path, hint="give a bundle")
    found = read_found(Path(path))
    variant = _variant(found, name)
    analysis = found.analyses[variant.name]
    place = place_of(store)
    rows = _runs(place, _alike(found.manifest, variant, analysis.latency.source, text, chosen), found)
    if not rows:
        hint = "`opscope store list` shows what is stored; `store:device=NAME` uses runs under another device name"
        hint += "; runs graded do_not_trust do not count"
        raise MismatchError("the store has no comparable run", where=candidate, hint=hint)
    latencies = [float(row[1]) for row in rows]
    bundles = [str(row[0]) for row in rows]
    side = ComparedSide(
        label=f"history of {variant.name}",
        path=f"{HISTORY}{text} in {place.address}",
        headline_ns=sum(latencies) / len(latencies),
    )
    own = ComparedSide(label=variant.name, path=found.source, headline_ns=analysis.latency.median_ns)
    model = found.manifest.model_of(variant.name)
    same = [row for row in rows if row[2] == model.sha256]
    notes = [] if len(same) == len(rows) else [f"{len(rows) - len(same)} of the runs used a different program"]
    terms = Terms(DEFAULT_THRESHOLD if threshold is None else threshold, model.name, notes=notes)
    before = Predecessors(side, latencies, bundles, _operators(place, same, str(rows[0][3])))
    return shown_as(GateResult, history_gate(analysis, found.processes(variant.name), own, before, terms))


def _variant(found: Found, name: str) -> Variant:
    manifest = found.manifest
    variant = manifest.variant(name) if name else usual_variant(manifest)
    if variant is None:
        hint = did_you_mean(name, (one.name for one in manifest.variants))
        raise NotFoundError(f"the bundle has no variant {name!r}", where=found.source, hint=hint)
    if variant.name not in found.analyses:
        raise NotFoundError(f"no repetition of {variant.name} succeeded", where=found.source)
    return variant


def _alike(manifest: Manifest, variant: Variant, arm: str, text: str, chosen: RunFilter) -> RunFilter:
    """The filter, with what must be the same where it says nothing else."""
    said = {word.partition("=")[0].strip() for word in text.split(",")}
    same: dict[str, Any] = {
        "model": manifest.model_of(variant.name).name,
        "dtype": manifest.model_of(variant.name).dtype,
        "device": device_text(manifest),
        "target": manifest.target.kind,
        "variant": variant.name,
        "threads": variant.threads,
        "affinity": " ".join(map(str, variant.affinity)),
        "arm": arm,
    }
    for column, value in same.items():
        if column not in said:
            chosen = chosen.also(column, value)
    return chosen


def _runs(place: StoreLocation, chosen: RunFilter, found: Found) -> Sequence[tuple[Any, ...]]:
    """Bundle, latency, program and variant of the runs that fit and can be trusted, oldest first; without itself."""
    itself = ask(place, "SELECT bundle FROM bundles WHERE origin = ?", [origin_of(found.manifest)]).rows
    own = {row[0] for row in itself} | {found.bundle}
    sql = f"SELECT bundle, latency_ns, program_sha256, variant FROM runs {chosen.where} AND {TRUSTED} ORDER BY {ORDER}"  # noqa: S608 - names of ours; values are bound
    rows = [row for row in ask(place, sql, chosen.values).rows if row[0] not in own and row[1]]
    return rows[-chosen.last :] if chosen.last else rows


def _operators(
    place: StoreLocation, rows: Sequence[tuple[Any, ...]], variant: str
) -> dict[tuple[str, int | None, int | None, str], dict[str, float]]:
    """Times of the operators of some runs, by place and bundle."""
    found: dict[tuple[str, int | None, int | None, str], dict[str, float]] = {}
    if rows:
        where = "WHERE variant = ? AND bundle IN (SELECT unnest(?))"
        sql = f"SELECT method, instruction, position, name, bundle, time_ns FROM operators {where}"  # noqa: S608 - same
        for *at, bundle, time_ns in ask(place, sql, (variant, [row[0] for row in rows])).rows:
            found.setdefault((at[0], at[1], at[2], at[3]), {})[bundle] = float(time_ns)
    return found
