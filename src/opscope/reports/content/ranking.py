"""Ranking of several runtimes: the answer of a report, its figures, and whether outputs agree."""

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
    """Return the runtime of a variant, as people call it."""
    return title_of(variant.runtime, manifest.model_of(variant.name).program)


def variant_title(content: ReportContent, name: str) -> str:
    """Return a variant's title: its runtime, with the program if that is ambiguous, else the variant's name."""
    manifest = content.manifest
    titles = {}
    for variant in manifest.variants:
        title = runtime_title(manifest, variant)
        titles[variant.name] = (
            title,
            f"{title} with the {PurePath(manifest.model_of(variant.name).program).suffix}",
            variant.name,
        )
    unique = (texts for texts in zip(*titles.values(), strict=True))
    counts = [Counter(texts) for texts in unique]
    return plain(next(text for text, count in zip(titles[name], counts, strict=True) if count[text] == 1), 60)


class RankedVariant(NamedTuple):
    """Comparison of a variant with the fastest one."""

    name: str
    end: EndToEnd  # the variant is the baseline, the fastest one the candidate

    @property
    def verdict(self) -> Verdict:
        """Verdict on the variant: whether it is slower than the fastest one."""
        return _OTHER_SIDE.get(self.end.verdict, self.end.verdict)


def ranked_variants(content: ReportContent) -> list[RankedVariant]:
    """Return the variants that were compared with the fastest one, by latency."""
    ends = {comparison.baseline.label: comparison.end_to_end for comparison in content.comparisons}
    return [RankedVariant(name, ends[name]) for name in content.fastest[1:] if name in ends]


def ranking_answer(content: ReportContent) -> tuple[str, str]:
    """Return which variant is the fastest and by how much, and how that was judged."""
    variants = ranked_variants(content)
    first, latency = variant_title(content, content.fastest[0]), variants[0].end.candidate_ns
    slower = [variant for variant in variants if variant.verdict is Verdict.SLOWER]
    parts = [f"{'Fastest' if slower else 'Lowest latency'}: {first}, {time_text(latency)}"]
    for verdict, words in _WORDS.items():
        names = [variant_title(content, variant.name) for variant in variants if variant.verdict is verdict]
        parts += [f"{words} {join_names(names)}"] if names else []
    if slower and slower[0].end.speedup is not None:
        interval = f" {interval_text(slower[0].end.ci95, ratio_text)}" if slower[0].end.ci95 else ""
        parts.append(
            f"{ratio_text(slower[0].end.speedup)}{interval} as fast as {variant_title(content, slower[0].name)}"
        )
    return "; ".join(parts), _trust_text(content, variants)


_WORDS = {
    Verdict.NO_DIFFERENCE: "no difference detected from",
    Verdict.UNDECIDABLE: "inconclusive against",
    Verdict.WITHHELD: "not judged against",
    Verdict.FASTER: "yet slower than",
}


def _trust_text(content: ReportContent, variants: Sequence[RankedVariant]) -> str:
    ends = [variant.end for variant in variants]
    counts = {count for end in ends for count in (end.baseline_processes, end.candidate_processes)}
    processes = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(min(counts))
    pairs = len(content.fastest) * (len(content.fastest) - 1) // 2
    ways = dict.fromkeys(f"{end.design}, {end.arm}" for end in ends)
    return (
        f"95 % intervals; {processes} processes each, {', '.join(ways)}; "
        f"verdicts corrected for {counted_text(pairs, 'pair')}"
    )


def join_names(names: Sequence[str]) -> str:
    """Return names as text, such as ``a, b and c``; empty for none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def ranking_figures(content: ReportContent) -> Iterator[HeadlineFigure]:
    """Yield the latency of every variant, the fastest first."""
    variants, analysis = ranked_variants(content), content.shown
    note = f"p90 {time_text(analysis.latency.p90_ns)}" if analysis else ""
    yield HeadlineFigure(variant_title(content, content.fastest[0]), time_text(variants[0].end.candidate_ns), note)
    for variant in variants:
        text = verdict_text(variant.verdict)
        if variant.verdict is Verdict.SLOWER and variant.end.speedup is not None:
            text = f"{ratio_text(variant.end.speedup)} as long"
        yield HeadlineFigure(variant_title(content, variant.name), time_text(variant.end.baseline_ns), text)


def outputs_beside(content: ReportContent) -> dict[str, Accuracy]:
    """Return how far each variant's outputs agree with those of the fastest one, by variant, if they were compared."""
    accuracies = {comparison.baseline.label: comparison.accuracy for comparison in content.comparisons}
    return {name: accuracy for name in content.fastest[1:] if (accuracy := accuracies.get(name)) is not None}


def outputs_sentences(content: ReportContent) -> list[str]:
    """Return whether the outputs of all variants agree with those of the fastest one, naming those that do not."""
    accuracies = outputs_beside(content)
    if not accuracies:
        return []
    agreeing = {name: accuracy for name, accuracy in accuracies.items() if accuracy.agrees}
    first = variant_title(content, content.fastest[0])
    inputs = counted_text(max(accuracy.inputs for accuracy in accuracies.values()), "input")
    lines = [
        _disagreement_sentence(variant_title(content, name), accuracy, first)
        for name, accuracy in accuracies.items()
        if not accuracy.agrees
    ]
    if agreeing:
        worst = max(accuracy.worst.max_rel or 0.0 if accuracy.worst else 0.0 for accuracy in agreeing.values())
        error = f"largest difference {worst:.2g} of the largest value" if worst else "they are equal"
        owners = (
            f"all {len(accuracies) + 1} variants"
            if not lines
            else join_names([variant_title(content, name) for name in agreeing])
        )
        with_first = f" with those of {first}" if lines else ""
        lines.insert(0, f"Outputs of {owners} on {inputs} agree{with_first}: {error}")
    return lines


def _disagreement_sentence(name: str, accuracy: Accuracy, first: str) -> str:
    if accuracy.worst is None:
        return f"Outputs of {name} were not compared with those of {first}: {accuracy.reason}"
    if accuracy.worst.max_rel is None or any(
        difference.problem or difference.unlike_nonfinite for difference in accuracy.outputs
    ):
        return f"Outputs of {name} differ from those of {first}"
    error = share_text(accuracy.worst.max_rel)
    return f"Outputs of {name} differ from those of {first}: by up to {error} of the largest value"
