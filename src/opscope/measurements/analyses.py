"""Analysing one side, and comparing two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import MismatchError, RunError
from opscope.core.parts import explained, failures_heard, part
from opscope.measurements.accuracy import accuracy_of, same_inputs, saved_outputs
from opscope.measurements.comparability import measured_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.accuracy import Accuracy
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.compare.outputs import OutputAgreement
    from opscope.analysis.latency.timing import Floats
    from opscope.bundle.bundle import Bundle
    from opscope.core.parts import PartFailure
    from opscope.runtimes.side import Side


def analysis_of(side: Side) -> Analysis:
    """The analysis of one side; what a bug of ours leaves unknown is among its warnings."""
    from opscope.analysis.findings.message import part_warning

    with failures_heard() as failures:
        found = _analysis_of(side)
    if not failures:
        return found
    told = dict.fromkeys([*found.trace.warnings, *map(part_warning, failures)])
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, warnings=list(told)))


def analysis_within(bundle: Bundle, found: Analysis) -> Analysis:
    """An analysis as a derived file of a bundle holds it: its paths begin at the bundle's directory."""
    trace = msgspec.structs.replace(found.trace, path=bundle.inside(found.trace.path))
    program = found.program
    if program is not None:
        record = None if program.etrecord is None else bundle.inside(program.etrecord)
        program = msgspec.structs.replace(program, path=bundle.inside(program.path), etrecord=record)
    return msgspec.structs.replace(found, trace=trace, program=program)


def comparison_within(bundle: Bundle, found: Comparison) -> Comparison:
    """A comparison as a derived file of a bundle holds it; a side of another bundle is named from this one on."""
    baseline, candidate = (
        msgspec.structs.replace(side, path=bundle.inside(side.path)) for side in (found.baseline, found.candidate)
    )
    return msgspec.structs.replace(found, baseline=baseline, candidate=candidate)


def _analysis_of(side: Side) -> Analysis:
    from opscope.analysis.analysis import TraceSource, analyse
    from opscope.measurements.quality import withheld_because

    source = TraceSource(side.path, side.format, side.files)
    name = side.variant.name if side.variant else None
    found = analyse(side.table, source, name, side.known, side.calls, side.tokens, disturbed=withheld_because(side))
    if side.bundle and side.bundle.manifest.target.emulated:
        # What its times would say is left out, since an emulated CPU's say nothing.
        from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
        from opscope.core.table import TraceWarning

        told = TraceWarning("emulated_cpu", EMULATED, ON_THE_DEVICE)
        trace = msgspec.structs.replace(found.trace, warnings=[told, *found.trace.warnings])
        found = msgspec.structs.replace(found, trace=trace, findings=[])
    if side.bundle is None:
        return found
    from opscope.bundle.kernel_evidence import EVIDENCE

    if not (side.bundle.path / EVIDENCE).exists():
        return found
    from opscope.measurements.counted_calls import with_kernels

    return part("kernels of operators", lambda: with_kernels(found, side), found)


def comparison_of(baseline: Side, candidate: Side) -> Comparison:
    """The comparison of two sides; variants of one bundle are paired by round."""
    with failures_heard() as failures:
        found = _comparison_of(baseline, candidate)
    return msgspec.structs.replace(found, notes=[*found.notes, *(failure.sentence for failure in failures)])


def comparisons_of(pairs: Sequence[tuple[Side, Side]], why_not: list[str]) -> list[Comparison]:
    """The comparison of each pair of a report, as far as there is one."""
    return [found for pair in pairs if (found := _comparison_known(*pair, why_not)) is not None]


def _comparison_known(baseline: Side, candidate: Side, why_not: list[str]) -> Comparison | None:
    named = f"the comparison of {candidate.label} with {baseline.label}"
    try:
        return explained(named, lambda: comparison_of(baseline, candidate), lambda own: why_not.append(own.sentence))
    except RunError as error:
        why_not.append(f"{named}: unknown because {error.problem}")
        return None


def _comparison_of(baseline: Side, candidate: Side) -> Comparison:
    from opscope.analysis.analysis import measured_latency
    from opscope.analysis.compare.compare import RelatedData
    from opscope.analysis.compare.compare import compare as compare_tables
    from opscope.analysis.findings.quality import unjudged
    from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
    from opscope.measurements.quality import quality_of_sides, withheld_because

    for side in (baseline, candidate):
        if side.bundle and side.bundle.manifest.target.emulated:
            raise MismatchError(EMULATED, where=side.path, hint=ON_THE_DEVICE)
        measured_latency(side.table, side.path)  # refuses a side without measured inferences, with its name
    baseline, candidate, paired = paired_sides(baseline, candidate)
    labels = ((baseline.label, baseline.path), (candidate.label, candidate.path))
    outputs = part("the agreement of outputs", lambda: _outputs(baseline, candidate), None) if paired else None
    facts = tuple(side.known.attributions.operators if side.known else {} for side in (baseline, candidate))
    compared = compare_tables(
        baseline.table,
        candidate.table,
        labels=labels,
        paired=paired,
        outputs=outputs,
        beside=RelatedData(
            (facts[0], facts[1]),
            _untraced(baseline, candidate, paired=paired),
            _untraced_by_method(baseline, candidate, paired=paired),
            (_walls(baseline), _walls(candidate)),
            same_program=_same_program(baseline, candidate),
            same_runtime=baseline.format == candidate.format,
            disturbed=withheld_because(baseline, candidate),
        ),
    )
    quality = explained("the quality", lambda: quality_of_sides(baseline, candidate, compared), unjudged)
    return msgspec.structs.replace(
        compared,
        end_to_end=msgspec.structs.replace(compared.end_to_end, grade=quality.grade),
        notes=[*compared.notes, *_differences(baseline, candidate)],
        quality=quality,
        accuracy=explained("accuracy", lambda: accuracy_of(baseline, candidate), _accuracy_unknown),
    )


def _accuracy_unknown(failure: PartFailure) -> Accuracy:
    from opscope.analysis.compare.accuracy import not_compared

    return not_compared(failure.because, "report the bug")


def _same_program(baseline: Side, candidate: Side) -> bool:
    """Whether both sides ran one program, as far as their bundles tell."""
    hashes = {side.model.sha256 for side in (baseline, candidate) if side.model} - {None}
    return len(hashes) <= 1


def agreement_of(baseline: Side, candidate: Side) -> OutputAgreement | None:
    """Whether two variants of one bundle computed the same, in the first round of both; None when that is not known."""
    baseline, candidate, paired = paired_sides(baseline, candidate)
    return _outputs(baseline, candidate) if paired else None


def paired_sides(baseline: Side, candidate: Side) -> tuple[Side, Side, bool]:
    """Both sides as they are compared, and whether they are paired.

    Variants of one bundle are, with the rounds that succeeded on both, so that process i of one side belongs to process
    i of the other. Other sides stay as they are.
    """
    if baseline.bundle is None or candidate.bundle is None:
        return baseline, candidate, False
    if baseline.bundle.path.resolve() != candidate.bundle.path.resolve():
        return baseline, candidate, False
    manifests = (baseline.bundle.manifest, candidate.bundle.manifest)
    rounds = [
        [repetition.round for repetition in manifest.completed(side.label)]
        for manifest, side in zip(manifests, (baseline, candidate), strict=True)
    ]
    common = set(rounds[0]) & set(rounds[1])
    if not common:
        raise RunError("no round succeeded on both sides", where=baseline.path, hint="finish the run with --resume")
    return _only(baseline, rounds[0], common), _only(candidate, rounds[1], common), True


def _walls(side: Side) -> Sequence[Sequence[int]] | None:
    """What the callers of the traced processes saw; None where that is not known."""
    return side.calls.walls() if side.calls else None


def _untraced_by_method(
    baseline: Side, candidate: Side, *, paired: bool
) -> dict[str, tuple[list[Floats], list[Floats]]]:
    """The same for each method, where both sides call the same ones in the same order."""
    orders = [side.calls.order if side.calls else () for side in (baseline, candidate)]
    if orders[0] != orders[1]:
        return {}
    each = {method: _untraced(baseline, candidate, paired=paired, method=method) for method in orders[0]}
    return {method: found for method, found in each.items() if found is not None}


def _untraced(
    baseline: Side, candidate: Side, *, paired: bool, method: str | None = None
) -> tuple[list[Floats], list[Floats]] | None:
    """Latencies without tracing of both sides, of the same rounds when they are paired; None when one side has none."""
    if baseline.calls is None or candidate.calls is None:
        return None
    rounds = [sorted(side.calls.settled()) for side in (baseline, candidate) if side.calls]
    if paired:
        common = sorted(set(rounds[0]) & set(rounds[1]))
        rounds = [common, common]
    if not rounds[0] or not rounds[1]:
        return None
    return baseline.calls.durations(rounds[0], method), candidate.calls.durations(rounds[1], method)


def _differences(baseline: Side, candidate: Side) -> list[str]:
    """What else differs between the two sides besides the variant, or does not, one sentence each."""
    if [sha256 for _, sha256 in baseline.files] == [sha256 for _, sha256 in candidate.files]:
        return ["both sides are the same traces: there is nothing to compare"]
    if baseline.bundle is None or candidate.bundle is None:
        return []
    left, right = baseline.bundle.manifest, candidate.bundle.manifest
    found = measured_apart(baseline, candidate)
    if left.environment.cpu != right.environment.cpu or left.environment.features != right.environment.features:
        found.append("the two sides ran on different CPUs")
    if left.environment.versions != right.environment.versions:
        found.append("the two sides ran with different versions of the software")
    return found


def _only(side: Side, rounds: list[int], wanted: set[int]) -> Side:
    processes = [process for process, number in enumerate(rounds) if number in wanted]
    kept = tuple(rounds[process] for process in processes)
    calls = side.calls._replace(rounds=kept) if side.calls else None
    return side._replace(table=side.table.with_processes(processes), calls=calls)


def _outputs(baseline: Side, candidate: Side) -> OutputAgreement | None:
    """Agreement of the outputs of the first round that both sides have."""
    from opscope.analysis.compare.outputs import DEFAULT_TOLERANCE, TOLERANCES, compare_outputs

    arrays = [saved_outputs(side) for side in (baseline, candidate)]
    if arrays[0] is None or arrays[1] is None:
        return None
    # What two converters made is told apart by accuracy, not graded.
    if baseline.format != candidate.format or not same_inputs(baseline, candidate):
        return None
    types = {side.model.dtype if side.model else None for side in (baseline, candidate)}
    # Of two number types the coarser one says what rounding explains; what is not known is taken for coarse, too.
    widest = max(types, key=lambda dtype: TOLERANCES.get(dtype or "", DEFAULT_TOLERANCE))
    return compare_outputs(arrays[0], arrays[1], widest)
