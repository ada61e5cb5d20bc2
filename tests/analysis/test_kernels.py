"""The kernel view and the evidence ladder: what each source may say, and what none of them does."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from opscope.analysis.analysis import TraceSource, analyse
from opscope.analysis.compare.compare import compare
from opscope.analysis.kernels.kernel_sources import (
    EvidenceKind,
    KernelColumn,
    KernelSource,
    KernelState,
    source_of_counter,
    source_of_registrations,
)
from opscope.analysis.kernels.kernels import KernelFilter, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import (
    Answer,
    EvidenceLevel,
    LadderInputs,
    LevelAnswer,
    VariantLadder,
    evidence_level_counts,
    filter_ladder,
    variant_ladder,
)
from opscope.core.table import EventTable
from opscope.core.table.places import OperatorKey
from opscope.measurements.counted_calls import copies_of, join_calls
from opscope.program.kernels.kernel_calls import KernelCalls, OperatorCalls
from opscope.program.kernels.symbols import IsaClass
from opscope.program.partition.verdicts import Eligibility, Form, SmeSupport
from traces import table

MOPA2 = "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"
MOPA = "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1b_2vlx2vl_sme_mopa"
INT8 = "kai_run_matmul_clamp_qai8_qai8p2vlx4_qsi8cxpsb2vlx4_2vlx2vl_sme2_mopa"
DOT = "kai_run_matmul_clamp_f32_qai8dxp1x4_qsi8cxp4x4_1x4_neon_dotprod"
PACK = "kai_run_lhs_pack_f32p2vlx1_f32_sme"
NEON = "xnn_f32_gemm_minmax_ukernel_6x8__neonfma_lane_ld128"
ALL = KernelFilter()
TRACE = """
Method::execute 100000
  DELEGATE_CALL @0 60000
    Transpose (ND, X32) #1 1000
    Convolution (NHWC, PF32) IGEMM #1 50000
  OPERATOR_CALL @1 15000
    native_call_add.out 14000
  DELEGATE_CALL @2 20000
    Fully Connected (NC, PF32) GEMM #1 19000
"""
CONVOLUTION, LINEAR = OperatorKey("unknown", 0, 1), OperatorKey("unknown", 2, 0)


def calls(*operators: OperatorCalls, outside: dict[str, int] | None = None, problem: str | None = None) -> KernelCalls:
    """What a counter of four kernels saw."""
    return KernelCalls((MOPA2, MOPA, DOT, PACK), outside or {}, operators, 2, problem)


CALLS = calls(
    OperatorCalls(0, 0, 1, {}),
    OperatorCalls(0, 1, 1, {MOPA2: 64, PACK: 64}),
    OperatorCalls(1, 0, 1, {MOPA2: 1}),
    outside={PACK: 2},
)


def source(variant: str, kind: EvidenceKind, *names: str, role: str | None = None, threads: int | None = None):
    """A source that names kernels."""
    column = KernelColumn(variant, kind, f"{variant}.log", role, len(names), None, threads=threads)
    return KernelSource(column, dict.fromkeys(names, 1))


# ---- the view


def test_a_counter_knows_nought_and_a_log_knows_no_calls() -> None:
    """No call is a fact; a kernel that was not counted is not known."""
    counted = source_of_counter(CALLS, "on", "on.counts")
    logged = source_of_registrations([(NEON, "gemm", 2), (NEON, "igemm", 1)], "on", "log.txt")
    lines = {line.name: line.cells for line in kernel_lines([counted, logged], ALL, every=True)}
    told = {name: [(cell.state, cell.amount) for cell in cells] for name, cells in lines.items()}
    unknown = (KernelState.UNKNOWN, None)
    assert told[MOPA2] == [(KernelState.COUNTED, 65), (KernelState.ABSENT, None)]
    assert told[MOPA] == [(KernelState.COUNTED, 0), (KernelState.ABSENT, None)]
    assert told[NEON] == [unknown, (KernelState.PRESENT, 3)]


def test_kernels_that_nobody_has_are_shown_only_when_asked_for() -> None:
    """They were looked for: the counter has a list."""
    counted = source_of_counter(CALLS, "on", "on.counts")
    assert [line.name for line in kernel_lines([counted], ALL)] == [MOPA2, PACK]
    assert {line.name for line in kernel_lines([counted], ALL, every=True)} == {MOPA2, MOPA, DOT, PACK}


def test_the_strongest_instruction_set_comes_first() -> None:
    """Then names in their order; what follows no grammar comes last and is kept."""
    own = source("on", EvidenceKind.REGISTERED, NEON, "something else", MOPA, MOPA2, DOT)
    lines = kernel_lines([own], ALL)
    assert [line.name for line in lines] == [MOPA2, MOPA, DOT, NEON, "something else"]
    assert lines[-1].isa is IsaClass.UNKNOWN
    assert lines[-1].operator is None


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (KernelFilter(isa=(IsaClass.SME2,)), {MOPA2, INT8}),
        (KernelFilter(isa=(IsaClass.SME, IsaClass.NEON)), {MOPA, PACK, NEON}),
        (KernelFilter(dtypes=("int8",)), {INT8, DOT}),
        (KernelFilter(dtypes=("qsi8",)), {INT8, DOT}),
        (KernelFilter(operators=("pack",)), {PACK}),
        (KernelFilter(operators=("gemm", "matmul"), dtypes=("fp32",), isa=(IsaClass.NEON,)), {NEON}),
    ],
)
def test_kernels_are_chosen_by_instruction_set_types_and_operator(wanted: KernelFilter, names: set[str]) -> None:
    """Parts of a choice all apply; a name without a grammar is not chosen."""
    own = source("on", EvidenceKind.REGISTERED, MOPA2, MOPA, INT8, DOT, PACK, NEON, "something else")
    assert {line.name for line in kernel_lines([own], wanted)} == names


def test_variants_are_paired_with_the_baseline_of_their_own_threads() -> None:
    """Never across thread counts, never across kinds of evidence, the baseline on the right."""
    counted, logged = EvidenceKind.COUNTED, EvidenceKind.REGISTERED
    sources = [
        source("off-1", counted, NEON, role="baseline", threads=1),
        source("on-1", counted, MOPA2, NEON, role="accelerated", threads=1),
        source("off-2", counted, NEON, role="baseline", threads=2),
        source("on-2", counted, MOPA2, role="accelerated", threads=2),
        source("on-2", logged, MOPA2, role="accelerated", threads=2),
    ]
    pairs = kernel_pairs(sources, ALL)
    assert [(pair.left, pair.right) for pair in pairs] == [(1, 0), (3, 2)]
    assert (pairs[0].only_left, pairs[0].only_right, pairs[0].both) == ([MOPA2], [], [NEON])
    assert (pairs[1].only_left, pairs[1].only_right, pairs[1].both) == ([MOPA2], [NEON], [])


def test_without_roles_every_two_of_the_same_threads_are_paired() -> None:
    """In the order in which they were given."""
    sources = [source(name, EvidenceKind.REGISTERED, NEON) for name in ("a", "b", "c")]
    assert [(pair.left, pair.right) for pair in kernel_pairs(sources, ALL)] == [(0, 1), (0, 2), (1, 2)]


# ---- calls and operators


def test_calls_belong_to_operators_by_the_trace_of_their_process() -> None:
    """Delegates in the order of their first calls, operators in their order within; portable ones are left out."""
    joined = join_calls(table(TRACE), CALLS)
    assert {place: own.calls for place, own in joined.items()} == {
        OperatorKey("unknown", 0, 0): {},
        CONVOLUTION: {MOPA2: 64, PACK: 64},
        LINEAR: {MOPA2: 1},
    }


def test_a_loop_repeats_a_delegate_and_not_its_operators() -> None:
    """The counter adds them up, and so does the join."""
    loop = (
        TRACE + "  DELEGATE_CALL @0 60000\n    Transpose (ND, X32) #1 1000\n    Convolution (NHWC, PF32) IGEMM #1 5\n"
    )
    text = loop.replace("Method::execute 100000", "Method::execute 170000")
    assert not isinstance(join_calls(table(text, repeat=2), CALLS), str)


def test_a_concatenation_is_one_event_and_a_copy_for_each_input() -> None:
    """XNNPACK reads the clock after each copy and adds the times up; the layers behind it keep their own calls."""
    text = (
        "Method::execute 100000\n  DELEGATE_CALL @0 60000\n    Copy (NC, X32) #1 1000\n    Copy (NC, X32) #2 1000\n"
        "    Convolution (NHWC, PF32) IGEMM #1 5\n"
    )
    counted_ = calls(*(OperatorCalls(0, at, 1, {}) for at in range(4)), OperatorCalls(0, 4, 1, {MOPA2: 64}))
    first, second, convolution = (OperatorKey("unknown", 0, position) for position in range(3))
    joined = join_calls(table(text), counted_, {second: 3})
    assert joined[convolution].calls == {MOPA2: 64}
    assert not joined[first].calls
    assert "of 3 operators, the counter saw 5" in str(join_calls(table(text), counted_))
    rows = [
        msgspec.structs.replace(row, computes=["Concatenate3"]) if row.position == 1 else row
        for row in known(text).operators
    ]
    assert copies_of(rows) == {second: 3}


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (calls(OperatorCalls(0, 0, 1, {MOPA2: 1})), "delegates of 2, 1 operators, the counter saw 1"),
        (calls(), "delegates of 2, 1 operators, the counter saw none"),
        (calls(problem="delegates ran concurrently"), "delegates ran concurrently"),
    ],
)
def test_calls_that_do_not_fit_the_trace_are_given_to_nobody(seen: KernelCalls, problem: str) -> None:
    """All numbers must agree."""
    joined = join_calls(table(TRACE), seen)
    assert problem in joined


# ---- the ladder

ELIGIBLE = Eligibility(SmeSupport.ELIGIBLE, Form.PRODUCT, "PF32", "there are kernels", "src/subgraph.c", tried=True)
REFUSED = Eligibility(SmeSupport.NOT_ELIGIBLE, Form.PRODUCT, "F32", "one scale only", "src/subgraph.c", tried=True)


def traced(text: str = TRACE) -> EventTable:
    """A trace of two inferences."""
    return table(text, repeat=2)


def known(text: str = TRACE, **fields: object) -> LadderInputs:
    """What is known of a variant on Arm with SME."""
    own = {
        "machine": "aarch64",
        "features": frozenset({"sme", "sme2"}),
        "sme": {CONVOLUTION: ELIGIBLE, LINEAR: ELIGIBLE},
    }
    operators = analyse(traced(text), TraceSource("trace", "etdump", [("trace", "0" * 64)])).operators
    return LadderInputs(**{"operators": operators, **own, **fields})  # type: ignore[arg-type]


def step(ladder: VariantLadder, rung: EvidenceLevel, place: OperatorKey = CONVOLUTION) -> LevelAnswer:
    """One answer for one operator."""
    own = next(each for each in ladder.operators if (each.method, each.instruction, each.position) == place)
    return next(each for each in own.steps if each.rung is rung)


def counted(seen: KernelCalls = CALLS) -> dict[str, object]:
    """What is known when calls were counted."""
    joined = join_calls(table(TRACE), seen)
    return {
        "calls": {} if isinstance(joined, str) else joined,
        "problem": joined if isinstance(joined, str) else None,
        "counted": source_of_counter(seen, "on", "evidence/on/kernels.counts"),
        "exported": frozenset(seen.kernels),
    }


def test_every_rung_has_its_own_source() -> None:
    """Eligible by the program, in the library by its symbols, chosen by the trace, run by counts."""
    ladder = variant_ladder("on", 1, known(**counted()))
    assert [own.name for own in ladder.operators] == [
        "Convolution (NHWC, PF32) IGEMM #1",
        "Fully Connected (NC, PF32) GEMM #1",
    ]
    answers = {rung: step(ladder, rung) for rung in EvidenceLevel}
    assert [answers[rung].answer for rung in EvidenceLevel] == [Answer.YES] * 4 + [Answer.UNKNOWN]
    assert "src/subgraph.c" in str(answers[EvidenceLevel.ELIGIBLE].source)
    assert MOPA2 in answers[EvidenceLevel.IN_BINARY].detail
    assert answers[EvidenceLevel.SELECTED].source == "operator name in the trace"
    assert f"{MOPA2} 64 times in 1 run" in answers[EvidenceLevel.EXECUTED].detail
    assert (answers[EvidenceLevel.EXECUTED].isa, answers[EvidenceLevel.FASTER].source) == (IsaClass.SME2, None)


def test_without_evidence_nothing_is_claimed_to_have_run() -> None:
    """A chosen kernel is not a kernel that ran."""
    ladder = variant_ladder("on", 1, known())
    assert step(ladder, EvidenceLevel.SELECTED).answer is Answer.YES
    assert step(ladder, EvidenceLevel.EXECUTED).answer is Answer.UNKNOWN
    assert "no calls were counted" in step(ladder, EvidenceLevel.EXECUTED).detail
    assert step(ladder, EvidenceLevel.IN_BINARY).answer is Answer.UNKNOWN


def test_a_log_of_registered_kernels_is_no_execution() -> None:
    """Whatever it lists."""
    logged = source_of_registrations([(MOPA2, "gemm", 1)], "on", "log.txt")
    found = step(variant_ladder("on", 1, known(registered=logged)), EvidenceLevel.EXECUTED)
    assert (found.answer, found.source) == (Answer.UNKNOWN, None)
    assert "registered kernels, not those that ran" in found.detail


def test_packing_alone_is_no_execution() -> None:
    """Data were laid out for SME, and no kernel of the family computed with them."""
    seen = calls(
        OperatorCalls(0, 0, 1, {}), OperatorCalls(0, 1, 3, {PACK: 3, DOT: 6}), OperatorCalls(1, 0, 1, {MOPA: 1})
    )
    ladder = variant_ladder("on", 1, known(**counted(seen)))
    found = step(ladder, EvidenceLevel.EXECUTED)
    assert found.answer is Answer.NO
    assert f"but {PACK} 3 times, {DOT} 6 times" in found.detail
    assert step(ladder, EvidenceLevel.EXECUTED, LINEAR).isa is IsaClass.SME


def test_when_calls_cannot_be_given_to_operators_only_nought_is_certain() -> None:
    """No call at all is a no for all; some calls are nobody's."""
    none = calls(problem="delegates ran concurrently in several threads")
    assert step(variant_ladder("on", 1, known(**counted(none))), EvidenceLevel.EXECUTED).answer is Answer.NO
    some = calls(OperatorCalls(0, None, 0, {MOPA2: 5}), problem="delegates ran concurrently in several threads")
    found = step(variant_ladder("on", 1, known(**counted(some))), EvidenceLevel.EXECUTED)
    assert (found.answer, found.detail) == (Answer.UNKNOWN, "delegates ran concurrently in several threads")


@pytest.mark.parametrize(
    ("fields", "answer", "said"),
    [
        ({"features": frozenset({"i8mm"})}, Answer.NO, "SME is absent or off"),
        ({"features": None}, Answer.UNKNOWN, "the CPU's features are unknown"),
        ({"sme": {}}, Answer.UNKNOWN, "does not say"),
        ({"sme": {CONVOLUTION: REFUSED}}, Answer.NO, "one scale only"),
        ({"machine": "x86_64", "switched": ("avx512",)}, Answer.UNKNOWN, "avx512"),
    ],
)
def test_eligible_needs_the_program_and_the_processor(fields: dict[str, object], answer: Answer, said: str) -> None:
    """And a rule, which is known for SME only."""
    found = step(variant_ladder("on", 1, known(**fields)), EvidenceLevel.ELIGIBLE)
    assert found.answer is answer
    assert said in found.detail


@pytest.mark.parametrize(
    ("types", "machine", "answer"),
    [
        ("PF16", "aarch64", Answer.YES),
        ("PQS8, QS8, QC8W", "aarch64", Answer.YES),
        ("F32", "aarch64", Answer.NO),
        ("QP8, F32, QC8W", "aarch64", Answer.UNKNOWN),
        ("F32", "x86_64", Answer.UNKNOWN),
    ],
)
def test_what_was_chosen_stands_in_the_name_on_arm_only(types: str, machine: str, answer: Answer) -> None:
    """Types quantised at run time have one name with and without SME."""
    text = TRACE.replace("NHWC, PF32", f"NHWC, {types}")
    assert step(variant_ladder("on", 1, known(text, machine=machine)), EvidenceLevel.SELECTED).answer is answer


def processes(convolution: int) -> EventTable:
    """Ten processes whose convolution takes about this many ns; each is 100 ns longer than the one before."""
    return at_times(convolution + 100 * number for number in range(10))


def at_times(times: Iterable[int]) -> EventTable:
    """Processes whose convolutions take these times."""
    texts = (
        TRACE.replace("50000", str(own)).replace("100000", str(own + 50000)).replace("60000", str(own + 10000))
        for own in times
    )
    return EventTable.concat([traced(text) for text in texts])


def test_no_is_said_only_where_a_speedup_is_excluded() -> None:
    """Eight equal rounds exclude one; with operators that scatter by half none is shown, and none is excluded."""
    answers = []
    for scatter in (0, 40_000):
        own = [50_000 + scatter * (number % 3) for number in range(8)]
        sides = (at_times(times) for times in (own, own[::-1]))
        found = compare(*sides, labels=(("off", ""), ("on", "")), paired=True)
        answers.append(step(variant_ladder("on", 1, known(comparison=found)), EvidenceLevel.FASTER).answer)
    assert answers == [Answer.NO, Answer.UNKNOWN]


def test_faster_is_the_verdict_of_the_comparison() -> None:
    """By operator; an emulator's times are none."""
    compared = compare(processes(150000), processes(50000), labels=(("off", ""), ("on", "")), paired=True)
    ladder = variant_ladder("on", 1, known(comparison=compared))
    found = step(ladder, EvidenceLevel.FASTER)
    assert (found.answer, found.source) == (Answer.YES, "off against on")
    assert found.detail.startswith("faster: ")
    assert "ms saved" in found.detail
    assert step(ladder, EvidenceLevel.FASTER, LINEAR).answer is Answer.NO
    emulated = variant_ladder("on", 1, known(comparison=compared, emulated=True))
    assert step(emulated, EvidenceLevel.FASTER).answer is Answer.UNKNOWN
    assert "timings are meaningless" in step(emulated, EvidenceLevel.FASTER).detail
    assert {count.share for count in evidence_level_counts(emulated)} == {""}


def test_five_lines_tell_how_far_the_evidence_goes() -> None:
    """Yes, no and not known for each question; with a yes, their share of the latency."""
    counts = evidence_level_counts(variant_ladder("on", 1, known(**counted())))
    assert [(row.rung, row.yes, row.no, row.unknown) for row in counts] == [
        (EvidenceLevel.ELIGIBLE, 2, 0, 0),
        (EvidenceLevel.IN_BINARY, 2, 0, 0),
        (EvidenceLevel.SELECTED, 2, 0, 0),
        (EvidenceLevel.EXECUTED, 2, 0, 0),
        (EvidenceLevel.FASTER, 0, 0, 2),
    ]
    assert counts[0].share == "69.0 %"


def test_operators_are_chosen_by_name_and_types() -> None:
    """Both must fit."""
    ladder = variant_ladder("on", 1, known())
    assert [own.name for own in filter_ladder(ladder, (), ("fully",)).operators] == [
        "Fully Connected (NC, PF32) GEMM #1"
    ]
    assert len(filter_ladder(ladder, ("pf32",), ()).operators) == 2
    assert not filter_ladder(ladder, ("int8",), ()).operators
