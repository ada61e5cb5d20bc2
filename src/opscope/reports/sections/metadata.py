"""What ran, on what, and how to run it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.units import size_text
from opscope.reports.content.content import NOT_KNOWN
from opscope.reports.document.blocks import Code, Section, Sentence, facts
from opscope.reports.document.template import WRITTEN_BY
from opscope.reports.sections.reproduction import reproduction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.manifest import Environment, Manifest, Model
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Block

_FILES = 8


def reproduction_section(manifest: Manifest) -> Section:
    """The command that runs the experiment again."""
    again = reproduction(manifest)
    blocks: list[Block] = [Code(again.command), Sentence(again.note)] if again else []
    answer = f"{manifest.plan.rounds} rounds, {len(manifest.repetitions)} repetitions"
    shown = blocks or [Sentence("How to run it again is not known.")]
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
    for name, own in manifest.programs.items():
        yield f"Model of {name}", _model(own)
    yield "Number type", manifest.model.dtype or ""
    yield "Delegates", ", ".join(manifest.model.backends or []) or "none"
    yield "Config File", content.config or _config(manifest) or "none is recorded"
    yield "Target", f"{manifest.target.kind} {manifest.target.address}".strip()
    yield "Device", machine_text(manifest)
    yield "Features", _features(environment)
    yield "Governor", NOT_KNOWN if environment.system is None else environment.governor or "cannot be read"
    yield "Software", ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    if environment.variables:
        yield "Environment Variables", ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    yield "Measured", manifest.created
    each = f"{_known(plan.warmup)} warm-up and {_known(plan.runs)} measured inferences per process"
    yield "Plan", f"{plan.rounds} rounds, {each}, seed {_known(plan.seed)}"
    failed = len(manifest.failures())
    yield "Repetitions", f"{len(manifest.repetitions)} run, {failed} failed; status {manifest.status.value}"
    yield "Traces analysed", _files(manifest)
    yield "Report", f"written by {WRITTEN_BY}"


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
    paths: Sequence[str] = [own.trace for own in manifest.repetitions if own.ok and own.trace and own.inferences]
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
    granted = "" if environment.cpu_quota is None else f" (control groups grant the time of {environment.cpu_quota:g})"
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
