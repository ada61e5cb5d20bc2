"""``opscope check``: exit codes, what may be compared, budget files, and outputs that other programs read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from rich.console import RenderableType

import opscope
from bundle_damage import rehash
from fakes import FakeClock, FakeTarget
from opscope.analysis.gate.decision import Decision, Outcome
from opscope.analysis.gate.gate import ComparisonEvidence
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind
from opscope.cli.shared.gating import threshold_share
from opscope.core.errors import MismatchError, NotFoundError, UsageError
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


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "opscope", "check", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def markdown_of(decision: Found) -> str:
    """The decision in Markdown."""
    return gate_markdown(decision, comparison_text(decision))


def summary_of(decision: Found) -> RenderableType:
    """The decision on a terminal."""
    return gate_summary(decision, comparison_text(decision))


def sentence_of(decision: Found) -> str:
    """The decision in one sentence."""
    return gate_sentence(decision, comparison_text(decision))


def junit_of(decision: Found) -> bytes:
    """The decision as JUnit XML."""
    return junit_xml(decision, comparison_text(decision))


def with_evidence(decision: Found, **changes: Any) -> Found:
    """The decision with other evidence."""
    evidence = msgspec.structs.replace(decision.evidence, **changes)
    return msgspec.structs.replace(decision, evidence=evidence)


def parsed(document: bytes | str) -> ET.Element:
    """The root of a document that opscope wrote."""
    return ET.fromstring(document)  # noqa: S314 - our own output


def changed(path: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a bundle whose manifest says something else."""
    shutil.copytree(path, copy)
    manifest = msgspec.structs.replace(Bundle.open(copy).manifest, **changes)
    (copy / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    rehash(copy)  # as if it had been measured so
    return copy


def test_a_pass_and_its_outputs(old: Path, new: Path, tmp_path: Path) -> None:
    """Exit code 0; the verdict is the first line; three files, each complete."""
    files = [tmp_path / name for name in ("check.json", "check.md", "check.xml")]
    done = run(new, "--against", old, "--json", files[0], "--markdown", files[1], "--junit", files[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("passed: ")
    found = json.loads(files[0].read_text())
    assert (found["schema"], found["outcome"], found["let_through"]) == ("opscope.check/2", "passed", True)
    assert files[1].read_text().startswith("## opscope check: passed, tiny is not slower (")
    assert parsed(files[2].read_bytes()).get("failures") == "0"


def test_a_regression(old: Path, new: Path, tmp_path: Path) -> None:
    """Exit code 1, one error line and a hint, and the results are there all the same."""
    target = tmp_path / "check.json"
    done = run(f"{new}#baseline", "--against", old, "--json", target, "--quiet")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {new}#baseline: end-to-end latency against the baseline: slower by ")
    assert json.loads(target.read_text())["outcome"] == "regression"


def test_inconclusive_fails_unless_it_is_let_through(old: Path, tmp_path: Path) -> None:
    """Exit code 14 with two rounds; 0 with a warning when asked."""
    few = bundle(tmp_path / "few", seed=3, rounds=1)
    done = run(few, "--against", old)
    assert done.returncode == 14
    assert done.stdout.startswith("inconclusive: ")
    assert "measure more rounds" in done.stderr
    lenient = run(few, "--against", old, "--inconclusive", "pass", "--junit", "-")
    assert lenient.returncode == 0
    assert lenient.stderr.startswith("warning: ")
    assert parsed(lenient.stdout)[0].get("skipped") == "1"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["{new}", "--against", "{old}", "--threshold", "5"], 2, "--threshold: '5' is not a percentage"),
        (["{new}", "--against", "{tmp}/none"], 3, "error: "),
        (["{old}", "--against", "{old}#accelerated"], 13, "both sides are the same traces"),
    ],
)
def test_mistakes_have_codes_of_their_own(
    words: list[str], code: int, told: str, old: Path, new: Path, tmp_path: Path
) -> None:
    """Wrong option, no such bundle, nothing to compare: never 1, never a traceback."""
    done = run(*(word.format(old=old, new=new, tmp=tmp_path) for word in words))
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "share"), [("3%", 0.03), ("3 %", 0.03), ("0.03", 0.03), ("0", 0.0), ("0.5%", 0.005), (" 10% ", 0.1)]
)
def test_thresholds(text: str, share: float) -> None:
    """In percent or as a fraction."""
    assert threshold_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "-1%", "-0.01", "100%", "1", "3", "nan", "nan%", "inf", "3%%", "three"])
def test_thresholds_that_make_no_sense(text: str) -> None:
    """A plain 3 would be 300 %, which is not a threshold."""
    with pytest.raises(UsageError, match="not a percentage"):
        threshold_share(text)


def test_outputs_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    """Two on standard output, or in one file; the bundles need not even exist."""
    two = run("a", "--against", "b", "--json", "-", "--junit", "-")
    assert (two.returncode, "already printed" in two.stderr) == (2, True)
    same = run("a", "--against", "b", "--json", tmp_path / "r", "--markdown", tmp_path / "r")
    assert (same.returncode, "--json and --markdown name the same file" in same.stderr) == (19, True)
    assert not (tmp_path / "r").exists()


def test_the_json_obeys_its_schema(report: Found) -> None:
    """As published."""
    jsonschema.validate(json.loads(msgspec.json.encode(report)), msgspec.json.schema(Found))


def test_variants_of_one_bundle_are_paired(new: Path) -> None:
    """By round, and what is switched off is noted."""
    found = opscope.check(f"{new}#baseline", f"{new}#accelerated", threshold=0.5)
    assert (found.evidence.end_to_end.design, found.outcome) == ("paired", Outcome.REGRESSION)
    assert any("features switched off differs: none in the baseline, avx512" in note for note in found.notes)


def test_two_sessions_are_said_to_be_two(old: Path, new: Path, tmp_path: Path) -> None:
    """One after the other, the interval does not hold what happened to the machine in between; in turns it does."""
    found = opscope.check(new, old)
    assert found.evidence.end_to_end.design == "unpaired"
    assert any("same period, but not in pairs" in note for note in found.notes)
    later = [
        msgspec.structs.replace(repetition, started="2031-01-01T00:00:00+00:00")
        for repetition in Bundle.open(new).manifest.repetitions
    ]
    notes = opscope.check(changed(new, tmp_path / "later", repetitions=later), old).notes
    assert sum(MACHINE_DRIFT in note for note in notes) == 1


def test_a_comparison_of_two_bundles_warns_as_the_gate_does(old: Path, new: Path) -> None:
    """Measured apart is measured apart, whoever asks; variants of one bundle were measured in turns."""
    told = [note for note in opscope.check(new, old).notes if "over the same period" in note]
    assert told
    assert [note for note in opscope.compare(old, new).notes if "over the same period" in note] == told
    assert not [note for note in opscope.compare(f"{new}#baseline", f"{new}#accelerated").notes if "of time" in note]


def _other(path: Path, what: str) -> dict[str, Any]:
    manifest = Bundle.open(path).manifest
    replace = msgspec.structs.replace
    return {
        "cpu": {"environment": replace(manifest.environment, cpu="Other CPU")},
        "features": {"environment": replace(manifest.environment, features=["avx2"])},
        "threads": {"variants": [replace(variant, threads=2) for variant in manifest.variants]},
        "affinity": {"variants": [replace(variant, affinity=[1]) for variant in manifest.variants]},
        "target": {"target": replace(manifest.target, kind="other")},
        "arm": {"repetitions": [r for r in manifest.repetitions if r.arm.value == "traced"]},
    }[what]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("cpu", "the CPU differs: Test CPU in the baseline, Other CPU in the candidate"),
        ("features", "the CPUs' features differ: only the baseline has avx, avx512, sse4"),
        ("threads", "the number of threads differs: 1 in the baseline, 2 in the candidate"),
        ("affinity", "the CPU pinning differs: all in the baseline, 1 in the candidate"),
        ("target", "the kind of target differs: fake in the baseline, other in the candidate"),
        ("arm", "the candidate has no untraced timing"),
    ],
)
def test_what_is_not_comparable_is_refused(what: str, told: str, old: Path, new: Path, tmp_path: Path) -> None:
    """Unless it is forced; the report then says why it should not have been."""
    other = changed(new, tmp_path / "other", **_other(new, what))
    with pytest.raises(MismatchError) as caught:
        opscope.check(other, old)
    assert told in caught.value.problem
    assert "--force" in (caught.value.hint or "")
    forced = opscope.check(other, old, force=True)
    assert len(forced.mismatches) == 1
    assert told in forced.mismatches[0]
    assert "compared anyway" in markdown_of(forced)


def test_what_a_gate_is_for_is_noted_and_not_refused(old: Path, new: Path, tmp_path: Path) -> None:
    """Another program, another name, other versions."""
    manifest = Bundle.open(new).manifest
    program = b"another program"
    model = msgspec.structs.replace(manifest.model, name="other", sha256=hashlib.sha256(program).hexdigest())
    environment = msgspec.structs.replace(manifest.environment, versions={"executorch": "2"})
    other = changed(new, tmp_path / "other", model=model, environment=environment)
    (other / model.program).write_bytes(program)
    notes = " ".join(opscope.check(other, old).notes)
    assert "device" not in notes
    assert "the model differs: tiny in the baseline, other in the candidate" in notes
    assert "different programs" in notes
    assert "different versions" in notes


def test_boards_with_different_names_are_noted(old: Path, new: Path, tmp_path: Path) -> None:
    """They may be of one kind; a name on one side alone tells nothing."""
    here, there = changed(old, tmp_path / "here", device="left"), changed(new, tmp_path / "there", device="right")
    told = "the device differs: left in the baseline, right in the candidate"
    assert told in opscope.check(there, here).notes
    assert not [note for note in opscope.check(there, old).notes if "device" in note]


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
    """The convolution takes 0.4 ms, twice the 0.2 that are allowed; everything else is kept."""
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
    assert sentence_of(found).startswith("regression in 1 limit of the budget: ")
    assert "raise the limit" in str(found.advice)


def test_the_budget_may_set_the_threshold(old: Path, new: Path, tmp_path: Path) -> None:
    """The command line goes before it."""
    file = tmp_path / "budget.json"
    file.write_text('{"end_to_end": {"max_slower": 0.9}}')
    slow = f"{new}#baseline"
    assert opscope.check(slow, old, budget=file).outcome is Outcome.PASSED
    assert opscope.check(slow, old, budget=file, threshold=0.1).outcome is Outcome.REGRESSION


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


def test_a_budget_file_that_is_absent(tmp_path: Path) -> None:
    """Exit code 3, not 2."""
    with pytest.raises(NotFoundError):
        read_budgets(tmp_path / "none.toml")


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
    replace, found = msgspec.structs.replace, report.evidence
    slower = [replace(change, name=HOSTILE, module=HOSTILE) for change in found.slower]
    lone = [replace(change, baseline_ns=None) for change in slower]
    side = replace(found.candidate, label=HOSTILE, path=HOSTILE)
    criteria = [replace(criterion, name=HOSTILE) for criterion in report.criteria]
    changed = with_evidence(report, candidate=side, model=HOSTILE, slower=slower, unmatched=lone)
    return replace(changed, criteria=criteria, notes=[HOSTILE])


def test_markdown_holds_verdict_tables_and_notes(report: Found) -> None:
    """In this order; tables have as many cells in every row."""
    text = markdown_of(msgspec.structs.replace(report, criteria=report.criteria * 2))
    shown = text.replace("\\", "")
    parts = [
        shown.index(part)
        for part in (sentence_of(report), "| criterion |", "### Operators that became slower", "### Notes")
    ]
    assert parts == sorted(parts)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_a_single_limit_is_no_table(report: Found) -> None:
    """Its figures stand in the sentence above; the reason is left."""
    (first,) = report.criteria
    text = markdown_of(report)
    assert "| criterion |" not in text
    assert f": {first.reason}\n" in text


def test_the_heading_answers_whether_it_is_slower(report: Found) -> None:
    """Of a comment on a pull request the first line is read: outcome, model and change, or what cannot be told."""
    replace, first = msgspec.structs.replace, report.criteria[0]

    def heading(outcome: Outcome, slowdown: float, verdict: Verdict, **changes: Any) -> str:
        criterion = replace(first, outcome=outcome, measured=slowdown, verdict=verdict)
        decision = replace(report, **{"outcome": outcome, "criteria": [criterion]} | changes)
        return markdown_of(decision).partition("\n")[0].removeprefix("## opscope check: ")

    passed, unclear, regression = Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.REGRESSION
    assert heading(regression, 0.8, Verdict.SLOWER) == "regression, tiny is slower (+80.0 %)"
    assert heading(passed, -0.05, Verdict.FASTER) == "passed, tiny is faster (-5.0 %)"
    unnamed = with_evidence(report, model=None).evidence
    same = heading(passed, 0.004, Verdict.NO_DIFFERENCE, evidence=unnamed)
    assert same == "passed, the candidate is not slower (+0.4 %)"
    excused = heading(unclear, 0.02, Verdict.NO_DIFFERENCE, let_through=True)
    assert excused == "inconclusive (allowed to pass), cannot tell whether tiny is slower (+2.0 %)"
    kept = replace(first, outcome=passed, measured=0.01)
    layer = replace(first, outcome=regression, name="layer")
    beyond = heading(regression, 0.01, Verdict.SLOWER, criteria=[kept, layer])
    assert beyond == "regression, tiny exceeds 1 limit of the budget (+1.0 %)"


def test_operators_that_lost_next_to_nothing_are_counted_not_listed(report: Found) -> None:
    """A loss of a thousandth of the latency may be certain, and is not what made it slower."""
    replace, first, latency = (
        msgspec.structs.replace,
        report.evidence.slower[0],
        report.evidence.end_to_end.candidate_ns,
    )
    tiny = replace(first, name="tiny", saved_ns=-0.001 * latency, candidate_ns=first.candidate_ns)
    text = markdown_of(with_evidence(report, slower=[first, tiny]))
    assert "| tiny |" not in text
    assert "1 more lost" in text
    assert "No operator is detectably slower by 0.5 % of the latency or more." in markdown_of(
        with_evidence(report, slower=[tiny])
    )


def test_operators_of_one_side_are_shown_with_their_side(report: Found) -> None:
    """In Markdown and on the terminal: a dash stands for the side that does not have it."""
    lone = msgspec.structs.replace(report.evidence.slower[0], name="erf", module=None, baseline_ns=None)
    found = with_evidence(report, slower=[], unmatched=[lone])
    assert re.search(r"^\| erf \|  \| - \| [\d.]+ \|$", markdown_of(found), re.MULTILINE)
    assert re.search(r"erf +- +[\d.]+", text_of(summary_of(found)))


def test_paths_in_markdown_are_as_long_as_tells_them_apart(report: Found) -> None:
    """The temporary directory of a job is left out; two bundles keep their names."""

    def paths(baseline: str, candidate: str) -> list[str]:
        replace = msgspec.structs.replace
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
    """No markup, no control characters, no broken table."""
    from io import StringIO

    from rich.console import Console

    text = markdown_of(hostile(report))
    assert "\\<script" in text
    assert "<script" not in text.replace("\\<script", "")
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    out = StringIO()
    Console(file=out, width=80, highlight=False).print(summary_of(hostile(report)))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", out.getvalue())
    assert max(map(len, out.getvalue().splitlines())) <= 80


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
    criteria = [msgspec.structs.replace(report.criteria[0], outcome=outcome), report.criteria[0]]
    found = msgspec.structs.replace(hostile(report), outcome=outcome, criteria=criteria, let_through=False)
    root = parsed(junit_of(found))
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


def test_the_commands_of_the_page_have_options_that_exist() -> None:
    """Each checks two programs in one run."""
    commands = re.findall(r"^opscope check head\.pte --against base\.pte .+$", PAGE.read_text("utf-8"), re.MULTILINE)
    known = run("--help-all").stdout
    options = re.findall(r"--[a-z]+", " ".join(commands))
    assert len(commands) > 1
    assert options
    assert all(option in known for option in options)


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


def test_checking_loads_neither_torch_nor_executorch(old: Path, new: Path) -> None:
    """A gate runs where only the traces are."""
    code = (
        f"import sys, opscope\nopscope.check({str(new)!r}, {str(old)!r})\n"
        "assert not {'torch', 'executorch', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def program(directory: Path, end: bytes = b"") -> Path:
    """The tiny program; other bytes at its end make it another program."""
    directory.mkdir(parents=True, exist_ok=True)
    path = write_tiny_program(directory)
    path.write_bytes(path.read_bytes() + end)
    return path


def test_a_program_against_a_bundle_says_what_to_do(old: Path, tmp_path: Path) -> None:
    """Exit code 2, whichever side it is; both ways to go on are named."""
    new = program(tmp_path)
    for sides in ((new, "--against", old), (f"{old}#baseline", "--against", new)):
        done = run(*sides)
        assert done.returncode == 2
        assert IS_A_PROGRAM in done.stderr
        assert "opscope profile" in done.stderr


@pytest.mark.parametrize(
    "option", [("--rounds", "6"), ("--out", "there"), ("--config", "c.toml"), ("--target", "local")]
)
def test_bundles_are_not_measured_again(option: tuple[str, ...], old: Path, new: Path) -> None:
    """Exit code 2 and the option's name: what says how to measure has no effect on what was measured."""
    done = run(new, "--against", old, *option)
    assert done.returncode == 2
    assert option[0] in done.stderr
    assert "already measured" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--warmup", "auto"), "--warmup: it is only for sides that are already measured"),
        (("--force",), "--force: it is only for sides that are already measured"),
        (("--rounds", "0"), "--rounds"),
        (("--target", "nowhere"), "nowhere"),
        (("--runs", "3"), "No such option: --runs"),
    ],
)
def test_wrong_measuring_options_of_programs(options: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    """Exit code 2 before anything runs."""
    done = run(program(tmp_path / "new"), "--against", program(tmp_path / "old", b"1"), *options)
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.runtime
def test_two_programs_for_real(toy_program: Path, tmp_path: Path) -> None:
    """Both run in turns; two rounds are too few for a verdict, and everything is written before the exit code.

    On a busy machine they may be disturbed as well, which is told first.
    """
    other = tmp_path / "other.pte"
    other.write_bytes(toy_program.read_bytes() + bytes(16))
    out, told, file = tmp_path / "out", tmp_path / "check.json", tmp_path / "few.toml"
    file.write_text('rounds = 9\nruns = 2\nwarmup = 1\nuntraced = false\ntarget = "local"\n')
    effort = ("--rounds", "2", "--config", file)
    done = run(other, "--against", toy_program, "--out", out, *effort, "--json", told, "--markdown", tmp_path / "c.md")
    assert done.returncode in {14, 20}, done.stderr
    found = json.loads(told.read_bytes())
    assert [found["evidence"][side]["label"] for side in ("candidate", "baseline")] == ["new", "old"]
    assert found["evidence"]["outputs"]["agree"]
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
    """As in a configuration of `opscope run`."""
    file = tmp_path / "measure.toml"
    file.write_text('inputs = "in.npz"\ntarget = "runner:build/runner"\n')
    found = read_settings(file)
    assert (found.inputs, found.target) == (str(tmp_path / "in.npz"), f"runner:{tmp_path}/build/runner")


@pytest.mark.parametrize("option", ["--threshold", "--budget", "--inconclusive", "--markdown", "--junit"])
def test_profile_judges_only_with_a_baseline(option: str, tmp_path: Path) -> None:
    """Exit code 2, and the hint is the command with what it lacks."""
    value = "pass" if option == "--inconclusive" else "3%" if option == "--threshold" else str(tmp_path / "f")
    command = [sys.executable, "-m", "opscope", "profile", str(program(tmp_path)), option, value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {option}: it needs a program to compare with (--against)")
    assert f"--against OLD {option}" in done.stderr


@pytest.mark.runtime
def test_profile_of_two_programs_ends_with_the_gate(toy_program: Path, tmp_path: Path) -> None:
    """Profile and decision are printed; files and the exit code are those of check, as a check of the bundle says."""
    other = tmp_path / "other.pte"
    other.write_bytes(toy_program.read_bytes() + bytes(16))
    out, files = tmp_path / "out", ("--markdown", str(tmp_path / "c.md"), "--junit", str(tmp_path / "c.xml"))
    effort = ("--rounds", "2", "--runs", "2", "--warmup", "1", "--traced-only", "--no-ceilings", "--target", "local")
    words = ["profile", str(other), "--against", str(toy_program), "--out", str(out), *effort, *files]
    done = subprocess.run([sys.executable, "-m", "opscope", *words], capture_output=True, text=True, check=False)
    assert done.returncode in {14, 20}, done.stderr
    assert f"report: {out / 'report.html'}" in done.stdout
    assert "measure" in done.stderr.partition("hint:")[2]
    again = run(f"{out}#new", "--against", f"{out}#old", "--markdown", "-")
    assert (again.returncode, again.stdout) == (done.returncode, (tmp_path / "c.md").read_text())
    assert parsed((tmp_path / "c.xml").read_bytes()).get("tests") == "1"
