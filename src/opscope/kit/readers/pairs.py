"""Which experiments of a run of the kit are compared: as the user says, else as the kit was asked and as it did."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Role
from opscope.core.errors import UsageError
from opscope.core.printable import shell_command
from opscope.core.table import TraceWarning
from opscope.kit.readers.json import ExperimentKey, PairFields
from opscope.kit.readers.run import KitPair, named_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_OFF = re.compile(r"(?<![A-Za-z0-9])off(?![A-Za-z0-9])")
"""How the kit's templates name the experiment without acceleration: ``mac_sme2_off`` beside ``mac_sme2_on``."""


class Pairs(NamedTuple):
    """The comparisons of a run, the one to offer where there is none, and what is wrong with them."""

    found: tuple[KitPair, ...]
    offered: KitPair | None
    warnings: list[TraceWarning]

    def role(self, key: str) -> Role | None:
        """What an experiment is in them."""
        baseline = any(pair.baseline == key for pair in self.found)
        candidate = any(pair.candidate == key for pair in self.found)
        if baseline and candidate:
            return Role.INTERMEDIATE
        return Role.BASELINE if baseline else Role.CANDIDATE if candidate else None


def named_pairs(
    baseline_name: str | None, candidate_name: str | None, keys: Sequence[ExperimentKey], directory: Path
) -> Pairs:
    """The one comparison that the user asks for.

    Raises:
        NotFoundError: an experiment is not there, or at several thread counts.
        UsageError: one of the sides is missing, or both are the same.
    """
    names = (baseline_name, candidate_name)
    baseline, candidate = (None if name is None else named_key(name, keys, directory) for name in names)
    if baseline is None or candidate is None:
        lacking, there = ("--candidate", "--baseline") if candidate is None else ("--baseline", "--candidate")
        texts = ", ".join(key.text for key in keys)
        raise UsageError(f"{there} needs {lacking}", where=lacking, hint=f"name one of {texts[:400]}")
    if baseline == candidate:
        raise UsageError("an experiment cannot be compared with itself", where="--candidate", hint="name two")
    return Pairs((KitPair(baseline.text, candidate.text, None),), None, _thread_counts(baseline, candidate))


def asked_pairs(asked: Iterable[PairFields], keys: Sequence[ExperimentKey], directory: Path) -> Pairs:
    """The comparisons that the files of a run ask for or hold."""
    found: dict[tuple[str, str], KitPair] = {}
    warnings = []
    for pair in dict.fromkeys(asked):
        baseline, candidate = (fitting(side, keys) for side in pair.sides)
        if baseline is None or candidate is None:
            lost = pair.sides[0 if baseline is None else 1].experiment
            message = f"a comparison names the experiment {lost[:80]}, which is not in the run, or at several threads"
            warnings.append(TraceWarning("kit_pair_unknown", message, "compare two existing ones: DIR#a and DIR#b"))
            continue
        texts = baseline.text, candidate.text
        if texts not in found:
            warnings += _thread_counts(baseline, candidate)
        found.setdefault(texts, KitPair(*texts, pair.label or None))
    if found:
        return Pairs(tuple(found.values()), None, warnings)
    offered = _offered(keys)
    return Pairs((), offered, warnings or [_no_roles(offered, directory)])


def _offered(keys: Sequence[ExperimentKey]) -> KitPair | None:
    """The first two of one thread count whose names differ in on and off alone."""
    for key in keys:
        on = ExperimentKey(_OFF.sub("on", key.experiment), key.threads)
        if on != key and on in keys:
            return KitPair(key.text, on.text, None)
    return None


def _no_roles(offered: KitPair | None, directory: Path) -> TraceWarning:
    message = "no comparison was requested: the baseline experiment is unknown"
    if offered is None:
        hint = "name it: opscope report DIR --baseline NAME --candidate NAME"
        return TraceWarning("kit_no_roles", f"{message}, whatever their names are", hint)
    return TraceWarning("kit_no_roles", message, f"compare with: {comparing_command(directory, offered)}")


def comparing_command(directory: Path | str, pair: KitPair) -> str:
    """The command that compares two experiments of a run."""
    words = ("opscope", "report", str(directory), "--baseline", pair.baseline, "--candidate", pair.candidate)
    return shell_command(words)


def fitting(side: ExperimentKey, keys: Sequence[ExperimentKey]) -> ExperimentKey | None:
    """The experiment that a side of a comparison means; one without thread count means the only one there is."""
    found = [key for key in keys if key.experiment == side.experiment and side.threads in {None, key.threads}]
    return found[0] if len(found) == 1 else None


def _thread_counts(baseline: ExperimentKey, candidate: ExperimentKey) -> list[TraceWarning]:
    if baseline.threads == candidate.threads:
        return []
    message = f"{baseline.text} is compared with {candidate.text}: they ran with different thread counts"
    hint = "such a speedup mixes acceleration and threads; compare experiments with one thread count"
    return [TraceWarning("kit_pair_threads_differ", message, hint)]
