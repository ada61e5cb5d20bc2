"""``opscope check``: exit codes, what may be compared, budget files, and outputs that other programs read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import RenderableType

import opscope
from bundle_damage import rehash
from ended import Command
from fakes import FakeClock, FakeTarget
from opscope.analysis.gate.decision import Decision, Outcome
from opscope.analysis.gate.gate import ComparisonEvidence
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind
from opscope.cli.shared.gating import threshold_share
from opscope.core.errors import MismatchError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.experiment.config_rules import read_settings
from opscope.reports.formats.ci import junit_xml, xml_text
from opscope.reports.gate import comparison_text, gate_markdown, gate_sentence, gate_summary
from opscope.workflows.analyze.gate import read_budgets
from programs import write_tiny_program
from terminal_text import text_of
from texts import IS_A_PROGRAM, MACHINE_DRIFT

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "stop-a-slower-model-in-ci.md"
Found: TypeAlias = Decision[ComparisonEvidence]
HOSTILE = "a|b`<script>&\x1b[31m\x00\ufffe\u202ed*"
LIMITS = """
[end_to_end]
max_ms = 2

[[budget]]
backend = "portable"
max_share = 0.5

[[budget]]
category = "Convolution"
max_ms = 0.2
max_slower = 0.5
"""


def bundle(directory: Path, *, seed: int = 0, target: FakeTarget | None = None, rounds: int = 6) -> Path:
    """A bundle of the tiny program, whose baseline variant is 1.8 times slower."""
    directory.mkdir(parents=True)
    program = write_tiny_program(directory)
    out = directory / "out"
    settings = Settings(rounds=rounds, runs=3, warmup=1, ceilings=False)
    profile(
        str(program), settings=settings, out=out, target=target or FakeTarget(noise=0.005, seed=seed), clock=FakeClock()
    )
    return out


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the others are measured by."""
    return bundle(tmp_path_factory.mktemp("old") / "b", seed=1)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program, measured at another time."""
    return bundle(tmp_path_factory.mktemp("new") / "b", seed=2)


@pytest.fixture(scope="module")
def report(old: Path, new: Path) -> Found:
    """A regression with operators that became slower."""
    return opscope.check(f"{new}#baseline", old)


def markdown_of(decision: Found) -> str:
    """The decision in Markdown."""
    return gate_markdown(decision, comparison_text(decision))


def summary_of(decision: Found) -> RenderableType:
    """The decision on a terminal."""
    return gate_summary(decision, comparison_text(decision))


def with_evidence(decision: Found, **changes: Any) -> Found:
    """The decision with other evidence."""
    evidence = replace(decision.evidence, **changes)
    return replace(decision, evidence=evidence)


def parsed(document: bytes | str) -> ET.Element:
    """The root of a document that opscope wrote."""
    return ET.fromstring(document)  # noqa: S314 - our own output


def changed(path: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a bundle whose manifest says something else."""
    shutil.copytree(path, copy)
    manifest = replace(Bundle.open(copy).manifest, **changes)
    (copy / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    rehash(copy)  # as if it had been measured so
    return copy


@pytest.mark.parametrize(
    ("variant", "outcome"), [("", "passed"), ("#baseline", "regression")], ids=["a pass", "a regression"]
)
def test_the_verdict_is_the_exit_code_the_first_line_and_in_each_output(
    command: Command, variant: str, outcome: str, old: Path, new: Path, tmp_path: Path
) -> None:
    """Write three complete files; a regression is one error line as well."""
    code = int(outcome == "regression")
    files = [tmp_path / name for name in ("check.json", "check.md", "check.xml")]
    outputs = [word for pair in zip(("--json", "--markdown", "--junit"), files, strict=True) for word in pair]
    done = command("check", f"{new}{variant}", "--against", old, *outputs)
    assert (done.returncode, done.stdout.partition(":")[0].partition(" ")[0]) == (code, outcome)
    latency = f"error: {new}#baseline: end-to-end latency against the baseline: slower by "
    assert done.stderr.startswith(latency) if code else done.stderr == ""
    found = json.loads(files[0].read_text())
    assert (found["schema"], found["outcome"], found["let_through"]) == ("opscope.check/2", outcome, not code)
    assert files[1].read_text().startswith(f"## opscope check: {outcome}, tiny is ")
    assert parsed(files[2].read_bytes()).get("failures") == str(code)


def test_inconclusive_fails_unless_it_is_let_through(command: Command, old: Path, tmp_path: Path) -> None:
    """End with 14 for two rounds, and with 0 and a warning when asked."""
    few = bundle(tmp_path / "few", seed=3, rounds=1)
    done = command("check", few, "--against", old)
    assert (done.returncode, done.stdout.partition(": ")[0]) == (14, "inconclusive")
    assert "measure more rounds" in done.stderr
    lenient = command("check", few, "--against", old, "--inconclusive", "pass", "--junit", "-")
    assert (lenient.returncode, lenient.stderr.partition(": ")[0]) == (0, "warning")
    assert parsed(lenient.stdout)[0].get("skipped") == "1"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["{new}", "--against", "{old}", "--threshold", "5"], 2, "--threshold: '5' is not a percentage"),
        (["{new}", "--against", "{new}/none"], 3, "error: "),
        (["{old}", "--against", "{old}#accelerated"], 13, "both sides are the same traces"),
        (["{new}", "--against", "{old}", "--budget", "{new}/none.toml"], 3, "none.toml"),
    ],
)
def test_mistakes_have_codes_of_their_own(
    command: Command, words: list[str], code: int, told: str, old: Path, new: Path
) -> None:
    """Tell a wrong option, no such bundle and nothing to compare from a regression, whose code is 1."""
    done = command("check", *(word.format(old=old, new=new) for word in words))
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("text", "share"),
    [
        *(("3%", 0.03), ("3 %", 0.03), ("0.03", 0.03), ("0", 0.0), ("0.5%", 0.005), (" 10% ", 0.1)),
        *((text, None) for text in ("", "%", "-1%", "-0.01", "100%", "1", "3", "nan", "nan%", "inf", "3%%", "three")),
    ],
)
def test_thresholds(text: str, share: float | None) -> None:
    """Take a percentage or a fraction, and refuse what is neither, as a plain 3, which would be 300 %."""
    if share is not None:
        assert threshold_share(text) == pytest.approx(share)
        return
    with pytest.raises(UsageError, match="not a percentage"):
        threshold_share(text)


def test_outputs_are_checked_before_anything_is_read(command: Command, tmp_path: Path) -> None:
    """Refuse two on standard output, or in one file, even of bundles that do not exist."""
    two = command("check", "a", "--against", "b", "--json", "-", "--junit", "-")
    assert (two.returncode, "already printed" in two.stderr) == (2, True)
    same = command("check", "a", "--against", "b", "--json", tmp_path / "r", "--markdown", tmp_path / "r")
    assert (same.returncode, "--json and --markdown name the same file" in same.stderr) == (19, True)
    assert not (tmp_path / "r").exists()


def test_variants_of_one_bundle_are_paired(new: Path) -> None:
    """By round, and what is switched off is noted."""
    found = opscope.check(f"{new}#baseline", f"{new}#accelerated", threshold=0.5)
    assert (found.evidence.end_to_end.design, found.outcome) == ("paired", Outcome.REGRESSION)
    assert any("features switched off differs: none in the baseline, avx512" in note for note in found.notes)


def test_two_sessions_are_said_to_be_two(old: Path, new: Path, tmp_path: Path) -> None:
    """Warn, as a comparison does, that the interval does not hold what happened to the machine between two sessions.

    Variants of one bundle were measured in turns, and so were two bundles of the same period, though not in pairs.
    """
    found = opscope.check(new, old)
    assert found.evidence.end_to_end.design == "unpaired"
    told = [note for note in found.notes if "same period, but not in pairs" in note]
    assert told == [note for note in opscope.compare(old, new).notes if "over the same period" in note] != []
    assert not [note for note in opscope.compare(f"{new}#baseline", f"{new}#accelerated").notes if "of time" in note]
    later = [
        replace(repetition, started="2031-01-01T00:00:00+00:00") for repetition in Bundle.open(new).manifest.repetitions
    ]
    notes = opscope.check(changed(new, tmp_path / "later", repetitions=later), old).notes
    assert sum(MACHINE_DRIFT in note for note in notes) == 1


@pytest.mark.parametrize(
    ("part", "change", "told"),
    [
        ("environment", lambda own: replace(own, cpu="Other CPU"), "Test CPU in the baseline, Other CPU in the cand"),
        ("environment", lambda own: replace(own, features=["avx2"]), "only the baseline has avx, avx512, sse4"),
        ("variants", lambda own: [replace(one, threads=2) for one in own], "threads differs: 1 in the baseline, 2 in"),
        ("variants", lambda own: [replace(one, affinity=[1]) for one in own], "CPU pinning differs: all in the base"),
        ("target", lambda own: replace(own, kind="other"), "kind of target differs: fake in the baseline, other in"),
        ("repetitions", lambda own: [one for one in own if one.arm.value == "traced"], "has no untraced timing"),
    ],
    ids=["cpu", "features", "threads", "affinity", "target", "arm"],
)
def test_what_is_not_comparable_is_refused(
    part: str, change: Callable[[Any], object], told: str, old: Path, new: Path, tmp_path: Path
) -> None:
    """Compare it only where that is forced; the report then says why it should not have been."""
    other = changed(new, tmp_path / "other", **{part: change(getattr(Bundle.open(new).manifest, part))})
    with pytest.raises(MismatchError) as caught:
        opscope.check(other, old)
    assert told in caught.value.problem
    assert "--force" in (caught.value.hint or "")
    forced = opscope.check(other, old, force=True)
    assert [told in mismatch for mismatch in forced.mismatches] == [True]
    assert "compared anyway" in markdown_of(forced)


def test_what_a_gate_is_for_is_noted_and_not_refused(old: Path, new: Path, tmp_path: Path) -> None:
    """Note another program, name, version, or board, which may be of one kind; a name on one side tells nothing."""
    manifest = Bundle.open(new).manifest
    program = b"another program"
    model = replace(manifest.model, name="other", sha256=hashlib.sha256(program).hexdigest())
    environment = replace(manifest.environment, versions={"executorch": "2"})
    other = changed(new, tmp_path / "other", model=model, environment=environment, device="right")
    (other / model.program).write_bytes(program)
    notes = " ".join(opscope.check(other, old).notes)
    assert "device" not in notes
    assert "the model differs: tiny in the baseline, other in the candidate" in notes
    assert "different programs" in notes
    assert "different versions" in notes
    here = changed(old, tmp_path / "here", device="left")
    assert "the device differs: left in the baseline, right in the candidate" in opscope.check(other, here).notes


def test_missing_repetitions_are_noted(old: Path, tmp_path: Path) -> None:
    """They failed; the others are judged."""
    crash = Failure(FailureKind.EXIT, "stopped")
    target = FakeTarget(noise=0.005, seed=4, fail=lambda job: crash if job == 3 else None)
    path = bundle(tmp_path / "b", target=target)
    failed = "baseline" if target.jobs[2].clear else "accelerated"
    assert "1 repetition of the candidate failed" in opscope.check(f"{path}#{failed}", old).notes


def test_plain_traces_tell_no_machine(old: Path, new: Path, tmp_path: Path) -> None:
    """They are compared, and what is not known is said."""
    places = []
    for name, path in (("before", old), ("after", new)):
        (tmp_path / name).mkdir()
        places.append(tmp_path / name)
        for number, trace in enumerate(sorted((path / "variants" / "accelerated").rglob("*.etdump*"))):
            (tmp_path / name / f"{number}.etdump").write_bytes(trace.read_bytes())
    found = opscope.check(places[1], places[0], warmup=1)
    assert (found.outcome, found.evidence.model, found.evidence.end_to_end.arm) == (Outcome.PASSED, None, "traced")
    assert any("without a bundle, the machine" in note for note in found.notes)


def test_budgets_are_judged(old: Path, new: Path, tmp_path: Path) -> None:
    """Allow the convolution 0.2 ms, where it takes 0.4 ms; everything else is kept."""
    file = tmp_path / "budget.toml"
    file.write_text(LIMITS)
    found = opscope.check(new, old, budget=file)
    assert [(c.name, c.outcome.value) for c in found.criteria] == [
        ("end-to-end latency against the baseline", "passed"),
        ("end-to-end latency", "passed"),
        ("backend portable: share", "passed"),
        ("category Convolution: time", "regression"),
        ("category Convolution: slowdown", "passed"),
    ]
    assert gate_sentence(found, comparison_text(found)).startswith("regression in 1 limit of the budget: ")
    assert "raise the limit" in str(found.advice)


@pytest.mark.parametrize(("threshold", "outcome"), [(None, Outcome.PASSED), (0.1, Outcome.REGRESSION)])
def test_the_budget_may_set_the_threshold(
    threshold: float | None, outcome: Outcome, old: Path, new: Path, tmp_path: Path
) -> None:
    """Let the command line go before it."""
    file = tmp_path / "budget.json"
    file.write_text('{"end_to_end": {"max_slower": 0.9}}')
    assert opscope.check(f"{new}#baseline", old, budget=file, threshold=threshold).outcome is outcome


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("", "", "it sets no limit"),
        ("[end_to_end]", "", "it sets no limit"),
        ("[end_to_end]\nmax_ms = 0", "end_to_end.max_ms", "0 is not allowed; expected a number above 0"),
        ("[[budget]]\nmax_ms = 1", "budget[0]", "it chooses no operators"),
        ('[[budget]]\nkind = "layout"', "budget[0]", "it sets no limit"),
        ('[[budget]]\nkind = "layout"\nmax_slower = 1.5', "budget[0].max_slower", "1.5 is not allowed"),
        ('[[budget]]\nkind = "layout"\nmax_share = "5%"', "budget[0].max_share", "expected a number"),
        ('[[budget]]\nlayer = "x"\nmax_ms = 1', "budget[0].layer", 'no such key: "layer"'),
        ('[[budget]]\ncategory = "Conv"\nmax_ms = 1', "budget[0].category", "expected one of Convolution, GEMM"),
        ("[[budget]]\nposition = -1\nmax_ms = 1", "budget[0].position", "of at least 0"),
        ("[[budget]]\nposition = 1\nmax_ms = nan", "budget[0].max_ms", "nan"),
        ("budget = [", "", "not valid TOML"),
    ],
)
def test_a_wrong_budget_file_is_named_by_entry_and_field(text: str, place: str, told: str, tmp_path: Path) -> None:
    """Before a trace is read."""
    file = tmp_path / "budget.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_budgets(file)
    assert caught.value.where == (f"{file}: {place}" if place else str(file))
    assert told.lower() in caught.value.problem.lower()


@pytest.mark.parametrize(
    ("entry", "place", "told"),
    [
        ('kind = "convolutoin"', "budget[0].kind", "did you mean convolution"),
        ('operator = "native_call_ad.out"', "budget[0].operator", "did you mean native_call_add.out"),
        ('module = "features.3"', "budget[0].module", "no operator of the candidate has a known module"),
        ('kind = "convolution"\nbackend = "portable"', "budget[0]", "all of this: kind convolution, backend portable"),
    ],
)
def test_an_entry_that_chooses_nothing_never_passes(
    entry: str, place: str, told: str, old: Path, new: Path, tmp_path: Path
) -> None:
    """A misspelt layer is an error, with the nearest name."""
    file = tmp_path / "budget.toml"
    file.write_text(f"[[budget]]\n{entry}\nmax_ms = 1")
    with pytest.raises(UsageError) as caught:
        opscope.check(new, old, budget=file)
    assert caught.value.where == f"{file}: {place}"
    assert told in f"{caught.value.problem} {caught.value.hint}"


def hostile(report: Found) -> Found:
    """The report with names that want to be markup."""
    found = report.evidence
    slower = [replace(change, name=HOSTILE, module=HOSTILE) for change in found.slower]
    lone = [replace(change, baseline_ns=None) for change in slower]
    side = replace(found.candidate, label=HOSTILE, path=HOSTILE)
    criteria = [replace(criterion, name=HOSTILE) for criterion in report.criteria]
    changed = with_evidence(report, candidate=side, model=HOSTILE, slower=slower, unmatched=lone)
    return replace(changed, criteria=criteria, notes=[HOSTILE])


def test_markdown_holds_verdict_tables_and_notes(report: Found) -> None:
    """Keep this order; of a single limit, whose figures stand in the sentence above, only the reason is left."""
    text = markdown_of(replace(report, criteria=report.criteria * 2))
    shown = text.replace("\\", "")
    answer = gate_sentence(report, comparison_text(report))
    parts = [shown.index(part) for part in (answer, "| criterion |", "### Operators that became slower", "### Notes")]
    assert parts == sorted(parts)
    check_tables(text)
    (first,) = report.criteria
    single = markdown_of(report)
    assert "| criterion |" not in single
    assert f": {first.reason}\n" in single


def check_tables(text: str) -> None:
    """Make sure that each table of a Markdown text has as many cells in every row."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def two_criteria(report: Found) -> dict[str, Any]:
    """A latency that is kept, and a layer that exceeds its limit."""
    (first,) = report.criteria
    layer = replace(first, outcome=Outcome.REGRESSION, name="layer")
    return {"criteria": [replace(first, outcome=Outcome.PASSED, measured=0.01), layer]}


@pytest.mark.parametrize(
    ("outcome", "slowdown", "verdict", "changes", "heading"),
    [
        (Outcome.REGRESSION, 0.8, Verdict.SLOWER, lambda _: {}, "regression, tiny is slower (+80.0 %)"),
        (Outcome.PASSED, -0.05, Verdict.FASTER, lambda _: {}, "passed, tiny is faster (-5.0 %)"),
        (
            *(Outcome.PASSED, 0.004, Verdict.NO_DIFFERENCE),
            lambda report: {"evidence": replace(report.evidence, model=None)},
            "passed, the candidate is not slower (+0.4 %)",
        ),
        (
            *(Outcome.INCONCLUSIVE, 0.02, Verdict.NO_DIFFERENCE),
            lambda _: {"let_through": True},
            "inconclusive (allowed to pass), cannot tell whether tiny is slower (+2.0 %)",
        ),
        (
            *(Outcome.REGRESSION, 0.01, Verdict.SLOWER),
            two_criteria,
            "regression, tiny exceeds 1 limit of the budget (+1.0 %)",
        ),
    ],
    ids=["slower", "faster", "without a model", "let through", "a limit"],
)
def test_the_heading_answers_whether_it_is_slower(
    report: Found,
    outcome: Outcome,
    slowdown: float,
    verdict: Verdict,
    changes: Callable[[Found], dict[str, Any]],
    heading: str,
) -> None:
    """Begin with what is read first of a comment: outcome, model and change, or what cannot be told."""
    criterion = replace(report.criteria[0], outcome=outcome, measured=slowdown, verdict=verdict)
    decision = replace(report, **{"outcome": outcome, "criteria": [criterion]} | changes(report))
    assert markdown_of(decision).partition("\n")[0] == f"## opscope check: {heading}"


def test_operators_that_lost_next_to_nothing_are_counted_not_listed(report: Found) -> None:
    """A loss of a thousandth of the latency may be certain, and is not what made it slower."""
    first, latency = report.evidence.slower[0], report.evidence.end_to_end.candidate_ns
    tiny = replace(first, name="tiny", saved_ns=-0.001 * latency)
    text = markdown_of(with_evidence(report, slower=[first, tiny]))
    assert "| tiny |" not in text
    assert "1 more lost" in text
    assert "No operator is detectably slower by 0.5 % of the latency or more." in markdown_of(
        with_evidence(report, slower=[tiny])
    )


def test_operators_of_one_side_are_shown_with_their_side(report: Found) -> None:
    """In Markdown and on the terminal: the side that does not have it has no counterpart."""
    lone = replace(report.evidence.slower[0], name="erf", module=None, baseline_ns=None)
    found = with_evidence(report, slower=[], unmatched=[lone])
    assert re.search(r"^\| erf \|  \| no counterpart \| [\d.]+ \|$", markdown_of(found), re.MULTILINE)
    assert re.search(r"erf +no counterpart +[\d.]+", text_of(summary_of(found)))


def test_paths_in_markdown_are_as_long_as_tells_them_apart(report: Found) -> None:
    """The temporary directory of a job is left out; two bundles keep their names."""

    def paths(baseline: str, candidate: str) -> list[str]:
        sides = {
            "baseline": replace(report.evidence.baseline, path=baseline),
            "candidate": replace(report.evidence.candidate, path=candidate),
        }
        return re.findall(
            r"^\| (?:baseline|candidate) \| (.*?) \|", markdown_of(with_evidence(report, **sides)), re.MULTILINE
        )

    assert paths("/t/x/variants/old", "/t/x/variants/new") == ["old", "new"]
    assert paths("/t/x/variants/a", "/t/y/variants/a") == ["x/variants/a", "y/variants/a"]
    assert paths("old", "../new") == ["old", "../new"]
    assert paths("a/same", "a/same") == ["same", "same"]


def test_names_stay_text_in_markdown_and_on_the_terminal(report: Found) -> None:
    """Show no markup, no control characters and no broken table."""
    text = markdown_of(hostile(report))
    assert "\\<script" in text
    assert "<script" not in text.replace("\\<script", "")
    check_tables(text)
    shown = text_of(summary_of(hostile(report)))
    for own in (text, shown):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", own)
    assert max(map(len, shown.splitlines())) <= 80


CHILDREN = {
    Outcome.PASSED: [],
    Outcome.REGRESSION: ["failure"],
    Outcome.INCONCLUSIVE: ["error"],
    Outcome.UNTRUSTED: ["error"],
    Outcome.SKIPPED: ["skipped"],
}


@pytest.mark.parametrize("outcome", list(Outcome))
def test_junit_has_the_structure_that_readers_expect(report: Found, outcome: Outcome) -> None:
    """Counts that agree, one case a criterion, one child for what did not pass, seconds as times."""
    criteria = [replace(report.criteria[0], outcome=outcome), report.criteria[0]]
    found = replace(hostile(report), outcome=outcome, criteria=criteria, let_through=False)
    root = parsed(junit_xml(found, comparison_text(found)))
    assert root.tag == "testsuites"
    (suite,) = root
    assert [child.tag for child in suite] == ["properties", "testcase", "testcase", "system-out"]
    cases = suite.findall("testcase")
    for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        expected = str(sum(len(case.findall(tag)) for case in cases))
        assert suite.get(count) == expected
        assert root.get(count) == (None if tag == "skipped" else expected)
    assert suite.get("tests") == "2"
    assert [child.tag for child in cases[0]] == CHILDREN[outcome]
    assert all(child.get("message") and child.text for case in cases for child in case)
    for element in (root, suite, *cases):
        assert float(element.get("time") or "") > 0
    assert all(case.get("name") and (case.get("classname") or "").startswith("opscope.") for case in cases)


def test_characters_that_xml_forbids_are_removed() -> None:
    """Controls, surrogates and non-characters go; tabs, line ends and other planes stay."""
    assert xml_text("a\x00\x08\x0b\x1f\ud800\ufffe\uffffb\t\n\r\u20ac\U0001f600") == "ab\t\n\r\u20ac\U0001f600"


def test_the_budget_of_the_documentation_is_one(tmp_path: Path) -> None:
    """Every key in it exists, and so do those of the file that says how to measure."""
    pages = PAGE.read_text("utf-8"), PAGE.with_name("limit-layers-in-ci.md").read_text("utf-8")
    texts = re.findall(r"```toml\n(.*?)```", "".join(pages), re.DOTALL)
    files = [tmp_path / f"{number}.toml" for number in range(3)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    assert read_settings(files[0]).thread_counts == (4,)
    assert len(read_budgets(files[1]).budget) == 3
    assert [one.name for one in read_budgets(files[2]).method] == ["prefill_128"]


def program(directory: Path, end: bytes = b"") -> Path:
    """The tiny program; other bytes at its end make it another program."""
    directory.mkdir(parents=True, exist_ok=True)
    path = write_tiny_program(directory)
    path.write_bytes(path.read_bytes() + end)
    return path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *(
            (f"{{new}} --against {{old}} {option}", f"{option.split()[0]} already measured")
            for option in ("--rounds 6", "--out there", "--config c.toml", "--target local")
        ),
        ("{program} --against {old}", "opscope profile"),
        ("{old}#baseline --against {program}", "opscope profile"),
    ],
)
def test_bundles_are_not_measured_again(
    command: Command, words: str, told: str, old: Path, new: Path, tmp_path: Path
) -> None:
    """Refuse what says how to measure what is measured, and a program on one side with both ways to go on."""
    sides = words.format(old=old, new=new, program=program(tmp_path))
    done = command("check", *sides.split())
    assert done.returncode == 2
    assert (IS_A_PROGRAM in done.stderr) is (str(tmp_path / "tiny.pte") in sides)
    assert all(word in done.stderr for word in told.split(" "))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--warmup", "auto"), "--warmup: two programs are measured with a number of warm-up calls"),
        (("--resume",), "--resume: needs the bundle to finish"),
        (("--force",), "--force: it is only for sides that are already measured"),
        (("--rounds", "0"), "--rounds"),
        (("--target", "nowhere"), "nowhere"),
        (("--runs", "0"), "--runs"),
        (("--ablate", "avx2"), "No such option: --ablate"),
        (("--quick",), "No such option: --quick"),
    ],
)
def test_wrong_measuring_options_of_programs(
    command: Command, options: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    """Refuse them before anything runs."""
    done = command("check", program(tmp_path / "new"), "--against", program(tmp_path / "old", b"1"), *options)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


@pytest.mark.runtime
def test_two_programs_for_real(command: Command, toy_program: Path, tmp_path: Path) -> None:
    """Both run in turns; two rounds are too few for a verdict, and everything is written before the exit code.

    On a busy machine they may be disturbed as well, which is told first.
    """
    other = tmp_path / "other.pte"
    other.write_bytes(toy_program.read_bytes() + bytes(16))
    out, told, file = tmp_path / "out", tmp_path / "check.json", tmp_path / "few.toml"
    file.write_text('rounds = 9\nruns = 2\nwarmup = 1\nuntraced = false\ntarget = "local"\n')
    effort = ("--rounds", "2", "--config", file)
    done = command(
        "check", other, "--against", toy_program, "--out", out, *effort, "--json", told, "--markdown", tmp_path / "c.md"
    )
    assert done.returncode in {14, 20}, done.stderr
    found = json.loads(told.read_bytes())
    assert [found["evidence"][side]["label"] for side in ("candidate", "baseline")] == ["new", "old"]
    assert found["evidence"]["outputs"]["agree"]
    again = command("check", other, "--against", toy_program, "--out", out, "--resume", "--warmup", "2")
    assert (again.returncode, "--warmup: " in again.stderr) == (2, True)
    assert found["evidence"]["end_to_end"]["design"] == "paired"
    manifest = Bundle.open(out).manifest
    assert (manifest.plan.rounds, manifest.plan.runs, manifest.target.kind) == (2, 2, "local")
    assert manifest.programs["old"].sha256 != manifest.model.sha256
    assert [check.name for check in opscope.validate(out).checks if check.status.value == "failed"] == []
    assert f"report: {out / 'report.html'}" in done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('model = "x.pte"', "model: the command line names both programs"),
        ("runz = 3", 'runz: no such key: "runz"'),
        ("threads = [1, 2]", "threads: two programs are compared at one thread count"),
        ('ablate = ["avx2"]', "ablate: nothing is switched off"),
        ("ladder = true", "ladder: nothing is switched off"),
        ('target = "runner"', "target: needs a runner"),
        ('target = "nowhere"', 'target: no target "nowhere"'),
        ("max_rounds = 3", "max_rounds: nothing adds rounds"),
        ('input = ["float32["]', "input[0]"),
    ],
)
def test_a_file_that_says_how_to_measure_is_checked_by_key(text: str, problem: str, tmp_path: Path) -> None:
    """With the keys of a configuration, but for those that say what is measured."""
    file = tmp_path / "measure.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_settings(file)
    assert f"{file}: {problem}" in f"{caught.value.where}: {caught.value.problem}"


def test_files_that_it_names_are_beside_it(tmp_path: Path) -> None:
    """Look there, as in a configuration of `opscope run`."""
    file = tmp_path / "measure.toml"
    file.write_text('inputs = "in.npz"\ntarget = "runner:build/runner"\n')
    found = read_settings(file)
    assert (found.inputs, found.target) == (str(tmp_path / "in.npz"), f"runner:{tmp_path}/build/runner")


@pytest.mark.runtime
def test_two_programs_for_real_end_as_a_check_of_their_bundle(
    command: Command, toy_program: Path, tmp_path: Path
) -> None:
    """Files and the exit code are those that a check of both sides of the bundle gives afterwards."""
    other = tmp_path / "other.pte"
    other.write_bytes(toy_program.read_bytes() + bytes(16))
    out, files = tmp_path / "out", ("--markdown", tmp_path / "c.md", "--junit", tmp_path / "c.xml")
    effort = ("--rounds", "2", "--runs", "2", "--traced-only", "--no-ceilings", "--target", "local")
    done = command("check", other, "--against", toy_program, "--out", out, *effort, *files)
    assert done.returncode in {14, 20}, done.stderr
    assert "measure" in done.stderr.partition("hint:")[2]
    again = command("check", f"{out}#new", "--against", f"{out}#old", "--markdown", "-")
    assert (again.returncode, again.stdout) == (done.returncode, (tmp_path / "c.md").read_text())
    assert parsed((tmp_path / "c.xml").read_bytes()).get("tests") == "1"
