"""What ran, on what, with which features switched off and how, how to run it again, and how far to trust it."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from opscope.analysis.compare.outputs import identical
from opscope.analysis.findings.message import MessageKind, grade_left, note, part_warning, warning
from opscope.bundle.manifest import Mechanism, Role
from opscope.bundle.settings import NOTHING_OFF, ExperimentSettings, words_of
from opscope.core.printable import shell_command
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, ratio_text, size_text
from opscope.reports.content.content import NOT_KNOWN, limits
from opscope.reports.document.blocks import (
    Bullets,
    Code,
    Details,
    Format,
    Section,
    Sentence,
    TableCell,
    column,
    facts,
    table,
)
from opscope.reports.document.messages import (
    COMPARISON,
    EXPERIMENT,
    LATENCY,
    GradedSubjects,
    grade_text,
    grades_text,
    sentence,
)
from opscope.reports.document.template import WRITTEN_BY
from opscope.reports.sections.latency import calls_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Message, Quality
    from opscope.bundle.manifest import ConfigRequest, Environment, ExperimentRequest, Manifest, MaskProof, Model
    from opscope.core.parts import PartFailure
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Block, TableBlock


_FILES = 8


def reproduction_section(manifest: Manifest) -> Section:
    """The command that runs the experiment again."""
    again = reproduction(manifest)
    blocks: list[Block] = [Code(again[0]), Sentence(again[1])] if again else []
    answer = f"{manifest.plan.rounds} rounds, {counted_text(len(manifest.repetitions), 'repetition')}"
    shown = blocks or [Sentence("The command to rerun it is unknown.")]
    return Section("How to Reproduce", shown, "again", "What ran", answer, folded=True)


def metadata_section(content: ReportContent) -> Section:
    """The model, the machine, the plan."""
    rows = [(name, value or NOT_KNOWN) for name, value in _rows(content)]
    answer = f"{content.manifest.model.name}, {machine_text(content.manifest)}"
    return Section("Metadata", [facts(rows)], "run", answer=answer, folded=True)


def _rows(content: ReportContent) -> Iterator[tuple[str, str]]:
    manifest = content.manifest
    environment, plan = manifest.environment, manifest.plan
    yield "Model", _model(manifest.model)
    for name, model in manifest.programs.items():
        yield f"Model of {name}", _model(model)
    yield "Number type", manifest.model.dtype or ""
    yield "Delegates", ", ".join(manifest.model.backends or []) or "none"
    yield "Config File", content.config or _config(manifest) or "none is recorded"
    yield "Target", f"{manifest.target.kind} {manifest.target.address}".strip()
    yield "Device", machine_text(manifest)
    yield "Features", _features(environment)
    yield "Governor", NOT_KNOWN if environment.system is None else environment.governor or "cannot be read"
    yield "Software", ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    for name, options in _options(manifest).items():
        yield name, options
    if environment.variables:
        yield "Environment Variables", ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    yield "Measured", manifest.created
    each = f"{_known(plan.warmup)} warm-up and {_known(plan.runs)} measured inferences per process"
    yield "Plan", f"{counted_text(plan.rounds, 'round')}, {each}, seed {_known(plan.seed)}"
    failed = len(manifest.failures())
    yield "Repetitions", f"{len(manifest.repetitions)} run, {failed} failed; status {manifest.status.value}"
    yield "Traces analysed", _files(manifest)
    yield "Report", f"written by {WRITTEN_BY}"


def _options(manifest: Manifest) -> dict[str, str]:
    """Options of runtimes: of each variant where they differ, else once."""
    told = {
        variant.name: ", ".join(f"{name}={value}" for name, value in sorted(variant.options.items()))
        for variant in manifest.variants
        if variant.options
    }
    alike = len(told) == len(manifest.variants) and len(set(told.values())) == 1
    return {"Session Options" if alike else f"Session Options of {name}": text for name, text in told.items()}


def _model(model: Model) -> str:
    size = "size not known" if model.size is None else size_text(model.size)
    return f"{model.name} ({model.source}), {size}, sha256 {_known(model.sha256)}"


def _known(value: object) -> str:
    return NOT_KNOWN if value is None or value == "" else str(value)


def _features(environment: Environment) -> str:
    if environment.features is None:
        return NOT_KNOWN
    return ", ".join(environment.features) or "none that can be switched"


def _config(manifest: Manifest) -> str | None:
    """The file that asked for a run of opscope; None for `opscope profile`."""
    config = manifest.request.config if manifest.request else None
    return config.file if config else None


def _files(manifest: Manifest) -> str:
    """The traces that were analysed, in words."""
    paths: Sequence[str] = [
        repetition.trace
        for repetition in manifest.repetitions
        if repetition.ok and repetition.trace and repetition.inferences
    ]
    listed = ", ".join(paths[:_FILES])
    return f"{listed} and {len(paths) - _FILES} more" if len(paths) > _FILES else listed


def machine_text(manifest: Manifest) -> str:
    """Its name where it has one, its CPU, how much of it could be used, its system, and what emulates it."""
    environment, name = manifest.environment, f"{manifest.device}: " if manifest.device else ""
    if environment.system is None:
        return f"{name}{NOT_KNOWN}"
    cpu = _device(environment) or environment.cpu or "unknown CPU"
    emulator = f", emulated by {environment.emulator}" if environment.emulator else ""
    system = f"{environment.system} {environment.kernel} on {environment.machine}"
    return f"{name}{cpu}, {_cpus(environment)}, {system}{emulator}"


def _cpus(environment: Environment) -> str:
    counts = (environment.usable_cpus, environment.logical_cpus)
    usable, logical = ("an unknown number" if count is None else count for count in counts)
    granted = "" if environment.cpu_quota is None else f" (cgroups limit it to {environment.cpu_quota:g} CPUs)"
    return f"{usable} of {logical} CPUs{granted}"


def _device(environment: Environment) -> str | None:
    """What a phone is, by what it tells of itself."""
    phone = environment.phone
    if phone is None:
        return None
    names = " ".join(filter(None, (phone.manufacturer, phone.model)))
    android = f"Android {phone.android}" if phone.android else None
    power = f"power settings {phone.power}" if phone.power else None
    return ", ".join(filter(None, (names, phone.soc, android, power))) or None


_OF_PROFILE = re.compile(r"(accelerated|baseline|runner|without-[\w.-]+?)(-t\d+)?")


def reproduction(manifest: Manifest) -> tuple[str, str] | None:
    """How to run the experiment of a bundle again, as one line for a shell, and what else it takes, as one sentence.

    The line is to be started in the directory that the first one was; the sentence is empty where nothing else is
    needed. None where that is not known.

    It is not where another tool ran it, or a file did whose name an earlier version did not keep.
    """
    if manifest.plan.timeout_seconds is None:
        return None
    request, note = manifest.request, ""
    if request is not None and request.config is not None:
        words = list(_run_words(request.config, request))
        suffix = PurePath(request.config.file).suffix
        note = f"The bundle keeps the file as it was at measurement time: config{suffix}."
    elif request is None and not all(_OF_PROFILE.fullmatch(v.name) and not v.affinity for v in manifest.variants):
        return None
    else:
        words = list(_profile_words(manifest, request))
    return shell_command(words), note


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
    yield from _line("check" if against else "profile", manifest.model.source, [*against, *rest])


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


def trust_section(content: ReportContent, failures: Sequence[PartFailure]) -> Section:
    """The grade and its reasons, the limits of the figures, and the checks."""
    messages = [*switch_messages(content), *limits(content), *(warning(part_warning(one)) for one in failures)]
    blocks = [*quality_blocks(content.quality, graded_subjects(content)), Bullets([sentence(one) for one in messages])]
    ruled_out = [*content.ruled_out, *(content.quality.ruled_out if content.quality else [])]
    for title, kind in (
        ("Passed Checks", MessageKind.PASSED),
        ("Further Analysis: Checks Not Made", MessageKind.NOT_CHECKED),
    ):
        found = [one for one in ruled_out if one.kind is kind]
        if found:
            count = f"{title.capitalize()}: {len(found)}." if kind is MessageKind.PASSED else ""
            blocks.append(Details(f"{title} ({len(found)})", [Bullets(_named(found))], count))
    return Section("Measurement Quality", blocks, "trust", "Trust")


def _named(messages: Iterable[Message]) -> list[str]:
    return [f"{one.rule}: {one.title}" for one in messages]


def graded_subjects(content: ReportContent) -> GradedSubjects:
    """Return what a report grades: the latency, the comparison, and the experiment where others make it worse."""
    subjects = [
        (LATENCY, content.shown.quality if content.shown else None),
        (COMPARISON, content.primary.quality if content.primary else None),
    ]
    grades = {quality.grade for _, quality in subjects if quality}
    if content.quality and content.quality.grade not in grades:
        subjects.append((EXPERIMENT, content.quality))
    return subjects


def quality_blocks(quality: Quality | None, subjects: GradedSubjects) -> list[Block]:
    """The grades, and what limits them."""
    if quality is None:
        return []
    return [Sentence(f"{grades_text(subjects)}."), _concerns(quality)]


def _concerns(quality: Quality) -> TableBlock:
    return table(
        quality.reasons,
        column("what limits it", Format.TEXT, lambda told: TableCell(told.title, told.rule)),
        column("to", Format.TEXT, lambda told: grade_text(grade_left(told))),
        column("what to do", Format.TEXT, lambda told: told.next_step),
    )


_SITES = {Mechanism.TRAP: "trapped cpuid instruction", Mechanism.HWCAP: "library"}
_OUTPUTS = {True: "outputs identical", False: "outputs differ", None: "outputs not compared"}


def switch_messages(content: ReportContent) -> list[Message]:
    """The mechanism, what it counted, and what it changes by itself; nothing for ``cpuinfo``."""
    proof = _proof(content.manifest)
    if proof is None:
        return []
    controls = [control_text(proof.mechanism, control) for control in content.controls]
    return [note(text) for text in (_counted(proof), *controls, *_emulated(content, proof.mechanism))]


def _emulated(content: ReportContent, mechanism: Mechanism) -> Iterator[str]:
    """What a mechanism changes by itself on an emulated CPU, whose times say nothing."""
    names = {variant.name for variant in content.manifest.with_role(Role.CONTROL)}
    for agreement in content.agreements:
        if agreement.baseline in names:
            outputs = _OUTPUTS[identical(agreement.outputs)]
            yield f"{_beside(mechanism)}: {outputs}; no times are compared on an emulated CPU"


def _beside(mechanism: Mechanism) -> str:
    return f"{mechanism.value} with all features on, compared with a run without it"


def control_text(mechanism: Mechanism, control: Comparison) -> str:
    """What a mechanism changes by itself, as one sentence."""
    end = control.end_to_end
    ratio = "time not compared" if end.speedup is None else f"time {ratio_text(1 / end.speedup)}"
    if end.ci95:
        ratio = f"{ratio} (95 % interval {ratio_text(1 / end.ci95[1])} to {ratio_text(1 / end.ci95[0])})"
    verdicts = {
        Verdict.NO_DIFFERENCE: "no difference detected",
        Verdict.UNDECIDABLE: "inconclusive: add rounds",
        Verdict.WITHHELD: end.reason or "withheld",
        Verdict.FASTER: "a difference, so the mechanism itself changes the time",
        Verdict.SLOWER: "a difference, so the mechanism itself changes the time",
    }
    text = f"{_OUTPUTS[identical(control.outputs)]}, {ratio}, {verdicts[end.verdict]}"
    return f"{_beside(mechanism)}: {text}"


def _counted(proof: MaskProof) -> str:
    places = counted_text(proof.sites or 0, _SITES[proof.mechanism])
    where = f"{places}, {_executed(proof)}" if proof.mechanism is Mechanism.TRAP else places
    answers = counted_text(proof.masked or 0, "answer")
    text = f"features hidden by {proof.mechanism.value}: {where} per process, {answers} with fewer features"
    if proof.sites_outside:
        return f"{text}; {counted_text(proof.sites_outside, 'place')} outside known functions not switched"
    return text


def _executed(proof: MaskProof) -> str:
    if proof.sites_executed is None:
        return f"executed {counted_text(proof.executions or 0, 'time')}"
    return f"{proof.sites_executed} of them executed, {counted_text(proof.executions or 0, 'time')}"


def _proof(manifest: Manifest) -> MaskProof | None:
    """The first proof of a process that ran with fewer features, where the mechanism counted something."""
    for repetition in manifest.repetitions:
        mask = repetition.measurement.mask if repetition.measurement else None
        if repetition.ok and mask and mask.cleared and mask.mechanism in _SITES:
            return mask
    return None
