"""The command that runs an experiment again: the same target, variants, inputs, effort and pacing."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Role
from opscope.bundle.settings import NOTHING_OFF, ExperimentSettings, words_of
from opscope.core.printable import shell_command
from opscope.reports.sections.latency import calls_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opscope.bundle.manifest import ConfigRequest, ExperimentRequest, Manifest

_OF_PROFILE = re.compile(r"(accelerated|baseline|runner|without-[\w.-]+?)(-t\d+)?")


class Reproduction(NamedTuple):
    """How to run an experiment again."""

    command: str  # one line for a shell, to be started in the directory that the first one was
    note: str  # what else it takes, as one sentence; empty where nothing else


def reproduction(manifest: Manifest) -> Reproduction | None:
    """How to run the experiment of a bundle again; None where that is not known.

    It is not where another tool ran it, or a file did whose name an earlier version did not keep.
    """
    if manifest.plan.timeout_seconds is None:
        return None
    request, note = manifest.request, ""
    if request is not None and request.config is not None:
        words = list(_run_words(request.config, request))
        suffix = PurePath(request.config.file).suffix
        note = f"The file as it was when this was measured is config{suffix} in the bundle."
    elif request is None and not all(_OF_PROFILE.fullmatch(v.name) and not v.affinity for v in manifest.variants):
        return None
    else:
        words = list(_profile_words(manifest, request))
    return Reproduction(shell_command(words), note)


def _run_words(config: ConfigRequest, request: ExperimentRequest) -> Iterator[str]:
    """`opscope run`, into another directory: that of the file has this bundle in it."""
    options = [("--only", ",".join(config.only)), ("--target", config.target), ("--scheduler", config.scheduler)]
    flags = ["--oversubscribe"] if request.oversubscribe else []
    options.append(("--out", f"{PurePath(config.file).stem}-again"))
    yield from _line("run", config.file, [*_given(options), *flags])


def _profile_words(manifest: Manifest, request: ExperimentRequest | None) -> Iterator[str]:
    plan = manifest.plan
    each = len(plan.calls) or 1  # runs and warm-up count calls, their options rounds of calls
    threads = dict.fromkeys(variant.threads for variant in manifest.variants)
    options = [
        ("--target", manifest.target.name),
        ("--dtype", None if manifest.model.given else manifest.model.dtype),
        *_switched(manifest),
        ("--threads", ",".join(map(str, threads))),
        ("--rounds", request.rounds if request else plan.rounds),
        ("--runs", (plan.runs or 0) // each),
        ("--warmup", (plan.warmup or 0) // each),
        ("--methods", calls_text(plan.calls)),
        ("--seed", plan.seed),
        ("--timeout", plan.timeout_seconds),
    ]
    against = [word for other in manifest.programs.values() for word in ("--against", other.source)]
    rest = [*_given(options), *_flags(manifest), *_said(request)]
    yield from _line("profile", manifest.model.source, [*against, *rest])


def _switched(manifest: Manifest) -> list[tuple[str, str | None]]:
    """What is off in the baseline; in a build of the user's nothing can be switched, so nothing is said."""
    baselines = manifest.with_role(Role.BASELINE)
    if manifest.with_role(Role.INTERMEDIATE) or manifest.programs:
        return []
    if baselines:
        return [("--ablate", ",".join(baselines[0].ablated or []))]
    asked = manifest.request is None or manifest.request.ablate == (NOTHING_OFF,)
    return [("--ablate", NOTHING_OFF)] if asked and manifest.with_role(Role.ACCELERATED) else []


def _flags(manifest: Manifest) -> Iterator[str]:
    if manifest.with_role(Role.INTERMEDIATE):
        yield "--ladder"
    # A build may trace always, or nothing can: then there is one arm, whatever was asked.
    if not manifest.plan.timed_order and manifest.left_out.trace is None and not manifest.environment.runs_build:
        yield "--traced-only"


def _said(request: ExperimentRequest | None) -> Iterator[str]:
    """Options that neither the plan nor the variants tell of."""
    if request is None:
        return
    yield from words_of(request, (name for name in ExperimentSettings.__struct_fields__ if name not in _TOLD))
    yield from _given([("--models", request.models)])


_TOLD = {
    *("ablate", "ladder", "threads", "rounds", "runs", "warmup", "dtype", "seed", "timeout", "untraced", "methods"),
}
"""Settings that plan and variants tell of, as they became."""


def _given(options: Iterable[tuple[str, str | float | None]]) -> Iterator[str]:
    """Names and values of options that have one."""
    for name, value in options:
        if value is not None and value != "":
            yield from (name, f"{value:.17g}" if isinstance(value, float) else str(value))


def _line(command: str, argument: str, options: list[str]) -> list[str]:
    """The whole line; an argument that begins with a dash comes last, where it cannot be taken for an option."""
    begin = ["opscope", command]
    return [*begin, *options, "--", argument] if argument.startswith("-") else [*begin, argument, *options]
