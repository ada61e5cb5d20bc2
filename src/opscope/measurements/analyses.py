"""Analysis of one side and comparison of two: times, outputs, and accuracy on labelled inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.core.errors import MismatchError, RunError
from opscope.core.parts import explained, failures_heard, part
from opscope.core.units import counted_text
from opscope.measurements.comparability import machine_mismatches, separate_bundles_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.analysis.compare.outputs import Accuracy
    from opscope.bundle.bundle import Bundle
    from opscope.runtimes.side import Side

    Array: TypeAlias = NDArray[Any]

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.compare.number_types import NumberTypeCause
    from opscope.analysis.compare.outputs import OutputAgreement
    from opscope.analysis.latency.latency import Floats
    from opscope.analysis.operators.headline import TracedCallers
    from opscope.core.parts import PartFailure


def saved_outputs(side: Side) -> list[Array] | None:
    """Return the outputs of the first process of a bundle's variant; None if they were not saved."""
    from opscope.readers.outputs import read_outputs, values_sha256

    if side.bundle is None:
        return None
    first = side.bundle.manifest.completed(side.label)[0]
    file = side.bundle.outputs_file(first, "outputs.npz")
    arrays = read_outputs(side.bundle.path / file)
    if arrays is not None and first.measurement is not None:
        side.bundle.check_hash(file, values_sha256(arrays), first.measurement.output_sha256)
    return arrays


def accuracy_of(baseline: Side, candidate: Side) -> Accuracy | None:
    """Return how far the outputs of two sides differ on the same inputs, or why they were not compared.

    None if the question does not arise: for sides without a bundle, which name no program, and for variants of one
    program in one bundle and runtime without labelled inputs, whose outputs have to agree.
    """
    from opscope.analysis.compare.outputs import not_compared

    if baseline.bundle is None or candidate.bundle is None:
        if baseline.bundle is candidate.bundle:
            return None
        which = "baseline" if baseline.bundle is None else "candidate"
        return not_compared(f"the {which} is not a bundle, so its outputs are unknown", _PROFILE)
    accuracy = _compare_labelled_outputs(baseline, candidate, baseline.bundle, candidate.bundle)
    if accuracy is not None or _is_one_program_in_bundle(baseline, candidate):
        return accuracy
    return _compare_timed_outputs(baseline, candidate)


_FINISH = "finish its run: repeat the command with --resume and --inputs"
_PROFILE = "profile both programs with `opscope profile`, with the same --seed or the same --inputs"
_SAME_INPUTS = "convert both programs from the same model for the same input sizes and types"
_SAME_SEED = "profile both programs with the same --seed, or the same --inputs"


def _is_one_program_in_bundle(baseline: Side, candidate: Side) -> bool:
    baseline_bundle, candidate_bundle = baseline.bundle, candidate.bundle
    if (
        baseline_bundle is None
        or candidate_bundle is None
        or baseline_bundle.path.resolve() != candidate_bundle.path.resolve()
    ):
        return False
    if baseline.format != candidate.format:
        return False
    return (
        baseline.model is not None and candidate.model is not None and baseline.model.sha256 == candidate.model.sha256
    )


def _compare_labelled_outputs(
    baseline: Side, candidate: Side, baseline_bundle: Bundle, candidate_bundle: Bundle
) -> Accuracy | None:
    """Compare the outputs of labelled inputs; None unless both sides ran some."""
    from opscope.analysis.compare.outputs import compare_samples, not_compared

    baseline_run, candidate_run = baseline_bundle.manifest.samples, candidate_bundle.manifest.samples
    if baseline_run is None or candidate_run is None:
        return None
    if baseline_run.inputs_sha256 != candidate_run.inputs_sha256:
        texts = [f"{counted_text(run.count, 'input')} of {run.source}" for run in (baseline_run, candidate_run)]
        reason = f"the labelled inputs differ: {texts[0]} in the baseline, {texts[1]} in the candidate"
        return not_compared(reason, "profile both programs with the same --inputs")
    samples = [_read_samples(side) for side in (baseline, candidate)]
    for name, side_samples in zip(("baseline", "candidate"), samples, strict=True):
        if isinstance(side_samples, str):
            return not_compared(f"the {name} has no outputs for the labelled inputs: {side_samples}", _FINISH)
    (baseline_outputs, labels), (candidate_outputs, candidate_labels) = (
        side_samples for side_samples in samples if not isinstance(side_samples, str)
    )
    if labels.tolist() != candidate_labels.tolist():
        return not_compared("the input labels differ", "profile both programs with the same --inputs")
    return compare_samples(baseline_outputs, candidate_outputs, labels)


def _read_samples(side: Side) -> tuple[list[Array], Array] | str:
    """Return the outputs of labelled inputs that a variant ran, and the labels, or why there are none."""
    from opscope.bundle.bundle import SAMPLES, VARIANTS
    from opscope.core.errors import NotFoundError, TraceFormatError
    from opscope.core.files import sha256_of
    from opscope.readers.outputs import read_arrays

    bundle, file = side.bundle, f"{VARIANTS}/{side.label}/{SAMPLES}"
    if bundle is None or bundle.manifest.samples is None:
        return "none ran"
    run = bundle.manifest.samples
    if side.label in run.failures:
        return run.failures[side.label]
    try:
        arrays = read_arrays(bundle.path / file)
    except NotFoundError:
        return "they did not run"
    bundle.check_hash(file, sha256_of(bundle.path / file), run.outputs_sha256.get(side.label))
    labels = arrays.pop("labels", None)
    if labels is None or any(array.shape[:1] != labels.shape for array in arrays.values()):
        raise TraceFormatError("the number of outputs differs from the number of labels", where=bundle.path / file)
    return list(arrays.values()), labels


def _compare_timed_outputs(baseline: Side, candidate: Side) -> Accuracy:
    """Compare the outputs of the one input that timed runs repeat."""
    from opscope.analysis.compare.outputs import compare_single_input, not_compared

    inputs = _side_inputs(baseline), _side_inputs(candidate)
    for name, side_inputs in zip(("baseline", "candidate"), inputs, strict=True):
        if isinstance(side_inputs, str):
            return not_compared(f"the inputs of the {name} are unknown: {side_inputs}", _PROFILE)
    baseline_inputs, candidate_inputs = (side_inputs for side_inputs in inputs if isinstance(side_inputs, _SideInputs))
    reason = _different_inputs_reason(baseline_inputs, candidate_inputs)
    if reason is not None:
        return not_compared(reason, _SAME_INPUTS if baseline_inputs.unlike or candidate_inputs.unlike else _SAME_SEED)
    outputs = [saved_outputs(side) for side in (baseline, candidate)]
    if outputs[0] is None or outputs[1] is None:
        which = "baseline" if outputs[0] is None else "candidate"
        return not_compared(f"the bundle of the {which} has no outputs", "profile it again")
    return compare_single_input(
        outputs[0],
        align_axes(outputs[1], outputs[0]),
        _reordered_note(baseline_inputs, candidate_inputs) or _rounded_note(baseline_inputs, candidate_inputs),
    )


def may_have_same_inputs(baseline: Side, candidate: Side) -> bool:
    """Return whether two variants of one bundle may have had the same inputs: nothing contradicts it."""
    variant_inputs = baseline.bundle.manifest.plan.inputs_of if baseline.bundle else {}
    return not any(side.label in variant_inputs and variant_inputs[side.label].unlike for side in (baseline, candidate))


class _SideInputs(NamedTuple):
    """Inputs of a variant's calls."""

    calls: list[str]  # the methods that they are for; empty for the only one
    arrays: list[Array]  # values of all tensors
    types: list[str]  # their number types
    values: list[bool | int | float | None]  # numbers and truth values among the inputs
    unlike: str | None = None  # why they are not those of the other programs of the bundle; None where they are


def _side_inputs(side: Side) -> _SideInputs | str:
    """Return the inputs of a program, kept in the bundle or drawn again from the seed, or why they are unknown."""
    from opscope.core.errors import RunError
    from opscope.core.files import sha256_of
    from opscope.experiment.tensors import random_inputs
    from opscope.readers.outputs import read_arrays

    bundle = side.bundle
    first = bundle.manifest.completed(side.label)[0].measurement if bundle else None
    if bundle is None or first is None:
        return "no process reported them"
    plan, variant_inputs = bundle.manifest.plan.of(side.label), bundle.manifest.plan.inputs_of.get(side.label)
    unlike = variant_inputs.unlike if variant_inputs else None
    types, values = (
        [tensor.dtype for tensor in first.inputs],
        [planned_input.value for planned_input in plan.inputs if planned_input.shape is None],
    )
    if bundle.manifest.environment.runs_build:
        return "the runner is not opscope's"
    if plan.values is not None:
        bundle.check_hash(plan.values, sha256_of(bundle.path / plan.values), plan.values_sha256)
        saved = read_arrays(bundle.path / plan.values)
        return _SideInputs(plan.calls, list(saved.values()), types, values, unlike)
    if plan.seed is None:
        return "the bundle has no seed"
    try:
        return _SideInputs(plan.calls, random_inputs(first.inputs, plan.seed), types, values, unlike)
    except RunError as error:
        return error.problem


def _different_inputs_reason(before: _SideInputs, after: _SideInputs) -> str | None:
    """Return why the inputs of both sides differ; None if they agree up to the rounding of floats."""
    if before.unlike or after.unlike:
        return f"the inputs differ: {after.unlike or before.unlike}"
    if before.calls != after.calls and max(len(before.calls), len(after.calls)) > 1:
        return "they call different methods"
    if before.values != after.values or len(before.arrays) != len(after.arrays):
        return "they do not take the same inputs"
    for number, (array, other_array) in enumerate(
        zip(before.arrays, align_axes(after.arrays, before.arrays), strict=True)
    ):
        if array.shape != other_array.shape:
            shapes = f"{list(array.shape)} in the baseline, {list(other_array.shape)} in the candidate"
            return f"input {number} has the shape {shapes}"
        if not _have_same_values(array, other_array):
            hashes = [_short_hash([array]) for array in (array, other_array)]
            return f"input {number} has other values in the candidate (SHA-256 {hashes[0]} and {hashes[1]})"
    return None


def _short_hash(arrays: Sequence[Array]) -> str:
    from opscope.readers.outputs import values_sha256

    return values_sha256(arrays)[:12]


def _have_same_values(array: Array, other_array: Array) -> bool:
    import numpy as np

    floats = all(np.issubdtype(side.dtype, np.floating) for side in (array, other_array))
    if not floats and array.dtype != other_array.dtype:
        return False
    # Of two widths the narrower holds the values of the wider one, rounded.
    narrow = min(array.dtype, other_array.dtype, key=lambda dtype: dtype.itemsize)
    return bool(np.array_equal(array.astype(narrow), other_array.astype(narrow), equal_nan=floats))


def _reordered_note(before: _SideInputs, after: _SideInputs) -> str | None:
    """Return a note if one side's inputs are the other's in another order of dimensions; else None."""
    shapes = [[array.shape for array in side.arrays] for side in (before, after)]
    return "the same inputs, with dimensions in another order" if shapes[0] != shapes[1] else None


def _rounded_note(before: _SideInputs, after: _SideInputs) -> str | None:
    """Return a note if one side's inputs are the other's, rounded; None if they have the same bits."""
    pairs = list(zip(before.types, after.types, strict=False))
    unlike = next((pair for pair in pairs if pair[0] != pair[1]), None)
    return f"the same inputs, as {unlike[0]} in the baseline and {unlike[1]} in the candidate" if unlike else None


def align_axes(arrays: Sequence[Array], reference: Sequence[Array]) -> list[Array]:
    """Return arrays in the order of axes of the other side; an array without a known order stays as it is."""
    if len(arrays) != len(reference):
        return list(arrays)
    return [_align_array(array, like.shape) for array, like in zip(arrays, reference, strict=True)]


def _align_array(array: Array, sizes: Sequence[int]) -> Array:
    from opscope.program.structure.dtypes import axes_between

    if _drop_unit_sizes(array.shape) == _drop_unit_sizes(sizes):
        return array.reshape(sizes)
    axes = axes_between(array.shape, sizes)
    return array if axes is None else array.transpose(axes)


def _drop_unit_sizes(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def analysis_of(side: Side) -> Analysis:
    """Return the analysis of one side; its warnings say what a bug in opscope leaves unknown."""
    from opscope.analysis.findings.message import part_warning

    with failures_heard() as failures:
        analysis = _analyse_side(side)
    if not failures:
        return analysis
    warnings = dict.fromkeys([*analysis.trace.warnings, *map(part_warning, failures)])
    return msgspec.structs.replace(analysis, trace=msgspec.structs.replace(analysis.trace, warnings=list(warnings)))


def analysis_within(bundle: Bundle, analysis: Analysis) -> Analysis:
    """Return an analysis as a bundle's derived file holds it: its paths begin at the bundle's directory."""
    trace = msgspec.structs.replace(analysis.trace, path=bundle.inside(analysis.trace.path))
    program = analysis.program
    if program is not None:
        record = None if program.etrecord is None else bundle.inside(program.etrecord)
        program = msgspec.structs.replace(program, path=bundle.inside(program.path), etrecord=record)
    return msgspec.structs.replace(analysis, trace=trace, program=program)


def comparison_within(bundle: Bundle, comparison: Comparison) -> Comparison:
    """Return a comparison as a bundle's derived file holds it; paths of other bundles are relative to it."""
    baseline, candidate = (
        msgspec.structs.replace(side, path=bundle.inside(side.path))
        for side in (comparison.baseline, comparison.candidate)
    )
    return msgspec.structs.replace(comparison, baseline=baseline, candidate=candidate)


def _analyse_side(side: Side) -> Analysis:
    from opscope.analysis.analysis import TraceSource, analyse
    from opscope.measurements.quality import distrust_reason, quality_of

    source = TraceSource(side.path, side.format, side.files)
    name = side.variant.name if side.variant else None
    analysis = analyse(side.table, source, name, side.known, side.calls, side.phases, disturbed=distrust_reason(side))
    if side.bundle and side.bundle.manifest.target.emulated:
        # What its times would say is left out, since an emulated CPU's say nothing.
        from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
        from opscope.core.table import TraceWarning

        warning = TraceWarning("emulated_cpu", EMULATED, ON_THE_DEVICE)
        trace = msgspec.structs.replace(analysis.trace, warnings=[warning, *analysis.trace.warnings])
        analysis = msgspec.structs.replace(analysis, trace=trace, findings=[])
    if side.bundle is None:
        return analysis
    manifest = side.bundle.manifest.restricted_to(side.label)
    analysis = msgspec.structs.replace(analysis, quality=quality_of(manifest, {side.label: analysis}, []))
    from opscope.bundle.kernel_evidence import EVIDENCE

    if not (side.bundle.path / EVIDENCE).exists():
        return analysis
    from opscope.measurements.counted_calls import with_kernels

    return part("kernels of operators", lambda: with_kernels(analysis, side), analysis)


def comparison_of(baseline: Side, candidate: Side, *, across_machines: bool = False) -> Comparison:
    """Compare two sides; variants of one bundle are paired by round.

    Bundles of different machines or kinds of target have no ratio, unless ``across_machines`` asks for one.
    """
    with failures_heard() as failures:
        comparison = _compare_sides(baseline, candidate, across_machines=across_machines)
    return msgspec.structs.replace(comparison, notes=[*comparison.notes, *(failure.sentence for failure in failures)])


def comparisons_of(pairs: Sequence[tuple[Side, Side]], why_not: list[str]) -> list[Comparison]:
    """Return the comparison of each pair of a report, as far as it exists; ``why_not`` gets the reasons."""
    return [comparison for pair in pairs if (comparison := _compare_or_explain(*pair, why_not)) is not None]


def _compare_or_explain(baseline: Side, candidate: Side, why_not: list[str]) -> Comparison | None:
    part_name = f"the comparison of {candidate.label} with {baseline.label}"
    try:
        return explained(
            part_name, lambda: comparison_of(baseline, candidate), lambda failure: why_not.append(failure.sentence)
        )
    except RunError as error:
        why_not.append(f"{part_name}: unknown because {error.problem}")
        return None


def _compare_sides(baseline: Side, candidate: Side, *, across_machines: bool) -> Comparison:
    from opscope.analysis.analysis import measured_latency
    from opscope.analysis.compare.compare import MethodChange, RelatedData
    from opscope.analysis.compare.compare import compare as compare_tables
    from opscope.analysis.findings.message import unjudged
    from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
    from opscope.measurements.quality import distrust_reason, quality_of_sides

    for side in (baseline, candidate):
        if side.bundle and side.bundle.manifest.target.emulated:
            raise MismatchError(EMULATED, where=side.path, hint=ON_THE_DEVICE)
        measured_latency(side.table, side.path)  # refuses a side without measured inferences, with its name
    baseline, candidate, paired = paired_sides(baseline, candidate)
    labels = ((baseline.label, baseline.path), (candidate.label, candidate.path))
    outputs = part("the agreement of outputs", lambda: _output_agreement(baseline, candidate), None) if paired else None
    mismatched = [] if across_machines else machine_mismatches(baseline, candidate)
    facts = tuple(side.known.attributions.operators if side.known else {} for side in (baseline, candidate))
    compared = compare_tables(
        baseline.table,
        candidate.table,
        labels=labels,
        paired=paired,
        outputs=outputs,
        related=RelatedData(
            (facts[0], facts[1]),
            _untraced_latencies(baseline, candidate, paired=paired),
            _untraced_by_method(baseline, candidate, paired=paired),
            (_traced_callers(baseline), _traced_callers(candidate)),
            same_program=_may_be_one_program(baseline, candidate),
            same_runtime=baseline.format == candidate.format,
            disturbed=next(iter(mismatched), None) or distrust_reason(baseline, candidate),
        ),
    )
    quality = explained("the quality", lambda: quality_of_sides(baseline, candidate, compared), unjudged)
    nothing: list[NumberTypeCause] = []
    causes = part("number types", lambda: _number_type_causes(baseline, candidate, compared), nothing)
    return msgspec.structs.replace(
        compared,
        end_to_end=msgspec.structs.replace(compared.end_to_end, grade=quality.grade),
        methods=[
            MethodChange(change.method, msgspec.structs.replace(change.end_to_end, grade=quality.grade))
            for change in compared.methods
        ],
        notes=[*compared.notes, *_difference_notes(baseline, candidate)],
        quality=quality,
        accuracy=explained("accuracy", lambda: accuracy_of(baseline, candidate), _unknown_accuracy),
        number_types=causes,
    )


def _number_type_causes(baseline: Side, candidate: Side, compared: Comparison) -> list[NumberTypeCause]:
    """Find why a candidate of lower precision is not faster; empty for one program, and if it is faster."""
    from opscope.analysis.compare.number_types import find_number_type_causes
    from opscope.analysis.operators.headline import headline_scale
    from opscope.analysis.operators.operators import known_operators
    from opscope.core.stats.effect import Verdict

    if compared.end_to_end.verdict is Verdict.FASTER or _runs_one_program(baseline, candidate):
        return []
    rows = (
        known_operators(
            side.table, side.known.attributions.operators if side.known else None, headline_scale(side.table)
        )
        for side in (baseline, candidate)
    )
    return find_number_type_causes(*rows)


def _runs_one_program(baseline: Side, candidate: Side) -> bool:
    """Return whether both sides are known to have run one program."""
    hashes = [side.model.sha256 for side in (baseline, candidate) if side.model]
    return len(hashes) > 1 and len(set(hashes)) == 1


def _unknown_accuracy(failure: PartFailure) -> Accuracy:
    from opscope.analysis.compare.outputs import not_compared

    return not_compared(failure.because, "report the bug")


def _may_be_one_program(baseline: Side, candidate: Side) -> bool:
    """Return whether both sides ran one program, as far as their bundles tell."""
    hashes = {side.model.sha256 for side in (baseline, candidate) if side.model} - {None}
    return len(hashes) <= 1


def agreement_of(baseline: Side, candidate: Side) -> OutputAgreement | None:
    """Return whether two variants of one bundle computed the same in their first common round; None if unknown."""
    baseline, candidate, paired = paired_sides(baseline, candidate)
    return _output_agreement(baseline, candidate) if paired else None


def paired_sides(baseline: Side, candidate: Side) -> tuple[Side, Side, bool]:
    """Return both sides as they are compared, and whether they are paired.

    Variants of one bundle are paired: they keep the rounds that succeeded on both, so that process i of one side
    belongs to process i of the other. Other sides are returned unchanged.
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
    return _select_rounds(baseline, rounds[0], common), _select_rounds(candidate, rounds[1], common), True


def _traced_callers(side: Side) -> TracedCallers | None:
    """Return what is known of the calls of the traced processes; None where their durations are not."""
    return side.calls.traced_callers() if side.calls else None


def _untraced_by_method(
    baseline: Side, candidate: Side, *, paired: bool
) -> dict[str, tuple[list[Floats], list[Floats]]]:
    """Return latencies without tracing of both sides, for each method that both call."""
    orders = [side.calls.order if side.calls else () for side in (baseline, candidate)]
    both = dict.fromkeys(method for method in orders[0] if method in orders[1])
    latencies = {method: _untraced_latencies(baseline, candidate, paired=paired, method=method) for method in both}
    return {method: sides for method, sides in latencies.items() if sides is not None}


def _untraced_latencies(
    baseline: Side, candidate: Side, *, paired: bool, method: str | None = None
) -> tuple[list[Floats], list[Floats]] | None:
    """Return latencies without tracing of both sides, of common rounds if paired; None if a side has none."""
    if baseline.calls is None or candidate.calls is None:
        return None
    rounds = [sorted(side.calls.settled()) for side in (baseline, candidate) if side.calls]
    if paired:
        common = sorted(set(rounds[0]) & set(rounds[1]))
        rounds = [common, common]
    if not rounds[0] or not rounds[1]:
        return None
    return baseline.calls.durations(rounds[0], method), candidate.calls.durations(rounds[1], method)


def _difference_notes(baseline: Side, candidate: Side) -> list[str]:
    """Return what differs between the two sides besides the variant, one sentence each."""
    if [sha256 for _, sha256 in baseline.files] == [sha256 for _, sha256 in candidate.files]:
        return ["both sides are the same traces: there is nothing to compare"]
    if baseline.bundle is None or candidate.bundle is None:
        return []
    before, after = baseline.bundle.manifest, candidate.bundle.manifest
    differences = separate_bundles_note(baseline, candidate)
    if before.environment.cpu != after.environment.cpu or before.environment.features != after.environment.features:
        differences.append("the two sides ran on different CPUs")
    if before.environment.versions != after.environment.versions:
        differences.append("the two sides ran with different versions of the software")
    return differences


def _select_rounds(side: Side, rounds: list[int], common: set[int]) -> Side:
    processes = [process for process, number in enumerate(rounds) if number in common]
    selected = tuple(rounds[process] for process in processes)
    calls = side.calls._replace(rounds=selected) if side.calls else None
    return side._replace(table=side.table.with_processes(processes), calls=calls)


def _output_agreement(baseline: Side, candidate: Side) -> OutputAgreement | None:
    """Return the agreement of the outputs of the first round that both sides have; None if not comparable."""
    from opscope.analysis.compare.outputs import DEFAULT_TOLERANCE, TOLERANCES, compare_outputs

    arrays = [saved_outputs(side) for side in (baseline, candidate)]
    if arrays[0] is None or arrays[1] is None:
        return None
    # What two converters made is told apart by accuracy, not graded.
    if baseline.format != candidate.format or not may_have_same_inputs(baseline, candidate):
        return None
    types = {side.model.dtype if side.model else None for side in (baseline, candidate)}
    # Of two number types the coarser one says what rounding explains; what is not known is taken for coarse, too.
    widest = max(types, key=lambda dtype: TOLERANCES.get(dtype or "", DEFAULT_TOLERANCE))
    guesses = baseline.bundle.manifest.plan.guesses if baseline.bundle else []
    return compare_outputs(arrays[0], arrays[1], widest, guesses=guesses)
