"""Analysing one side, and comparing two: times, outputs, and accuracy on labelled inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.core.errors import MismatchError, RunError
from opscope.core.parts import explained, failures_heard, part
from opscope.core.units import counted_text
from opscope.measurements.comparability import machine_mismatches, measured_apart

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
    """What the first process of a variant of a bundle computed; None when it was not saved."""
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
    """How far the outputs of two sides differ on the same inputs, or why they were not compared.

    None where that is no question: for sides without a bundle, which name no program, and for variants of one program
    in one bundle and runtime without labelled inputs, whose outputs have to agree.
    """
    from opscope.analysis.compare.outputs import not_compared

    if baseline.bundle is None or candidate.bundle is None:
        if baseline.bundle is candidate.bundle:
            return None
        which = "baseline" if baseline.bundle is None else "candidate"
        return not_compared(f"the {which} is not a bundle, so its outputs are unknown", _PROFILE)
    accuracy = _of_samples(baseline, candidate, baseline.bundle, candidate.bundle)
    if accuracy is not None or _one_program(baseline, candidate):
        return accuracy
    return _of_timed(baseline, candidate)


_FINISH = "finish its run: repeat the command with --resume and --inputs"
_PROFILE = "profile both programs with `opscope profile`, with the same --seed or the same --inputs"
_SAME_INPUTS = "convert both programs from the same model for the same input sizes and types"
_SAME_SEED = "profile both programs with the same --seed, or the same --inputs"


def _one_program(baseline: Side, candidate: Side) -> bool:
    one, other = baseline.bundle, candidate.bundle
    if one is None or other is None or one.path.resolve() != other.path.resolve():
        return False
    if baseline.format != candidate.format:
        return False
    return (
        baseline.model is not None and candidate.model is not None and baseline.model.sha256 == candidate.model.sha256
    )


def _of_samples(baseline: Side, candidate: Side, one: Bundle, other: Bundle) -> Accuracy | None:
    """Outputs of labelled inputs; None where not both sides ran some."""
    from opscope.analysis.compare.outputs import compare_samples, not_compared

    left_run, right_run = one.manifest.samples, other.manifest.samples
    if left_run is None or right_run is None:
        return None
    if left_run.inputs_sha256 != right_run.inputs_sha256:
        texts = [f"{counted_text(own.count, 'input')} of {own.source}" for own in (left_run, right_run)]
        reason = f"the labelled inputs differ: {texts[0]} in the baseline, {texts[1]} in the candidate"
        return not_compared(reason, "profile both programs with the same --inputs")
    found = [_samples(side) for side in (baseline, candidate)]
    for name, own in zip(("baseline", "candidate"), found, strict=True):
        if isinstance(own, str):
            return not_compared(f"the {name} has no outputs for the labelled inputs: {own}", _FINISH)
    (left, labels), (right, others) = (own for own in found if not isinstance(own, str))
    if labels.tolist() != others.tolist():
        return not_compared("the input labels differ", "profile both programs with the same --inputs")
    return compare_samples(left, right, labels)


def _samples(side: Side) -> tuple[list[Array], Array] | str:
    """The outputs of labelled inputs that a variant ran, and the labels; or why there are none."""
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


def _of_timed(baseline: Side, candidate: Side) -> Accuracy:
    """Outputs of the one input that timed runs repeat."""
    from opscope.analysis.compare.outputs import compare_single_input, not_compared

    inputs = _inputs(baseline), _inputs(candidate)
    for name, own in zip(("baseline", "candidate"), inputs, strict=True):
        if isinstance(own, str):
            return not_compared(f"the inputs of the {name} are unknown: {own}", _PROFILE)
    left, right = (own for own in inputs if isinstance(own, _Inputs))
    reason = _unlike(left, right)
    if reason is not None:
        return not_compared(reason, _SAME_INPUTS if left.unlike or right.unlike else _SAME_SEED)
    outputs = [saved_outputs(side) for side in (baseline, candidate)]
    if outputs[0] is None or outputs[1] is None:
        which = "baseline" if outputs[0] is None else "candidate"
        return not_compared(f"the bundle of the {which} has no outputs", "profile it again")
    return compare_single_input(
        outputs[0], aligned(outputs[1], outputs[0]), _moved(left, right) or _rounded(left, right)
    )


def same_inputs(baseline: Side, candidate: Side) -> bool:
    """Whether nothing is known against it that two variants of one bundle were given the same values."""
    variant_inputs = baseline.bundle.manifest.plan.inputs_of if baseline.bundle else {}
    return not any(side.label in variant_inputs and variant_inputs[side.label].unlike for side in (baseline, candidate))


class _Inputs(NamedTuple):
    """The inputs of a variant's calls."""

    calls: list[str]  # the methods that they are for; empty for the only one
    arrays: list[Array]  # values of all tensors
    types: list[str]  # their number types
    values: list[bool | int | float | None]  # numbers and truth values among the inputs
    unlike: str | None = None  # why they are not those of the other programs of the bundle; None where they are


def _inputs(side: Side) -> _Inputs | str:
    """What the program was given: values of the bundle, or those that the seed gives again; or why that is unknown."""
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
    types, values = [tensor.dtype for tensor in first.inputs], [one.value for one in plan.inputs if one.shape is None]
    if bundle.manifest.environment.runs_build:
        return "the runner is not opscope's"
    if plan.values is not None:
        bundle.check_hash(plan.values, sha256_of(bundle.path / plan.values), plan.values_sha256)
        kept = read_arrays(bundle.path / plan.values)
        return _Inputs(plan.calls, list(kept.values()), types, values, unlike)
    if plan.seed is None:
        return "the bundle has no seed"
    try:
        return _Inputs(plan.calls, random_inputs(first.inputs, plan.seed), types, values, unlike)
    except RunError as error:
        return error.problem


def _unlike(left: _Inputs, right: _Inputs) -> str | None:
    """Why the inputs of both sides are not the same; None where they are, up to the rounding of floats."""
    if left.unlike or right.unlike:
        return f"the inputs differ: {right.unlike or left.unlike}"
    if left.calls != right.calls and max(len(left.calls), len(right.calls)) > 1:
        return "they call different methods"
    if left.values != right.values or len(left.arrays) != len(right.arrays):
        return "they do not take the same inputs"
    for number, (one, other) in enumerate(zip(left.arrays, aligned(right.arrays, left.arrays), strict=True)):
        if one.shape != other.shape:
            return (
                f"input {number} has the shape {list(one.shape)} in the baseline, {list(other.shape)} in the candidate"
            )
        if not _same_values(one, other):
            hashes = [_hash([array]) for array in (one, other)]
            return f"input {number} has other values in the candidate (SHA-256 {hashes[0]} and {hashes[1]})"
    return None


def _hash(arrays: Sequence[Array]) -> str:
    from opscope.readers.outputs import values_sha256

    return values_sha256(arrays)[:12]


def _same_values(one: Array, other: Array) -> bool:
    import numpy as np

    floats = all(np.issubdtype(side.dtype, np.floating) for side in (one, other))
    if not floats and one.dtype != other.dtype:
        return False
    # Of two widths the narrower holds the values of the wider one, rounded.
    narrow = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    return bool(np.array_equal(one.astype(narrow), other.astype(narrow), equal_nan=floats))


def _moved(left: _Inputs, right: _Inputs) -> str | None:
    """That the inputs of one side are those of the other in another order of dimensions; None where they are not."""
    shapes = [[array.shape for array in side.arrays] for side in (left, right)]
    return "the same inputs, with dimensions in another order" if shapes[0] != shapes[1] else None


def _rounded(left: _Inputs, right: _Inputs) -> str | None:
    """That the inputs of one side are those of the other, rounded; None where they are the same bits."""
    pairs = list(zip(left.types, right.types, strict=False))
    unlike = next((pair for pair in pairs if pair[0] != pair[1]), None)
    return f"the same inputs, as {unlike[0]} in the baseline and {unlike[1]} in the candidate" if unlike else None


def aligned(arrays: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """The arrays of one side in the order of axes of the other side; one that fits in no known order stays as it is."""
    if len(arrays) != len(other):
        return list(arrays)
    return [_aligned(array, like.shape) for array, like in zip(arrays, other, strict=True)]


def _aligned(array: Array, sizes: Sequence[int]) -> Array:
    from opscope.program.structure.dtypes import axes_between

    if _without_ones(array.shape) == _without_ones(sizes):
        return array.reshape(sizes)
    axes = axes_between(array.shape, sizes)
    return array if axes is None else array.transpose(axes)


def _without_ones(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def analysis_of(side: Side) -> Analysis:
    """The analysis of one side; what a bug of ours leaves unknown is among its warnings."""
    from opscope.analysis.findings.message import part_warning

    with failures_heard() as failures:
        analysis = _analysis_of(side)
    if not failures:
        return analysis
    told = dict.fromkeys([*analysis.trace.warnings, *map(part_warning, failures)])
    return msgspec.structs.replace(analysis, trace=msgspec.structs.replace(analysis.trace, warnings=list(told)))


def analysis_within(bundle: Bundle, analysis: Analysis) -> Analysis:
    """An analysis as a derived file of a bundle holds it: its paths begin at the bundle's directory."""
    trace = msgspec.structs.replace(analysis.trace, path=bundle.inside(analysis.trace.path))
    program = analysis.program
    if program is not None:
        record = None if program.etrecord is None else bundle.inside(program.etrecord)
        program = msgspec.structs.replace(program, path=bundle.inside(program.path), etrecord=record)
    return msgspec.structs.replace(analysis, trace=trace, program=program)


def comparison_within(bundle: Bundle, comparison: Comparison) -> Comparison:
    """A comparison as a derived file of a bundle holds it; a side of another bundle is named from this one on."""
    baseline, candidate = (
        msgspec.structs.replace(side, path=bundle.inside(side.path))
        for side in (comparison.baseline, comparison.candidate)
    )
    return msgspec.structs.replace(comparison, baseline=baseline, candidate=candidate)


def _analysis_of(side: Side) -> Analysis:
    from opscope.analysis.analysis import TraceSource, analyse
    from opscope.measurements.quality import quality_of, withheld_because

    source = TraceSource(side.path, side.format, side.files)
    name = side.variant.name if side.variant else None
    analysis = analyse(side.table, source, name, side.known, side.calls, side.phases, disturbed=withheld_because(side))
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
        comparison = _comparison_of(baseline, candidate, across_machines=across_machines)
    return msgspec.structs.replace(comparison, notes=[*comparison.notes, *(failure.sentence for failure in failures)])


def comparisons_of(pairs: Sequence[tuple[Side, Side]], why_not: list[str]) -> list[Comparison]:
    """The comparison of each pair of a report, as far as there is one."""
    return [comparison for pair in pairs if (comparison := _comparison_known(*pair, why_not)) is not None]


def _comparison_known(baseline: Side, candidate: Side, why_not: list[str]) -> Comparison | None:
    named = f"the comparison of {candidate.label} with {baseline.label}"
    try:
        return explained(
            named, lambda: comparison_of(baseline, candidate), lambda failure: why_not.append(failure.sentence)
        )
    except RunError as error:
        why_not.append(f"{named}: unknown because {error.problem}")
        return None


def _comparison_of(baseline: Side, candidate: Side, *, across_machines: bool) -> Comparison:
    from opscope.analysis.analysis import measured_latency
    from opscope.analysis.compare.compare import MethodChange, RelatedData
    from opscope.analysis.compare.compare import compare as compare_tables
    from opscope.analysis.findings.message import unjudged
    from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
    from opscope.measurements.quality import quality_of_sides, withheld_because

    for side in (baseline, candidate):
        if side.bundle and side.bundle.manifest.target.emulated:
            raise MismatchError(EMULATED, where=side.path, hint=ON_THE_DEVICE)
        measured_latency(side.table, side.path)  # refuses a side without measured inferences, with its name
    baseline, candidate, paired = paired_sides(baseline, candidate)
    labels = ((baseline.label, baseline.path), (candidate.label, candidate.path))
    outputs = part("the agreement of outputs", lambda: _outputs(baseline, candidate), None) if paired else None
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
            _untraced(baseline, candidate, paired=paired),
            _untraced_by_method(baseline, candidate, paired=paired),
            (_traced_callers(baseline), _traced_callers(candidate)),
            same_program=_same_program(baseline, candidate),
            same_runtime=baseline.format == candidate.format,
            disturbed=next(iter(mismatched), None) or withheld_because(baseline, candidate),
        ),
    )
    quality = explained("the quality", lambda: quality_of_sides(baseline, candidate, compared), unjudged)
    nothing: list[NumberTypeCause] = []
    causes = part("number types", lambda: _number_type_causes(baseline, candidate, compared), nothing)
    return msgspec.structs.replace(
        compared,
        end_to_end=msgspec.structs.replace(compared.end_to_end, grade=quality.grade),
        methods=[
            MethodChange(one.method, msgspec.structs.replace(one.end_to_end, grade=quality.grade))
            for one in compared.methods
        ],
        notes=[*compared.notes, *_differences(baseline, candidate)],
        quality=quality,
        accuracy=explained("accuracy", lambda: accuracy_of(baseline, candidate), _accuracy_unknown),
        number_types=causes,
    )


def _number_type_causes(baseline: Side, candidate: Side, compared: Comparison) -> list[NumberTypeCause]:
    """Find why a candidate of lower precision is not faster; empty for one program, and where it is faster."""
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


def _accuracy_unknown(failure: PartFailure) -> Accuracy:
    from opscope.analysis.compare.outputs import not_compared

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


def _traced_callers(side: Side) -> TracedCallers | None:
    """Return what is known of the calls of the traced processes; None where their durations are not."""
    return side.calls.traced_callers() if side.calls else None


def _untraced_by_method(
    baseline: Side, candidate: Side, *, paired: bool
) -> dict[str, tuple[list[Floats], list[Floats]]]:
    """The same for each method that both sides call."""
    orders = [side.calls.order if side.calls else () for side in (baseline, candidate)]
    both = dict.fromkeys(method for method in orders[0] if method in orders[1])
    each = {method: _untraced(baseline, candidate, paired=paired, method=method) for method in both}
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
    differences = measured_apart(baseline, candidate)
    if left.environment.cpu != right.environment.cpu or left.environment.features != right.environment.features:
        differences.append("the two sides ran on different CPUs")
    if left.environment.versions != right.environment.versions:
        differences.append("the two sides ran with different versions of the software")
    return differences


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
    guesses = baseline.bundle.manifest.plan.guesses if baseline.bundle else []
    return compare_outputs(arrays[0], arrays[1], widest, guesses=guesses)
