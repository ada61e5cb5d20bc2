"""Evidence ladder of an operator: could an accelerated kernel run it, is one there, chosen, run, and faster?

Each rung has its own source, and none follows from another: a kernel that is in the library need not be chosen, one
that is chosen need not be faster. What no source tells is "not known here", with the reason. The questions are about
one instruction set, the one that the experiment switches: SME on Arm, where rules for operators are known, or a group
of x86-64, where only the last rung can be answered from timings.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.analysis.compare.compare import largest_speedup, shown_not_faster
from opscope.analysis.kernels.kernel_sources import ThreadedVariant
from opscope.analysis.operators.operators import FRAMEWORK_BACKEND, PORTABLE_BACKEND
from opscope.core.stats.effect import Verdict as Effect
from opscope.core.table.places import OperatorKey, RecordedOperator, by_operator, operator_key
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text
from opscope.program.kernels.symbols import SME_FAMILY, IsaClass, parse_symbol
from opscope.program.operators.kinds import Category
from opscope.program.partition.sme_rules import RULES, TABLE
from opscope.program.partition.verdicts import SmeSupport
from opscope.program.xnnpack.attribution import is_sparse_product

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.compare.compare import Comparison, OperatorChange
    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.analysis.operators.operators import Operator
    from opscope.program.kernels.kernel_calls import OperatorCalls
    from opscope.program.partition.verdicts import Eligibility


BY_RUNTIME = "named by the runtime"
"""Source of statements that a runtime makes itself."""


class EvidenceLevel(str, enum.Enum):
    """Question of the evidence ladder, in the order in which they build on each other."""

    ELIGIBLE = "eligible"
    IN_BINARY = "in binary"
    SELECTED = "selected"
    EXECUTED = "executed"
    FASTER = "faster"


class Answer(str, enum.Enum):
    """Answer to one question."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "not known here"


class LevelAnswer(msgspec.Struct, frozen=True):
    """Answer at one level.

    Attributes:
        rung: the question.
        answer: answer to the question.
        detail: what the answer rests on, or why there is none.
        source: where that is from; null without a source.
        isa: the strongest instruction set of kernels that ran; null where none is known to have run.
        calls: calls of the kernels that computed, where calls were counted, in all runs together.
        runs: runs of the operator, in which these calls were; null where none were counted.
    """

    rung: EvidenceLevel
    answer: Answer
    detail: str
    source: str | None = None
    isa: IsaClass | None = None
    calls: dict[str, int] = {}
    runs: int | None = None


class LadderInputs(NamedTuple):
    """Knowledge of one variant."""

    operators: Sequence[Operator]  # operators of its analysis
    sme: Mapping[OperatorKey, Eligibility]  # whether SME can run an operator, where the program tells
    machine: str | None = None  # architecture as the operating system names it; None if unknown
    features: frozenset[str] | None = None  # feature groups that are on; None if unknown
    emulated: bool = False  # whether an emulator ran it, so that times mean nothing
    switched: tuple[str, ...] = ()  # groups that the experiment switches off elsewhere; empty when none is
    exported: frozenset[str] | None = None  # kernels that the library exports; None where nobody looked
    # of every operator, by a counter; None where nothing was counted
    calls: Mapping[OperatorKey, OperatorCalls] | None = None
    problem: str | None = None  # why calls could not be given to operators; None when they could
    counted: KernelSource | None = None  # everything that was counted in the process
    named: bool = False  # whether the runtime names the kernel of each operator that ran
    registered: KernelSource | None = None  # what the library listed in it
    comparison: Comparison | None = None  # comparison with the baseline, where this variant is the candidate

    @property
    def arm(self) -> bool:
        """Return whether the questions are about SME: on Arm, and by default for packed number types."""
        return self.machine in {"aarch64", "arm64"}

    @property
    def about(self) -> str:
        """Instruction sets that the questions are about."""
        return "SME and SME2" if self.arm else ", ".join(self.switched) or "acceleration"


Amount = TypeVar("Amount", int, "int | None")
_PACKED = ("PF", "PQS")
_DYNAMIC = ("QP",)
_X86 = "on x86-64 the library's kernels have no exported names"
_ANYWHERE = "the CPU it ran on is unknown"


def _unknown_answer(rung: EvidenceLevel, why: str) -> LevelAnswer:
    return LevelAnswer(rung, Answer.UNKNOWN, why)


def answer_eligible(known: LadderInputs, operator: OperatorKey) -> LevelAnswer:
    """Answer whether an accelerated kernel could run an operator, by its types and shape and by the CPU."""
    rung = EvidenceLevel.ELIGIBLE
    if not known.arm:
        return _unknown_answer(rung, f"opscope has no rule for which operators {known.about} can run")
    eligibility = known.sme.get(operator)
    if eligibility is None:
        return _unknown_answer(rung, "the program does not say what this operator computes")
    if eligibility.verdict is not SmeSupport.ELIGIBLE:
        answer = Answer.NO if eligibility.verdict is SmeSupport.NOT_ELIGIBLE else Answer.UNKNOWN
        return LevelAnswer(rung, answer, eligibility.reason, eligibility.source)
    if known.features is None:
        return _unknown_answer(rung, "eligible by types and shape; the CPU's features are unknown")
    if "sme" not in known.features:
        return LevelAnswer(rung, Answer.NO, "eligible by types and shape, but SME is absent or off here", "features")
    return LevelAnswer(rung, Answer.YES, f"{eligibility.types}: {eligibility.reason}", f"{TABLE}: {eligibility.source}")


def _sme_kernel_names(known: LadderInputs, operator: OperatorKey) -> list[str]:
    """Return the SME kernels that can run an operator; empty if no rule names any."""
    eligibility = known.sme.get(operator)
    rules = [
        rule for rule in RULES if eligibility and rule.form is eligibility.form and rule.types_name == eligibility.types
    ]
    texts = [text for rule in rules if rule.kernels for text in rule.kernels]
    return [f"kai_run_matmul_clamp_{name}" for text in texts for name in text.split(", ")]


def answer_in_binary(known: LadderInputs, operator: OperatorKey) -> LevelAnswer:
    """Answer whether the library has an accelerated kernel for an operator, by its exported names."""
    rung = EvidenceLevel.IN_BINARY
    if not known.arm:
        return _unknown_answer(rung, _X86 if known.machine else _ANYWHERE)
    if known.exported is None:
        return _unknown_answer(rung, "the library was not inspected: count kernels, or name it with --library")
    names = _sme_kernel_names(known, operator)
    exported = [name for name in names if name in known.exported]
    if exported:
        return LevelAnswer(rung, Answer.YES, ", ".join(exported), "exported symbols of the library")
    why = "no kernel is known for it" if not names else "the library exports none of its kernels, which proves nothing"
    return _unknown_answer(rung, why)


def answer_selected(known: LadderInputs, row: Operator) -> LevelAnswer:
    """Answer whether the library chose an accelerated kernel, by the operator's name in the trace."""
    type_words = row.name.partition("(")[2].partition(")")[0]
    rung, types = EvidenceLevel.SELECTED, [word.strip() for word in type_words.split(",")[1:]]
    source = "operator name in the trace"
    if any(word.startswith(_PACKED) for word in types):
        return LevelAnswer(rung, Answer.YES, f"{', '.join(types)}: packed types, which only SME kernels use", source)
    if known.machine is None:
        return _unknown_answer(
            rung, f"{_ANYWHERE}: on Arm, unpacked types suggest that SME was not used; on x86-64 they show nothing"
        )
    if not known.arm:
        return _unknown_answer(rung, "on x86-64 names are the same for every instruction set")
    if not types:
        return _unknown_answer(rung, "the name does not show number types")
    if any(word.startswith(_DYNAMIC) for word in types):
        return _unknown_answer(
            rung, f"{', '.join(types)}: types quantised at run time have the same name with and without SME"
        )
    sparse = "sparse-weight kernels never use SME"
    why = sparse if is_sparse_product(row.name) else "types that are not packed for SME"
    return LevelAnswer(rung, Answer.NO, f"{', '.join(types)}: {why}", source)


def _answer_by_kernel(rung: EvidenceLevel, row: Operator) -> LevelAnswer:
    """Answer by the name of the kernel that ran, which the runtime gives."""
    name = row.kernel or ""
    symbol = parse_symbol(name)
    if symbol is None or symbol.isa is IsaClass.UNKNOWN:
        return _unknown_answer(rung, f"{name} ran, whose name shows no instruction set")
    calls = {name: round(row.calls)} if rung is EvidenceLevel.EXECUTED else {}
    return LevelAnswer(rung, Answer.YES, f"{name} ran", BY_RUNTIME, symbol.isa, calls, 1 if calls else None)


def answer_executed(known: LadderInputs, operator: OperatorKey) -> LevelAnswer:
    """Answer whether an accelerated kernel was called, by counts."""
    operator_calls = known.calls.get(operator) if known.calls else None
    if operator_calls is not None and known.counted:
        return _answer_by_counts(operator_calls, known.counted)
    if known.counted and not _sme_calls(known.counted.amounts):
        detail = (
            f"none of {counted_text(len(known.counted.universe or ()), 'counted kernel')} of the SME family was called"
        )
        return LevelAnswer(EvidenceLevel.EXECUTED, Answer.NO, detail, _calls_source_text(known.counted))
    return _unknown_answer(EvidenceLevel.EXECUTED, _not_counted_reason(known))


def _not_counted_reason(known: LadderInputs) -> str:
    if known.problem:
        return known.problem
    if known.registered:
        return "the log lists registered kernels, not those that ran"
    if known.machine and not known.arm:
        return _X86
    return "no calls were counted"


def _answer_by_counts(operator_calls: OperatorCalls, source: KernelSource) -> LevelAnswer:
    sme, computing = _sme_calls(operator_calls.calls), _computing_calls(operator_calls.calls)
    runs = f"in {counted_text(operator_calls.runs, 'run')}"
    otherwise = f", but {_calls_text(operator_calls.calls)}" if operator_calls.calls else ""
    answer = Answer.YES if sme else Answer.NO
    detail = f"{_calls_text(sme)} {runs}" if sme else f"no kernel of the SME family {runs}{otherwise}"
    isa = _strongest_isa(sme or computing)
    return LevelAnswer(
        EvidenceLevel.EXECUTED, answer, detail, _calls_source_text(source), isa, computing, operator_calls.runs
    )


def _calls_text(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {counted_text(count, 'time')}" for name, count in calls.items())


def _sme_calls(calls: Mapping[str, Amount]) -> dict[str, Amount]:
    """Return the calls of SME kernels that compute, without those that only lay data out."""
    symbols = {name: parse_symbol(name) for name in _computing_calls(calls)}
    return {name: calls[name] for name, symbol in symbols.items() if symbol and symbol.isa in SME_FAMILY}


def _computing_calls(calls: Mapping[str, Amount]) -> dict[str, Amount]:
    """Return the calls of kernels that compute, without those that only lay data out."""
    symbols = {name: parse_symbol(name) for name in calls}
    return {name: calls[name] for name, symbol in symbols.items() if symbol is None or not symbol.packs}


def _strongest_isa(names: Iterable[str]) -> IsaClass | None:
    isas = {symbol.isa for name in names if (symbol := parse_symbol(name))}
    return next((isa for isa in IsaClass if isa in isas), None)


def _calls_source_text(source: KernelSource) -> str:
    return f"calls counted, {source.column.path}"


def answer_faster(known: LadderInputs, operator: OperatorKey) -> LevelAnswer:
    """Answer whether the operator is faster than on the baseline, by the verdict of the comparison."""
    rung = EvidenceLevel.FASTER
    if known.emulated:
        return _unknown_answer(rung, "run in an emulator: its timings are meaningless")
    if known.comparison is None:
        return _unknown_answer(rung, "no baseline to compare with")
    change = by_operator(known.comparison.operators).get(operator)
    if change is None or change.baseline_ns is None or change.candidate_ns is None:
        return _unknown_answer(rung, "the baseline has no such operator")
    if change.speedup is None:
        return _unknown_answer(rung, "too short for its clock to resolve")
    source = f"{known.comparison.baseline.label} against {known.comparison.candidate.label}"
    words = _WORDS.get(change.verdict, change.verdict.value)
    saved, most = change.ci95_saved_ns, largest_speedup(change)
    interval = f", 95 % interval {milliseconds(saved[0])} to {milliseconds(saved[1])} ms saved" if saved else ""
    bound = f", at most {ratio_text(most)}" if most is not None and change.verdict is Effect.NO_DIFFERENCE else ""
    return LevelAnswer(
        rung, _faster_answer(change), f"{words}: {ratio_text(change.speedup or 0.0)}{interval}{bound}", source
    )


def _faster_answer(change: OperatorChange) -> Answer:
    if change.verdict is Effect.FASTER:
        return Answer.YES
    return Answer.NO if shown_not_faster(change) else Answer.UNKNOWN


_WORDS = {Effect.NO_DIFFERENCE: "no difference detected"}


_HEAVY = (Category.CONVOLUTION, Category.GEMM)
# Number types of a program by the families that kernels are chosen by; those that are their own family are left out.
_FAMILIES = dict.fromkeys(("qint8", "quint8", "qdint8", "qduint8", "qcint8", "qpint8"), "int8")


class OperatorLadder(RecordedOperator, frozen=True):
    """Levels of one operator in one variant.

    Attributes:
        module: the layer, null if unknown.
        dtype: number type of its first input, null if unknown.
        share: share of end-to-end latency.
        steps: one for each rung, in their order.
    """

    instruction: int
    position: int
    module: str | None
    dtype: str | None
    share: float
    steps: list[LevelAnswer]

    def answer(self, rung: EvidenceLevel) -> Answer:
        """Return the answer at a level."""
        return next(step.answer for step in self.steps if step.rung is rung)


class VariantLadder(ThreadedVariant, frozen=True):
    """Ladders of a variant.

    Attributes:
        about: the instruction sets in question.
        operators: convolutions and matrix products of delegates, longest first.
        problem: why calls could not be given to operators; null when they could, or nothing was counted.
        emulated: whether an emulator ran it, so that shares of latency mean nothing.
    """

    about: str
    operators: list[OperatorLadder]
    problem: str | None = None
    emulated: bool = False


def variant_ladder(variant: str, threads: int | None, known: LadderInputs) -> VariantLadder:
    """Return the ladders of every convolution and matrix product of a variant's delegates."""
    rows = [row for row in known.operators if _is_product(row)]
    ladders = [_operator_ladder(known, row) for row in sorted(rows, key=lambda row: -row.share)]
    return VariantLadder(variant, known.about, ladders, known.problem, known.emulated, threads=threads)


def _is_product(row: Operator) -> bool:
    """Return whether the questions make sense: a product in a delegate, alone or with operators fused into it."""
    heavy = row.category in _HEAVY and row.backend not in {PORTABLE_BACKEND, FRAMEWORK_BACKEND}
    return heavy and operator_key(row) is not None


def _operator_ladder(known: LadderInputs, row: Operator) -> OperatorLadder:
    key = OperatorKey(row.method, row.instruction or 0, row.position or 0)
    if row.kernel and known.named:
        used = [_answer_by_kernel(rung, row) for rung in (EvidenceLevel.SELECTED, EvidenceLevel.EXECUTED)]
    else:
        used = [answer_selected(known, row), answer_executed(known, key)]
    steps = [answer_eligible(known, key), answer_in_binary(known, key), *used, answer_faster(known, key)]
    return OperatorLadder(*key, row.name, row.module, row.dtype, row.share, steps)


def filter_ladder(ladder: VariantLadder, dtypes: Sequence[str], operators: Sequence[str]) -> VariantLadder:
    """Return the ladder with the selected operators only; an empty selection takes all."""
    rows = [
        operator_ladder
        for operator_ladder in ladder.operators
        if _has_types(operator_ladder, dtypes) and _has_name(operator_ladder, operators)
    ]
    return msgspec.structs.replace(ladder, operators=rows)


def _has_types(ladder: OperatorLadder, dtypes: Sequence[str]) -> bool:
    words = ladder.name.replace("(", " ").replace(")", " ").replace(",", " ").lower().split()
    families = {_FAMILIES.get(ladder.dtype or "", ladder.dtype or "")}
    return not dtypes or any(dtype.lower() in {*words, *families} for dtype in dtypes)


def _has_name(ladder: OperatorLadder, operators: Sequence[str]) -> bool:
    ran = next(step.detail for step in ladder.steps if step.rung is EvidenceLevel.EXECUTED)
    text = f"{ladder.name} {ladder.module or ''} {ran}".lower()
    return not operators or any(part.lower() in text for part in operators)


class EvidenceLevelCount(NamedTuple):
    """Numbers of operators with each answer at a level."""

    rung: EvidenceLevel  # the question
    yes: int  # operators with this answer
    no: int
    unknown: int
    share: str  # share of latency, of those with a yes, in words; empty where times mean nothing


def evidence_level_counts(ladder: VariantLadder) -> list[EvidenceLevelCount]:
    """Count the answers of a variant at each level."""
    return [_count_answers(ladder, rung) for rung in EvidenceLevel]


def _count_answers(ladder: VariantLadder, rung: EvidenceLevel) -> EvidenceLevelCount:
    answers = [operator_ladder.answer(rung) for operator_ladder in ladder.operators]
    share = sum(
        operator_ladder.share for operator_ladder in ladder.operators if operator_ladder.answer(rung) is Answer.YES
    )
    yes, no, unknown = (answers.count(answer) for answer in (Answer.YES, Answer.NO, Answer.UNKNOWN))
    return EvidenceLevelCount(rung, yes, no, unknown, "" if ladder.emulated else share_text(share))
