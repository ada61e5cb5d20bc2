"""Which of several runtimes is the fastest: the answer of a report, its figures, and whether outputs agree."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, interval_text, ratio_text, share_text, time_text
from opscope.reports.document.blocks import HeadlineFigure, verdict_text
from opscope.reports.document.text import plain
from opscope.runtimes.registry import title_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.analysis.compare.compare import EndToEnd
    from opscope.analysis.compare.outputs import Accuracy
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.reports.content.content import ReportContent

_OTHER_SIDE = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


def runtime_title(manifest: Manifest, variant: Variant) -> str:
    """The runtime of a variant, as people call it."""
    return title_of(variant.runtime, manifest.model_of(variant.name).program)


def called(content: ReportContent, name: str) -> str:
    """A variant by its runtime; by its program, too, where one runs several; by its own name where these are alike."""
    manifest = content.manifest
    told = {}
    for one in manifest.variants:
        title = runtime_title(manifest, one)
        told[one.name] = (title, f"{title} with the {PurePath(manifest.model_of(one.name).program).suffix}", one.name)
    unique = (texts for texts in zip(*told.values(), strict=True))
    counts = [Counter(texts) for texts in unique]
    return plain(next(text for text, count in zip(told[name], counts, strict=True) if count[text] == 1), 60)


class RankedVariant(NamedTuple):
    """A variant beside the fastest one."""

    name: str
    end: EndToEnd  # the variant is the baseline, the fastest one the candidate

    @property
    def verdict(self) -> Verdict:
        """Whether the variant is slower than the fastest one."""
        return _OTHER_SIDE.get(self.end.verdict, self.end.verdict)


def ranked(content: ReportContent) -> list[RankedVariant]:
    """The other variants that were compared with the fastest one, by latency."""
    ends = {one.baseline.label: one.end_to_end for one in content.comparisons}
    return [RankedVariant(name, ends[name]) for name in content.fastest[1:] if name in ends]


def ranking_answer(content: ReportContent) -> tuple[str, str]:
    """Which one is the fastest and by how much, and how that was judged."""
    others = ranked(content)
    first, latency = called(content, content.fastest[0]), others[0].end.candidate_ns
    slower = [one for one in others if one.verdict is Verdict.SLOWER]
    parts = [f"{'Fastest' if slower else 'Lowest latency'}: {first}, {time_text(latency)}"]
    for verdict, words in _WORDS.items():
        names = [called(content, one.name) for one in others if one.verdict is verdict]
        parts += [f"{words} {listed(names)}"] if names else []
    if slower and slower[0].end.speedup is not None:
        interval = f" {interval_text(slower[0].end.ci95, ratio_text)}" if slower[0].end.ci95 else ""
        parts.append(f"{ratio_text(slower[0].end.speedup)}{interval} as fast as {called(content, slower[0].name)}")
    return "; ".join(parts), _trust(content, others)


_WORDS = {
    Verdict.NO_DIFFERENCE: "no difference detected from",
    Verdict.UNDECIDABLE: "inconclusive against",
    Verdict.WITHHELD: "not judged against",
    Verdict.FASTER: "yet slower than",
}


def _trust(content: ReportContent, others: Sequence[RankedVariant]) -> str:
    ends = [one.end for one in others]
    counts = {count for end in ends for count in (end.baseline_processes, end.candidate_processes)}
    processes = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(min(counts))
    pairs = len(content.fastest) * (len(content.fastest) - 1) // 2
    ways = dict.fromkeys(f"{end.design}, {end.arm}" for end in ends)
    return (
        f"95 % intervals; {processes} processes each, {', '.join(ways)}; "
        f"verdicts corrected for {counted_text(pairs, 'pair')}"
    )


def listed(names: Sequence[str]) -> str:
    """Names in words; empty for none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def ranking_figures(content: ReportContent) -> Iterator[HeadlineFigure]:
    """The latency of every variant, the fastest first."""
    others, shown = ranked(content), content.shown
    note = f"p90 {time_text(shown.latency.p90_ns)}" if shown else ""
    yield HeadlineFigure(called(content, content.fastest[0]), time_text(others[0].end.candidate_ns), note)
    for one in others:
        text = verdict_text(one.verdict)
        if one.verdict is Verdict.SLOWER and one.end.speedup is not None:
            text = f"{ratio_text(one.end.speedup)} as long"
        yield HeadlineFigure(called(content, one.name), time_text(one.end.baseline_ns), text)


def outputs_beside(content: ReportContent) -> dict[str, Accuracy]:
    """Outputs of every other variant beside those of the fastest one, by its name, where they are a question."""
    accuracies = {one.baseline.label: one.accuracy for one in content.comparisons}
    return {name: accuracy for name in content.fastest[1:] if (accuracy := accuracies.get(name)) is not None}


def outputs_sentences(content: ReportContent) -> list[str]:
    """Whether the outputs of all variants agree with those of the fastest; those that do not, by name."""
    accuracies = outputs_beside(content)
    if not accuracies:
        return []
    agreeing = {name: one for name, one in accuracies.items() if one.agrees}
    first = called(content, content.fastest[0])
    inputs = counted_text(max(one.inputs for one in accuracies.values()), "input")
    lines = [_unlike(called(content, name), one, first) for name, one in accuracies.items() if not one.agrees]
    if agreeing:
        worst = max(one.worst.max_rel or 0.0 if one.worst else 0.0 for one in agreeing.values())
        error = f"largest difference {worst:.2g} of the largest value" if worst else "they are equal"
        whose = (
            f"all {len(accuracies) + 1} variants" if not lines else listed([called(content, name) for name in agreeing])
        )
        with_first = f" with those of {first}" if lines else ""
        lines.insert(0, f"Outputs of {whose} on {inputs} agree{with_first}: {error}")
    return lines


def _unlike(name: str, accuracy: Accuracy, first: str) -> str:
    if accuracy.worst is None:
        return f"Outputs of {name} were not compared with those of {first}: {accuracy.reason}"
    if accuracy.worst.max_rel is None or any(
        difference.problem or difference.unlike_nonfinite for difference in accuracy.outputs
    ):
        return f"Outputs of {name} differ from those of {first}"
    error = share_text(accuracy.worst.max_rel)
    return f"Outputs of {name} differ from those of {first}: by up to {error} of the largest value"
