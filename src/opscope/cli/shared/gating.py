"""What commands that end with a gate share: its options, where a decision is written, and the exit code."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from opscope.cli.output import STANDARD_OUTPUT, notice, output_target, say, show, write
from opscope.core.printable import shell_command

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.api import ProgramCheck, Settings
    from opscope.reports.formats.ci import Annotation
    from opscope.reports.gate import GateText

_SIDES = ("baseline", "candidate")
GATE = "Gate"
"""The group of its options in help texts."""
ThresholdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE", help="Largest slowdown allowed. [default: the budget's, else 3%]", rich_help_panel=GATE
    ),
]
InconclusiveOption: TypeAlias = Annotated[
    Literal["fail", "pass"] | None,
    typer.Option(
        help="Whether inconclusive measurements fail or pass. [default: fail]", rich_help_panel=GATE, hidden=True
    ),
]
MarkdownOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-",
        help="Write Markdown for a pull request.",
        callback=output_target,
        rich_help_panel=GATE,
        hidden=True,
    ),
]
JunitOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE|-", help="Write JUnit XML.", callback=output_target, rich_help_panel=GATE, hidden=True),
]
AnnotationsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-",
        help="Write annotations for GitHub Actions: the verdict, and operators that lost, with source lines.",
        callback=output_target,
        rich_help_panel=GATE,
        hidden=True,
    ),
]


class GateOutputs(NamedTuple):
    """How a decision is told."""

    lenient: bool  # whether what is inconclusive passes
    quiet: bool = False  # whether nothing is printed beside files
    json: str | None = None  # where its forms are written
    markdown: str | None = None
    junit: str | None = None
    annotations: str | None = None
    sides: tuple[str, ...] = ()  # bundles that may lack hashes of what they measured


def measured(
    candidate: str,
    against: str,
    out: Path,
    settings: Settings,
    *,
    threshold: float | None,
    budget: Path | None,
    quiet: bool,
    resume: bool = False,
    named: Collection[str] = (),
) -> ProgramCheck:
    """Measure two programs into a bundle, and judge the one by the other."""
    from opscope.api import check_programs
    from opscope.cli.shared.progress import run_progress
    from opscope.core.errors import InterruptedRunError

    try:
        with run_progress(shown=not quiet) as progress:
            return check_programs(
                candidate,
                against,
                settings=settings,
                out=out,
                resume=resume,
                threshold=threshold,
                budget=budget,
                progress=progress,
                named=named,
                notify=notice,
            )
    except (KeyboardInterrupt, InterruptedRunError):
        words = ["opscope", "check", candidate, "--against", against]
        raise InterruptedRunError(
            "interrupted; what was finished is kept", where=out, hint=resume_hint(out, words)
        ) from None


def resume_hint(out: Path, words: Sequence[str]) -> str:
    """Return the command that finishes an interrupted run, from the words that began it."""
    from opscope.bundle.bundle import Bundle, is_bundle

    if not is_bundle(out):
        return "nothing was measured yet"
    words = [*words, "--out", str(out), *Bundle.open(out).manifest.words_of_target, "--resume"]
    return f"finish it with: {shell_command(words)}"


def refuse(options: Mapping[str, object], problem: str, hint: str) -> None:
    """Refuse the first option that was given where none of these has a meaning; ``{name}`` in the hint is its name.

    Raises a UsageError where one was given.
    """
    from opscope.core.errors import UsageError

    for name, value in options.items():
        if value is not None:
            raise UsageError(problem, where=name, hint=hint.replace("{name}", name))


def threshold_share(text: str | None) -> float | None:
    """A threshold as a fraction."""
    from opscope.core.errors import UsageError

    if text is None:
        return None
    word = text.strip()
    try:
        value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        problem = f"{text!r} is not a percentage from 0 to below 100 %"
        raise UsageError(problem, where="--threshold", hint="for example 3% or 0.03")
    return value


def tell(found: Decision[Any], where: str, how: GateOutputs) -> None:
    """Write a decision, print it, and end with the error that it asks for.

    Raises an OpscopeError where the candidate may not pass; the kind of error has the exit code.
    """
    from opscope.analysis.gate.decision import Outcome, let_inconclusive_pass, problem, refusal
    from opscope.reports.gate import gate_summary

    decision = let_inconclusive_pass(found) if how.lenient else found
    text = _text(decision)
    _write(decision, text, how)
    if not how.quiet and STANDARD_OUTPUT not in {how.json, how.markdown, how.junit, how.annotations}:
        show(gate_summary(decision, text))
    if error := refusal(decision, where, text.problem):
        raise error
    if decision.outcome is not Outcome.PASSED:
        say(f"warning: {where}: inconclusive, but allowed to pass: {text.problem or problem(decision)}", err=True)


def _write(decision: Decision[Any], text: GateText, how: GateOutputs) -> None:
    """Write the forms that are asked for."""
    if how.json:
        from opscope.api import to_json

        write(to_json(decision), how.json)
    if how.markdown:
        from opscope.reports.gate import gate_markdown

        write(gate_markdown(decision, text).encode(), how.markdown)
    if how.junit:
        from opscope.reports.formats.ci import junit_xml

        write(junit_xml(decision, text), how.junit)
    if how.annotations:
        root = os.environ.get("GITHUB_WORKSPACE") or str(Path.cwd())
        lines = [one.command(root) for one in _annotations(decision, text, how.sides)]
        write("".join(f"{line}\n" for line in lines).encode(), how.annotations)


def _annotations(decision: Decision[Any], text: GateText, sides: Sequence[str]) -> list[Annotation]:
    """With what is known of the program that was judged; nothing is where both sides were measured before."""
    from opscope.reports.formats.ci import gate_annotations
    from opscope.workflows.analyze.preflight import lines_of_layers, new_findings

    files = [Path(side) for side in sides if Path(side).is_file()]
    if len(files) != len(_SIDES):
        return gate_annotations(decision, text)
    findings, layers = new_findings(*files), lines_of_layers(files[-1])
    return gate_annotations(decision, text, path=sides[-1], findings=findings, layers=layers)


def _text(decision: Decision[Any]) -> GateText:
    """What the kind of its evidence says of a decision."""
    kind = decision.evidence.__struct_config__.tag
    if kind == "fleet":
        from opscope.fleet.reports.fleet_gate import fleet_text

        return fleet_text(decision)
    if kind == "tiles":
        from opscope.npu.reports.comparison import tiles_text

        return tiles_text(decision)
    if kind == "work":
        from opscope.reports.work import work_gate_text

        return work_gate_text(decision)
    if kind == "work_and_time":
        from opscope.reports.work import work_and_time_text

        return work_and_time_text(decision)
    from opscope.reports.gate import comparison_text

    return comparison_text(decision)
