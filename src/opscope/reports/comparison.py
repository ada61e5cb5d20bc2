"""Report of a comparison: both latencies, the ratio with its uncertainty, and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.compare.number_types import LostGain
from opscope.analysis.findings.message import note
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, interval_text, ratio_text, share_text, time_text
from opscope.reports.content.content import (
    NOT_BETWEEN,
    change_text,
    no_difference_text,
    side_latencies,
    speedup_text,
    trust_text,
)
from opscope.reports.document.blocks import (
    Bullets,
    Document,
    Figures,
    HeadlineFigure,
    Messages,
    Section,
    Sentence,
    Tone,
    facts,
    verdict_text,
)
from opscope.reports.document.messages import COMPARISON
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import compared_split
from opscope.reports.report import quality_line
from opscope.reports.sections.accuracy import accuracy_section, accuracy_sentences
from opscope.reports.sections.latency import comparisons_table, method_figures
from opscope.reports.sections.metadata import quality_blocks
from opscope.reports.sections.shift import (
    category_changes,
    changes_table,
    shift_blocks,
    shift_sentences,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.compare.compare import ComparedSide, Comparison, EndToEnd
    from opscope.analysis.compare.number_types import NumberTypeCause
    from opscope.reports.document.blocks import Block

_LINE, _NAME = 200, 60
_DECIDED = {Verdict.FASTER, Verdict.SLOWER}


def comparison_document(comparison: Comparison) -> Document:
    """Return both sides, the answer, and what it rests on."""
    trust = [Sentence(f"{line}.") for line in accuracy_sentences(comparison.accuracy)] if comparison.accuracy else []
    networks = [Sentence(comparison.networks, Tone.BAD)] if comparison.networks else []
    return Document(
        title=_title_text(comparison),
        heading=_title_text(comparison),
        answer=_answer_text(comparison),
        blocks=list(_first_screen(comparison)),
        sections=list(_write_sections(comparison)),
        trust=[*networks, *trust, Sentence(*quality_line(comparison.quality, [(COMPARISON, comparison.quality)]))],
    )


def _title_text(comparison: Comparison) -> str:
    """Return both sides by name, with the differing part of their paths if the names agree."""
    return " against ".join(_side_name(comparison, side) for side in (comparison.candidate, comparison.baseline))


def _side_name(comparison: Comparison, side: ComparedSide) -> str:
    names = [compared.label for compared in (comparison.baseline, comparison.candidate)]
    if names[0] != names[1]:
        return plain(side.label, _LINE)
    paths = [Path(compared.path).parts for compared in (comparison.baseline, comparison.candidate)]
    distinct = [part for part in Path(side.path).parts if not all(part in parts for parts in paths)]
    return plain(f"{side.label} of {'/'.join(distinct)}" if distinct else side.label, _LINE)


def _answer_text(comparison: Comparison) -> str:
    if not comparison.methods:
        return _verdict_sentence(comparison.end_to_end)
    return "; ".join(
        f"{plain(method, _LINE)}: {change_text(result, 'slower', _undecided_text(result))}"
        for method, result in comparison.verdicts.items()
    )


def _verdict_sentence(result: EndToEnd) -> str:
    if result.reason:
        return f"speedup {speedup_text(result)}: {result.reason}"
    interval = interval_text(result.ci95, ratio_text) if result.ci95 else "no interval"
    decided = result.verdict in _DECIDED
    verdict = f"candidate {verdict_text(result.verdict)}" if decided else _undecided_text(result)
    return f"speedup {speedup_text(result)} {interval}: {verdict}"


def _undecided_text(result: EndToEnd) -> str:
    if result.verdict is Verdict.UNDECIDABLE or result.minimum_detectable is None:
        single = result.baseline_processes == result.candidate_processes == 1
        return f"{verdict_text(result.verdict)}: {NOT_BETWEEN if single else 'too few processes'}"
    return f"{no_difference_text(result)}; cannot detect changes below {share_text(result.minimum_detectable)}"


def _headline_figures(comparison: Comparison) -> Figures:
    if comparison.methods:
        return Figures(method_figures(comparison), comparisons_table([comparison], brief=True))
    result = comparison.end_to_end
    times = side_latencies(result)
    names = _side_name(comparison, comparison.baseline), _side_name(comparison, comparison.candidate)
    sides = [
        (role, f"{time_text(time)}  {name}")
        for role, time, name in zip(("baseline", "candidate"), times, names, strict=True)
    ]
    figures = [
        HeadlineFigure("candidate", time_text(times[1]), names[1]),
        HeadlineFigure("baseline", time_text(times[0]), names[0]),
        HeadlineFigure("speedup", speedup_text(result), trust_text(result)),
    ]
    return Figures(figures, facts(sides))


def _first_screen(comparison: Comparison) -> Iterator[Block]:
    yield _headline_figures(comparison)
    if not comparison.has_split:
        yield no_split_sentence(comparison)
    else:
        yield changes_table(comparison)
        yield Bullets(shift_sentences(comparison) if comparison.operators else [])
    if comparison.number_types:
        yield Sentence("The candidate has a lower precision. What keeps it from being faster:")
        yield Bullets([number_type_text(cause) for cause in comparison.number_types])
    if comparison.notes:
        yield Messages([note(text) for text in comparison.notes])


_NUMBER_TYPE_STEPS = {
    LostGain.CONVERSIONS: "quantise the operators between them, too, or leave these layers in float",
    LostGain.COMPUTED_WEIGHTS: "store the weights as the kernel of the product reads them, constant and of its type",
    LostGain.LEFT_DELEGATE: "replace them with operators that the delegate has in this type, or leave them in float",
    LostGain.WIDE_KERNELS: "quantise their data, weights and results, in types that the runtime has kernels for",
    LostGain.SLOW_KERNELS: "this CPU gains nothing from the type: check with preflight which kernels it gets",
}


def number_type_text(cause: NumberTypeCause) -> str:
    """Return a cause as a sentence with its operators, and what to do about it."""
    operators = counted_text(cause.operators, "operator")
    texts = {
        LostGain.CONVERSIONS: f"{counted_text(cause.operators, 'conversion')} between number types stayed",
        LostGain.COMPUTED_WEIGHTS: f"{counted_text(cause.operators, 'stored weight')} converted in every call",
        LostGain.LEFT_DELEGATE: f"{operators} left the delegate that ran such operators in float",
        LostGain.WIDE_KERNELS: f"{operators} still computed in float",
        LostGain.SLOW_KERNELS: f"{operators} computed in the lower precision in {ratio_text(cause.ratio or 1.0)} "
        "the time of float",
    }
    names = ", ".join(plain(name, _NAME) for name in cause.names)
    return f"{texts[cause.kind]}: {share_text(cause.share)} of the call ({names}); {_NUMBER_TYPE_STEPS[cause.kind]}"


def no_split_sentence(comparison: Comparison) -> Sentence:
    """Return why the change is not split into operators."""
    reason = comparison.no_split.message if comparison.no_split else "nothing was traced"
    return Sentence(f"The difference is not split into operators: {reason}.")


def _write_sections(comparison: Comparison) -> Iterator[Section]:
    yield Section("Latency Comparison", [comparisons_table([comparison])], "latency", "Latency")
    if comparison.has_split:
        yield Section(
            "Operator Category Breakdown",
            [picture("split by category", lambda: compared_split(comparison)), category_changes(comparison)],
            "categories",
            "Categories",
        )
        yield Section("Where the change comes from", shift_blocks(comparison, has_sentences=True), "change", "Change")
    outputs = accuracy_section(comparison.accuracy)
    if outputs is not None:
        yield outputs
    if comparison.quality is not None:
        yield Section(
            "Measurement Quality",
            quality_blocks(comparison.quality, [(COMPARISON, comparison.quality)]),
            "trust",
            "Trust",
        )
    sides = [(role, f"{side.label}: {side.path}") for role, side in _sides_by_role(comparison)]
    yield Section("What was compared", [facts(sides)], "run", folded=True)


def _sides_by_role(comparison: Comparison) -> Iterator[tuple[str, ComparedSide]]:
    yield "baseline", comparison.baseline
    yield "candidate", comparison.candidate
