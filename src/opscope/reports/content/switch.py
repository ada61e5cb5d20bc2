"""How features were switched off, where that was not done in the runtime's own list, and what the mechanism changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.compare.outputs import identical
from opscope.analysis.findings.message import note
from opscope.bundle.manifest import Mechanism, Role
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, ratio_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Message
    from opscope.bundle.manifest import Manifest, MaskProof
    from opscope.reports.content.content import ReportContent

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
    for found in content.agreements:
        if found.baseline in names:
            outputs = _OUTPUTS[identical(found.outputs)]
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
    told = f"{_OUTPUTS[identical(control.outputs)]}, {ratio}, {verdicts[end.verdict]}"
    return f"{_beside(mechanism)}: {told}"


def _counted(proof: MaskProof) -> str:
    places = counted_text(proof.sites or 0, _SITES[proof.mechanism])
    where = f"{places}, {_executed(proof)}" if proof.mechanism is Mechanism.TRAP else places
    answers = counted_text(proof.masked or 0, "answer")
    told = f"features hidden by {proof.mechanism.value}: {where} per process, {answers} with fewer features"
    if proof.sites_outside:
        return f"{told}; {counted_text(proof.sites_outside, 'place')} outside known functions not switched"
    return told


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
