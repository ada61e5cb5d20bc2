"""Evidence that rules examine: of one variant, of a pair, of a whole experiment; and shared words and intervals."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.findings.message import Saving
from opscope.analysis.operators.delegates import is_node
from opscope.core.grouping import grouped
from opscope.core.stats.effect import interval_of, paired_effects
from opscope.core.table.places import by_operator, operator_key
from opscope.core.units import counted_text, milliseconds
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import TypeAlias

    from numpy.typing import NDArray

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.latency.latency import Latency, TracingCost
    from opscope.analysis.operators.delegates import DelegateTime, LayoutTime, PortableTime
    from opscope.analysis.operators.headline import HeadlineSplit
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.roofline import Placement, Roofline
    from opscope.core.table.places import Located, OperatorKey
    from opscope.program.ceilings import Ceilings
    from opscope.program.operators.kinds import AttentionPart
    from opscope.program.partition.verdicts import Eligibility

    Floats: TypeAlias = NDArray[np.float64]

# Where these come from: docs/design/rules.md.
UNEVEN = 0.10
LEAST_SHARE = 0.05
"""Share of the latency up to which nothing is worth a finding."""
NO_CEILINGS = "no ceilings were measured, or operator costs are unknown; profile without --no-ceilings"
_NAMED = 3
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.:]{0,59}")
_QUANTISED = ("QS8", "QC8", "QD8", "QP8", "QU8", "QC4", "QB4")
_NORMAL_95 = 1.959964


class Evidence(NamedTuple):
    """Evidence on one variant."""

    latency: Latency  # end-to-end, of the traces
    operators: Sequence[Operator]  # the finest split of it
    layout: Sequence[LayoutTime] = ()  # moves and conversions for which the model did not ask, longest first
    # operators that no delegate took, longest first, with the reasons that are known
    portable: Sequence[PortableTime] = ()
    delegates: Sequence[DelegateTime] = ()  # calls of delegates, in program order
    roofline: Roofline | None = None  # operators under the ceilings of the machine; None where none were measured
    attributed: float = 0.0  # share of delegate time whose nodes are known
    untraced: Latency | None = None  # latency without event tracing; None where only traced runs were made
    tracing: TracingCost | None = None  # what tracing costs; None where only traced runs were made
    # of each operator in each process, on the scale of the headline; shape (processes, operators); None where
    # that is not known
    times: Floats | None = None
    copies: Floats | None = None  # times of copying inputs and outputs; shape (processes, 1); None if unknown
    split: bool = True  # whether the latency is split into operators; without it there is one, the whole call
    # whether SME can run an operator, for those that multiply and accumulate and whose nodes are known
    sme: Mapping[OperatorKey, Eligibility] = {}
    # kernels outside of delegates that belong to an attention; None where no program tells
    attention: Mapping[OperatorKey, AttentionPart] | None = None
    # what joins the operators to the headline; None where it is not known, so that the mean stands for it
    headline: HeadlineSplit | None = None
    # why other processes took so much that no time is worth a finding; None where they did not
    disturbed: str | None = None
    # median of the method that a process calls first, where it calls several; None where there is one
    first_method_ns: float | None = None
    trace_format: str = ""  # of the trace, whose name begins with that of the runtime's traces

    @property
    def total(self) -> float:
        """Headline in ns, which no saving exceeds."""
        return self.latency.mean_ns if self.headline is None else self.headline.headline_ns

    @property
    def copies_ns(self) -> float:
        """Time of copying inputs and outputs per inference; 0 if unknown."""
        return 0.0 if self.headline is None else self.headline.copies_ns

    def saved(self, saving: Saving) -> Saving:
        """Return a saving limited to the headline."""
        if saving.ns is None:
            return saving
        ns = min(saving.ns, self.total)
        if saving.ci95 is None:
            return saving._replace(ns=ns)
        low, high = (min(end, self.total) for end in saving.ci95)
        return saving._replace(ns=ns, ci95=(min(low, ns), max(high, ns)))

    def work(self) -> list[Operator]:
        """Return the operators, without the framework's own time."""
        return [operator for operator in self.operators if operator.kind != FRAMEWORK.kind]

    def where(self, condition: Callable[[Operator], bool]) -> list[Operator]:
        """Return the operators that fulfil a condition, without the framework's own time."""
        return [operator for operator in self.work() if condition(operator)]

    def share(self, operators: Iterable[Operator]) -> float:
        """Return the share of end-to-end latency that operators take, at most 1."""
        return self.part(time_of(operators))

    def part(self, ns: float) -> float:
        """Return a time as a share of end-to-end latency; 0 for a latency of 0."""
        return ns / self.total if self.total else 0.0

    def limit(self, operators: Sequence[Operator], *, copies: bool = False) -> Saving:
        """Return the saving if these operators, and optionally the copies of inputs and outputs, took no time."""
        time_ns = time_of(operators) + (self.copies_ns if copies else 0.0)
        return self.saved(Saving(time_ns, self.interval(operators, copies=copies), "at most, if removed entirely"))

    def borders(self) -> dict[tuple[str, int | None], float]:
        """Return the cost of entering and leaving each delegate call, by method and instruction.

        Excluded is what was cut off the durations of its operators: half a unit on average.
        """
        cut_off: dict[tuple[str, int | None], float] = {}
        for operator in self.operators:
            if operator.position is not None:
                call = operator.method, operator.instruction
                cut_off[call] = cut_off.get(call, 0.0) + operator.uncertainty_ns / 2
        return {
            (call.method, call.instruction): max(
                0.0, (call.boundary_ns or 0.0) - cut_off.get((call.method, call.instruction), 0.0)
            )
            for call in self.delegates
        }

    def calls_of(self, operators: Iterable[Operator]) -> list[Operator]:
        """Return the framework's own time in the instructions of these operators."""
        instructions = {(operator.method, operator.instruction) for operator in operators}
        return [
            operator
            for operator in self.operators
            if operator.position is None and (operator.method, operator.instruction) in instructions
        ]

    def interval(self, operators: Sequence[Operator], *, copies: bool = False) -> tuple[float, float] | None:
        """Return the 95 % interval of the time of operators, and of the copies; None with fewer than two processes.

        The interval is a bootstrap over processes. What the delegate cuts off durations is added to the upper end; the
        missing parts are independent and uniform (see ``opscope.analysis.compare.compare``).
        """
        if self.times is None or len(self.times) < 2:  # noqa: PLR2004 - one process has no spread
            return None
        ids = {id(operator) for operator in operators}
        columns = [number for number, operator in enumerate(self.operators) if id(operator) in ids]
        times = self.times[:, columns].sum(axis=1)[:, None]
        if copies and self.copies is not None:
            times += self.copies
        effect = paired_effects(times, np.zeros_like(times))[0]
        ends = interval_of(effect)
        return (max(0.0, ends[0]), ends[1] + _cut_off_bound(operators)) if ends else None

    def is_uneven(self) -> bool:
        """Return whether the operators' inferences were slower than tracing explains, so that ceilings do not apply."""
        if self.tracing is None or self.headline is None:
            return False
        return self.headline.factor > (1 + UNEVEN) * self.tracing.ratio

    def of_nodes(self) -> bool:
        """Return whether ONNX Runtime ran the model, which has nodes and no delegates."""
        return any(is_node(operator) for operator in self.operators)

    def no_ceilings(self) -> str | None:
        """Return why operators cannot be compared with ceilings; None if they can."""
        if self.roofline is None:
            return NO_CEILINGS
        return "something slowed the traced inferences" if self.is_uneven() else None

    def placements(self) -> dict[OperatorKey, Placement]:
        """Return operators under the ceilings, by place; empty if they cannot be compared with them."""
        return {} if self.roofline is None or self.no_ceilings() else by_operator(self.roofline.operators)


class PairEvidence(NamedTuple):
    """Evidence on a pair of variants."""

    comparison: Comparison  # comparison of the two
    evidence: Evidence | None = None  # evidence of the candidate; None where only the comparison is known
    # feature groups that are off on the baseline only; empty when the sides differ in something else, None where
    # that is not known
    switched: tuple[str, ...] | None = None
    # of the baseline and of the candidate; None where they were not measured
    ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None)


class ExperimentEvidence(NamedTuple):
    """Evidence on a whole experiment."""

    shown: Evidence | None  # evidence of the variant that the report is about; None when no variant has a result
    name: str  # name of that variant
    # of what differs from it in threads alone, by the size of the thread pool, itself first; empty where that is not
    # known
    by_threads: Mapping[int, Evidence]
    switched: AbstractSet[str]  # feature groups that were off in some variant
    disturbed: str | None  # why the times of a variant say nothing; None where those of all do
    backends: Sequence[str]  # delegates that the program calls
    features: Sequence[str] | None  # features of the CPU; None if unknown
    # whether the runtime is known to be an optimised build: opscope compiled it, or a package has it
    known_runtime: bool


def _cut_off_bound(operators: Sequence[Operator]) -> float:
    """Return how much longer operators may have taken together than recorded, with 97.5 % confidence."""
    uncertainties = np.array([operator.uncertainty_ns for operator in operators if operator.position is not None])
    likely = float(uncertainties.sum()) / 2 + _NORMAL_95 * math.sqrt(float((uncertainties**2).sum()) / 12)
    return min(likely, float(uncertainties.sum()))


def places(rows: Iterable[Located]) -> list[OperatorKey]:
    """Return the keys of operators, without the framework's own time."""
    return [key for key in map(operator_key, rows) if key is not None]


def place_times(operators: Iterable[Operator]) -> dict[OperatorKey, float]:
    """Return the time per inference by operator key."""
    return {key: operator.shown_ns for key, operator in by_operator(operators).items()}


def time_of(operators: Iterable[Operator]) -> float:
    """Return the time per inference of operators together, on the scale of the headline if known."""
    return sum(operator.shown_ns for operator in operators)


def display_layer(operator: Operator) -> str:
    """Return the layer of an operator if the operator is the layer's own work; else its name."""
    return operator.module if operator.module and operator.change is None else operator.name


def display_name(name: str) -> str:
    """Return a name from a file if it is a plain word, else a neutral phrase: it could be anything."""
    return name if _PLAIN_NAME.fullmatch(name) else "the operator"


def longest(operators: Sequence[Operator]) -> str:
    """Return the longest of some operators with their times, those of one name and layer together."""
    top = sorted(grouped(operators, display_layer).items(), key=lambda item: -time_of(item[1]))[:_NAMED]
    return ", ".join(
        f"{name}{f' x {len(rows)}' if len(rows) > 1 else ''} ({milliseconds(time_of(rows))} ms)" for name, rows in top
    )


def is_quantised(operators: Iterable[Operator]) -> bool:
    """Return whether operators spend most of their time on integers of 8 bits or fewer."""
    listed = list(operators)
    small = [
        operator
        for operator in listed
        if (operator.dtype or "").startswith("q") or any(tag in operator.name for tag in _QUANTISED)
    ]
    return time_of(small) > time_of(listed) / 2


def number_types(operators: Iterable[Operator]) -> str:
    """Return the number types of operators, each once; empty if unknown."""
    return ", ".join(dict.fromkeys(operator.dtype for operator in operators if operator.dtype))


def count(operators: Sequence[Operator]) -> str:
    """Return a number of operators in words."""
    return counted_text(len(operators), "operator")
