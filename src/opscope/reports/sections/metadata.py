"""Metadata of a report: what ran, on which machine, how to run it again, and how far to trust it."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from opscope.analysis.compare.outputs import are_identical
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
    """Return the section with the command that runs the experiment again."""
    again = reproduction(manifest)
    blocks: list[Block] = [Code(again[0]), Sentence(again[1])] if again else []
    answer = f"{manifest.plan.rounds} rounds, {counted_text(len(manifest.repetitions), 'repetition')}"
    listed = blocks or [Sentence("The command to rerun it is unknown.")]
    return Section("How to Reproduce", listed, "again", "What ran", answer, folded=True)


def metadata_section(content: ReportContent) -> Section:
    """Return the section on the model, the machine and the plan."""
    rows = [(name, value or NOT_KNOWN) for name, value in _metadata_rows(content)]
    answer = f"{content.manifest.model.name}, {machine_text(content.manifest)}"
    return Section("Metadata", [facts(rows)], "run", answer=answer, folded=True)


def _metadata_rows(content: ReportContent) -> Iterator[tuple[str, str]]:
    manifest = content.manifest
    environment, plan = manifest.environment, manifest.plan
    yield "Model", _model_text(manifest.model)
    for name, model in manifest.programs.items():
        yield f"Model of {name}", _model_text(model)
    yield "Number type", manifest.model.dtype or ""
    yield "Delegates", ", ".join(manifest.model.backends or []) or "none"
    yield "Config File", content.config or _config_file(manifest) or "none is recorded"
    yield "Target", f"{manifest.target.kind} {manifest.target.address}".strip()
    yield "Device", machine_text(manifest)
    yield "Features", _features_text(environment)
    yield "Governor", NOT_KNOWN if environment.system is None else environment.governor or "cannot be read"
    yield "Software", ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    for name, options in _options_by_label(manifest).items():
        yield name, options
    if environment.variables:
        yield "Environment Variables", ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    yield "Measured", manifest.created
    inferences = f"{_known_text(plan.warmup)} warm-up and {_known_text(plan.runs)} measured inferences per process"
    yield "Plan", f"{counted_text(plan.rounds, 'round')}, {inferences}, seed {_known_text(plan.seed)}"
    failed = len(manifest.failures())
    yield "Repetitions", f"{len(manifest.repetitions)} run, {failed} failed; status {manifest.status.value}"
    yield "Traces analysed", _trace_files_text(manifest)
    yield "Report", f"written by {WRITTEN_BY}"


def _options_by_label(manifest: Manifest) -> dict[str, str]:
    """Return the options of runtimes: per variant if they differ, else once."""
    texts = {
        variant.name: ", ".join(f"{name}={value}" for name, value in sorted(variant.options.items()))
        for variant in manifest.variants
        if variant.options
    }
    alike = len(texts) == len(manifest.variants) and len(set(texts.values())) == 1
    return {"Session Options" if alike else f"Session Options of {name}": text for name, text in texts.items()}


def _model_text(model: Model) -> str:
    size = "size not known" if model.size is None else size_text(model.size)
    return f"{model.name} ({model.source}), {size}, sha256 {_known_text(model.sha256)}"


def _known_text(value: object) -> str:
    return NOT_KNOWN if value is None or value == "" else str(value)


def _features_text(environment: Environment) -> str:
    if environment.features is None:
        return NOT_KNOWN
    return ", ".join(environment.features) or "none that can be switched"


def _config_file(manifest: Manifest) -> str | None:
    """Return the experiment file that asked for the run; None for ``opscope profile``."""
    config = manifest.request.config if manifest.request else None
    return config.file if config else None


def _trace_files_text(manifest: Manifest) -> str:
    """Return the traces that were analysed, in words."""
    paths: Sequence[str] = [
        repetition.trace
        for repetition in manifest.repetitions
        if repetition.ok and repetition.trace and repetition.inferences
    ]
    listed = ", ".join(paths[:_FILES])
    return f"{listed} and {len(paths) - _FILES} more" if len(paths) > _FILES else listed


def machine_text(manifest: Manifest) -> str:
    """Return a machine in words: its name if it has one, CPU, usable CPUs, system and emulator."""
    environment, name = manifest.environment, f"{manifest.device}: " if manifest.device else ""
    if environment.system is None:
        return f"{name}{NOT_KNOWN}"
    cpu = _phone_text(environment) or environment.cpu or "unknown CPU"
    emulator = f", emulated by {environment.emulator}" if environment.emulator else ""
    system = f"{environment.system} {environment.kernel} on {environment.machine}"
    return f"{name}{cpu}, {_cpus_text(environment)}, {system}{emulator}"


def _cpus_text(environment: Environment) -> str:
    counts = (environment.usable_cpus, environment.logical_cpus)
    usable, logical = ("an unknown number" if count is None else count for count in counts)
    granted = "" if environment.cpu_quota is None else f" (cgroups limit it to {environment.cpu_quota:g} CPUs)"
    return f"{usable} of {logical} CPUs{granted}"


def _phone_text(environment: Environment) -> str | None:
    """Return a phone's manufacturer, model, chip, system and power settings; None for other machines."""
    phone = environment.phone
    if phone is None:
        return None
    names = " ".join(filter(None, (phone.manufacturer, phone.model)))
    android = f"Android {phone.android}" if phone.android else None
    power = f"power settings {phone.power}" if phone.power else None
    return ", ".join(filter(None, (names, phone.soc, android, power))) or None


_OF_PROFILE = re.compile(r"(accelerated|baseline|runner|without-[\w.-]+?)(-t\d+)?")


def reproduction(manifest: Manifest) -> tuple[str, str] | None:
    """Return the shell command that runs the experiment again, and a sentence on what else it needs.

    The command starts in the directory that the first run started in; the sentence is empty if nothing else is needed.
    None if the command is unknown: another tool ran the experiment, or a file whose name was not recorded.
    """
    if manifest.plan.timeout_seconds is None:
        return None
    request, note = manifest.request, ""
    if request is not None and request.config is not None:
        words = list(_run_words(request.config, request))
        suffix = PurePath(request.config.file).suffix
        note = f"The bundle keeps the file as it was at measurement time: config{suffix}."
    elif request is None and not all(
        _OF_PROFILE.fullmatch(variant.name) and not variant.affinity for variant in manifest.variants
    ):
        return None
    else:
        words = list(_profile_words(manifest, request))
    return shell_command(words), note


def _run_words(config: ConfigRequest, request: ExperimentRequest) -> Iterator[str]:
    """Yield the words of ``opscope run`` into another directory: the file's own holds this bundle."""
    options = [("--only", ",".join(config.only)), ("--target", config.target), ("--scheduler", config.scheduler)]
    flags = ["--oversubscribe"] if request.oversubscribe else []
    options.append(("--out", f"{PurePath(config.file).stem}-again"))
    yield from _command_line("run", config.file, [*_option_words(options), *flags])


def _profile_words(manifest: Manifest, request: ExperimentRequest | None) -> Iterator[str]:
    plan = manifest.plan
    calls_per_round = len(plan.calls) or 1  # runs and warm-up count calls, their options rounds of calls
    threads = dict.fromkeys(variant.threads for variant in manifest.variants)
    options = [
        ("--target", manifest.target.name),
        ("--dtype", None if manifest.model.given else manifest.model.dtype),
        *_ablation_options(manifest),
        ("--threads", ",".join(map(str, threads))),
        ("--rounds", request.rounds if request else plan.rounds),
        ("--runs", (plan.runs or 0) // calls_per_round),
        ("--warmup", (plan.warmup or 0) // calls_per_round),
        ("--methods", calls_text(plan.calls)),
        ("--seed", plan.seed),
        ("--timeout", plan.timeout_seconds),
    ]
    against = [word for model in manifest.programs.values() for word in ("--against", model.source)]
    rest = [*_option_words(options), *_flag_words(manifest), *_setting_words(request)]
    yield from _command_line("check" if against else "profile", manifest.model.source, [*against, *rest])


def _ablation_options(manifest: Manifest) -> list[tuple[str, str | None]]:
    """Return the option for what is off in the baseline; empty for the user's own build, which cannot switch."""
    baselines = manifest.with_role(Role.BASELINE)
    if manifest.with_role(Role.INTERMEDIATE) or manifest.programs:
        return []
    if baselines:
        return [("--ablate", ",".join(baselines[0].ablated or []))]
    is_default = manifest.request is None or manifest.request.ablate == (NOTHING_OFF,)
    return [("--ablate", NOTHING_OFF)] if is_default and manifest.with_role(Role.ACCELERATED) else []


def _flag_words(manifest: Manifest) -> Iterator[str]:
    if manifest.with_role(Role.INTERMEDIATE):
        yield "--ladder"
    # A build may trace always, or nothing can: then there is one arm, whatever was asked.
    if not manifest.plan.timed_order and manifest.left_out.trace is None and not manifest.environment.runs_build:
        yield "--traced-only"


def _setting_words(request: ExperimentRequest | None) -> Iterator[str]:
    """Yield the options that neither the plan nor the variants record."""
    if request is None:
        return
    yield from words_of(
        request, (name for name in ExperimentSettings.__struct_fields__ if name not in _RECORDED_SETTINGS)
    )
    yield from _option_words([("--models", request.models)])


_RECORDED_SETTINGS = {
    *("ablate", "ladder", "threads", "rounds", "runs", "warmup", "dtype", "seed", "timeout", "untraced", "methods"),
}
"""Settings that the plan and the variants record as they became."""


def _option_words(options: Iterable[tuple[str, str | float | None]]) -> Iterator[str]:
    """Yield names and values of options that have a value."""
    for name, value in options:
        if value is not None and value != "":
            yield from (name, f"{value:.17g}" if isinstance(value, float) else str(value))


def _command_line(command: str, argument: str, options: list[str]) -> list[str]:
    """Return the words of a command; an argument with a leading dash comes last, lest it read as an option."""
    begin = ["opscope", command]
    return [*begin, *options, "--", argument] if argument.startswith("-") else [*begin, argument, *options]


def trust_section(content: ReportContent, failures: Sequence[PartFailure]) -> Section:
    """Return the section on the grade and its reasons, the limits of the figures, and the checks."""
    messages = [*switch_messages(content), *limits(content), *(warning(part_warning(failure)) for failure in failures)]
    blocks = [
        *quality_blocks(content.quality, graded_subjects(content)),
        Bullets([sentence(message) for message in messages]),
    ]
    ruled_out = [*content.ruled_out, *(content.quality.ruled_out if content.quality else [])]
    for title, kind in (
        ("Passed Checks", MessageKind.PASSED),
        ("Further Analysis: Checks Not Made", MessageKind.NOT_CHECKED),
    ):
        checks = [check for check in ruled_out if check.kind is kind]
        if checks:
            count = f"{title.capitalize()}: {len(checks)}." if kind is MessageKind.PASSED else ""
            blocks.append(Details(f"{title} ({len(checks)})", [Bullets(_rule_lines(checks))], count))
    return Section("Measurement Quality", blocks, "trust", "Trust")


def _rule_lines(messages: Iterable[Message]) -> list[str]:
    return [f"{message.rule}: {message.title}" for message in messages]


def graded_subjects(content: ReportContent) -> GradedSubjects:
    """Return what a report grades: latency, comparison, and the experiment if its grade differs from both."""
    subjects = [
        (LATENCY, content.shown.quality if content.shown else None),
        (COMPARISON, content.primary.quality if content.primary else None),
    ]
    grades = {quality.grade for _, quality in subjects if quality}
    if content.quality and content.quality.grade not in grades:
        subjects.append((EXPERIMENT, content.quality))
    return subjects


def quality_blocks(quality: Quality | None, subjects: GradedSubjects) -> list[Block]:
    """Return the grades, and a table of what limits them."""
    if quality is None:
        return []
    return [Sentence(f"{grades_text(subjects)}."), _concerns_table(quality)]


def _concerns_table(quality: Quality) -> TableBlock:
    return table(
        quality.reasons,
        column("what limits it", Format.TEXT, lambda reason: TableCell(reason.title, reason.rule)),
        column("to", Format.TEXT, lambda reason: grade_text(grade_left(reason))),
        column("what to do", Format.TEXT, lambda reason: reason.next_step),
    )


_SITES = {Mechanism.TRAP: "trapped cpuid instruction", Mechanism.HWCAP: "library"}
_OUTPUTS = {True: "outputs identical", False: "outputs differ", None: "outputs not compared"}


def switch_messages(content: ReportContent) -> list[Message]:
    """Return what a feature switch did, counted, and what it changes by itself; empty for ``cpuinfo``."""
    proof = _find_proof(content.manifest)
    if proof is None:
        return []
    controls = [control_text(proof.mechanism, control) for control in content.controls]
    return [
        note(text) for text in (_mask_counts_text(proof), *controls, *_emulated_control_texts(content, proof.mechanism))
    ]


def _emulated_control_texts(content: ReportContent, mechanism: Mechanism) -> Iterator[str]:
    """Yield whether a mechanism changes outputs by itself on an emulated CPU, whose times mean nothing."""
    names = {variant.name for variant in content.manifest.with_role(Role.CONTROL)}
    for agreement in content.agreements:
        if agreement.baseline in names:
            outputs = _OUTPUTS[are_identical(agreement.outputs)]
            yield f"{_control_label(mechanism)}: {outputs}; no times are compared on an emulated CPU"


def _control_label(mechanism: Mechanism) -> str:
    return f"{mechanism.value} with all features on, compared with a run without it"


def control_text(mechanism: Mechanism, control: Comparison) -> str:
    """Return what a mechanism changes by itself, as one sentence."""
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
    text = f"{_OUTPUTS[are_identical(control.outputs)]}, {ratio}, {verdicts[end.verdict]}"
    return f"{_control_label(mechanism)}: {text}"


def _mask_counts_text(proof: MaskProof) -> str:
    sites = counted_text(proof.sites or 0, _SITES[proof.mechanism])
    activity = f"{sites}, {_executed_text(proof)}" if proof.mechanism is Mechanism.TRAP else sites
    answers = counted_text(proof.masked or 0, "answer")
    text = f"features hidden by {proof.mechanism.value}: {activity} per process, {answers} with fewer features"
    if proof.sites_outside:
        return f"{text}; {counted_text(proof.sites_outside, 'place')} outside known functions not switched"
    return text


def _executed_text(proof: MaskProof) -> str:
    if proof.sites_executed is None:
        return f"executed {counted_text(proof.executions or 0, 'time')}"
    return f"{proof.sites_executed} of them executed, {counted_text(proof.executions or 0, 'time')}"


def _find_proof(manifest: Manifest) -> MaskProof | None:
    """Find the first process that ran with fewer features and whose mechanism counted its work; None if none did."""
    for repetition in manifest.repetitions:
        mask = repetition.measurement.mask if repetition.measurement else None
        if repetition.ok and mask and mask.cleared and mask.mechanism in _SITES:
            return mask
    return None
