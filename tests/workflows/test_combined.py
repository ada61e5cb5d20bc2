"""One report over several bundles: platforms side by side, versions over time, and what is said about both."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import kit_files
from bundle_damage import FAILURE, record, rehash
from fakes import FakeClock, FakeTarget
from hostile_names import HOSTILE
from opscope.api import Settings, combined, combined_report, content, profile
from opscope.core.errors import NotFoundError, UsageError
from opscope.core.files import labels
from opscope.core.stats.effect import Verdict
from opscope.program.operators.kinds import Category
from opscope.reports.combined.combined import BundlePart, combine, combined_html, combined_markdown
from opscope.reports.combined.values import CombinedReport, shared_programs
from opscope.reports.content.content import ReportContent
from programs import write_tiny_program
from texts import MACHINE_DRIFT


def target_of(*, cpu: str = "Test CPU", system: str = "Linux", slower: float = 1.0, seed: int = 0) -> FakeTarget:
    """A target under another name, or whose convolution always takes so much longer."""
    target = FakeTarget(noise=0.005, seed=seed)
    machine = msgspec.structs.replace(target.environment(), cpu=cpu, system=system)
    target.environment = lambda: machine
    target.slower = lambda _: slower
    return target


class Bundles(NamedTuple):
    """Bundles of one program: of a Mac and of Linux, the later one of Linux slower, and a run of the kit."""

    mac: Path
    linux: Path
    later: Path
    kit: Path


def run(out: Path, target: FakeTarget, *, day: int = 0, threads: tuple[int, ...] = (1,)) -> Path:
    """A bundle of the tiny program, measured some days after the first of January."""
    out.parent.mkdir(parents=True, exist_ok=True)
    clock = FakeClock()
    clock.seconds = 86_400.0 * day
    settings = Settings(rounds=6, runs=3, warmup=1, ceilings=False, threads=threads)
    profile(str(write_tiny_program(out.parent)), settings=settings, out=out, target=target, clock=clock)
    return out


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Everything once."""
    root = tmp_path_factory.mktemp("combined")
    return Bundles(
        run(root / "mac", target_of(cpu="Test M4", system="Darwin")),
        run(root / "linux", target_of(), threads=(1, 2)),
        run(root / "later", target_of(slower=2.25, seed=1), day=1),
        kit_files.write_run(root / "runs" / "android", pairs=[kit_files.pair("alpha", "beta")]),
    )


@pytest.fixture(scope="module")
def shown(bundles: Bundles) -> ReportContent:
    """What the report of one of them shows."""
    return content(bundles.mac)


@pytest.fixture(scope="module")
def report(bundles: Bundles) -> CombinedReport:
    """All four, the later one first."""
    return combined([bundles.later, bundles.mac, bundles.linux, bundles.kit])


def test_there_is_a_line_for_each_bundle_and_thread_count(report):
    """Keep the order given, each with its own baseline, interval and grade; what a kit run lacks is not known."""
    rows = [(b.label, row.threads, row.verdict) for b in report.bundles for row in b.configurations]
    assert rows == [
        ("later", 1, Verdict.FASTER),
        ("mac", 1, Verdict.FASTER),
        ("linux", 1, Verdict.FASTER),
        ("linux", 2, Verdict.FASTER),
        ("android", 1, Verdict.UNDECIDABLE),
    ]
    _, mac, _, kit = report.bundles
    assert (mac.platform, mac.cpu, mac.target) == ("Darwin x86_64", "Test M4", "fake")
    (row,) = mac.configurations
    assert row.speedup == pytest.approx(row.baseline_ns / row.latency_ns, rel=0.01)
    assert row.ci95[0] < row.speedup < row.ci95[1]
    assert mac.quality is not None
    assert (kit.platform, kit.cpu, kit.sha256, kit.configurations[0].off) == (None, None, None, None)
    assert "| android | not known | not known | Arm kit run |" in combined_markdown(report)


def test_each_platform_has_its_bottleneck(report):
    """Before and now, with the longest operators; the framework's own time is none."""
    found = {bundle.label: bundle.bottleneck for bundle in report.bundles}
    assert {b.category for b in found.values()} == {Category.CONVOLUTION}
    mac = found["mac"]
    assert mac.before is Category.CONVOLUTION
    assert mac.share < mac.before_share
    assert [one.name for one in mac.operators] == ["Convolution (NHWC, F32) IGEMM #1", "native_call_add.out"]
    linux = report.bundles[1]
    shares, copies = linux.shares, 1 - linux.shares.delegated - linux.shares.portable - linux.shares.framework
    assert 0 < copies < shares.data_movement + 1e-9, "copies are the rest, and move data"


def test_machines_are_not_tested_against_each_other(bundles):
    """The difference is said, and there is no series."""
    found = combined([bundles.mac, bundles.linux])
    assert found.series == []
    (note,) = [note for note in found.notes if note.startswith("machines or targets differ")]
    assert "not tested against each other" in note
    assert "Test M4, Darwin x86_64, fake: mac" in note


def test_versions_of_one_machine_are_compared_with_the_first(report):
    """In order of time whatever the order given, unpaired, and with what that means."""
    (series,) = report.series
    assert [(v.label, v.created[:10]) for v in series.versions] == [("linux", "2026-01-02"), ("later", "2026-01-03")]
    first, second = series.versions
    assert (first.speedup, first.verdict) == (None, None)
    assert second.verdict is Verdict.SLOWER
    assert second.speedup == pytest.approx(first.latency_ns / second.latency_ns, rel=0.02)
    assert any(MACHINE_DRIFT in note for note in second.notes)


def test_operators_of_one_program_are_matched_across_bundles(report):
    """By place in the program; those whose shares differ most come first."""
    (program,) = report.programs
    assert program.bundles == ["later", "mac", "linux"]
    assert program.unmatched == 0
    names = {operator.names[0]: operator for operator in program.operators}
    assert set(names) == {"Convolution (NHWC, F32) IGEMM #1", "native_call_add.out"}
    shares = names["Convolution (NHWC, F32) IGEMM #1"].shares
    assert shares[0] > shares[1] + 0.05
    assert shares[1] == pytest.approx(shares[2], abs=0.01)
    assert program.operators[0].spread >= program.operators[1].spread


def content_with(content: ReportContent, names: list[str]) -> ReportContent:
    """A report whose delegate ran operators of these names."""
    shown = content.shown
    operator = next(o for o in shown.operators if o.instruction == 0 and o.position is not None)
    replace = msgspec.structs.replace
    share = 1 / len(names)
    rows = [replace(operator, name=name, position=n, share=share) for n, name in enumerate(names)]
    result = replace(content.variants[0], analysis=replace(shown, operators=rows))
    return replace(content, variants=[result], comparisons=[])


def test_operators_that_some_platforms_lack_are_lined_up(shown):
    """Show an operator that two platforms insert in one line; other programs are not matched, however alike."""
    plain, inserted = ["Convolution (NHWC, F32) IGEMM #1", "Softmax (NC) #1"], "Convert (NC) #1"
    more = [plain[0], inserted, plain[1]]
    told = [(label, content_with(shown, names)) for label, names in (("a", plain), ("b", more), ("c", more))]
    (program,) = shared_programs(told)
    lines = sorted((operator.names for operator in program.operators), key=str)
    assert lines == [
        ["Convolution (NHWC, F32) IGEMM #1"] * 3,
        ["Softmax (NC) #1"] * 3,
        [None, inserted, inserted],
    ]
    assert program.unmatched == 1
    model = msgspec.structs.replace(shown.manifest.model, sha256="f" * 64)
    other = msgspec.structs.replace(shown, manifest=msgspec.structs.replace(shown.manifest, model=model))
    assert shared_programs([("a", shown), ("b", other)]) == []


def test_a_copy_is_no_second_measurement(bundles, tmp_path):
    """Tell once of all copies under other names, and not of bundles with other traces."""
    copies = [Path(shutil.copytree(bundles.mac, tmp_path / name)) for name in ("b", "c")]
    found = combined([bundles.mac, *copies, bundles.later])
    told = [note for note in found.notes if "same traces" in note]
    assert told == ["mac, b and c contain the same traces: a copy is not a second measurement"]
    assert found.series[0].versions[1].verdict is None
    assert found.series[0].versions[1].notes == ["the same traces as the first: a copy"]


def test_what_is_missing_is_said(bundles, tmp_path):
    """Say it by bundle, in all formats that people read."""
    broken = Path(shutil.copytree(bundles.mac, tmp_path / "broken"))
    record("baseline", 1, "failure", FAILURE)(broken)
    rehash(broken)
    found = combined([bundles.linux, broken])
    assert [len(bundle.missing) for bundle in found.bundles] == [0, 1]
    for text in (combined_markdown(found), combined_html(found)):
        assert "What is missing" in text
        assert "ended by SIGSEGV" in text


def test_names_of_directories_are_told_apart():
    """With as many parts of their paths as it takes."""
    places = [Path("/a/x/mac"), Path("/a/y/mac"), Path("/a/y/linux")]
    assert labels(places) == ["x/mac", "y/mac", "linux"]
    assert labels([Path("/a/b/c"), Path("/d/b/c")]) == ["a/b/c", "d/b/c"]


@pytest.mark.parametrize(
    ("others", "error", "said"),
    [
        ((), UsageError, "at least two bundles"),
        (("linux", "linux/../mac"), UsageError, "given twice"),
        (("nothing",), NotFoundError, "no such directory"),
        (("mac/manifest.json",), NotFoundError, "not a directory"),
        (("mac/model",), NotFoundError, None),
    ],
    ids=["one bundle", "one twice", "no directory", "a file", "no bundle"],
)
def test_what_cannot_be_combined_is_refused(bundles, others, error, said):
    """Take a bundle for the same by whatever path."""
    with pytest.raises(error, match=said):
        combined([bundles.mac, *(bundles.mac.parent / other for other in others)])


def test_all_formats_are_written(bundles, tmp_path):
    """Beside a bundle's own reports, never over them; the JSON reads back as what was written."""
    written = combined_report([bundles.mac, bundles.linux], tmp_path / "out")
    assert [path.name for path in written] == ["combined.json", "combined.md", "combined.html"]
    decoded = msgspec.json.decode((tmp_path / "out" / "combined.json").read_bytes(), type=CombinedReport)
    assert [bundle.label for bundle in decoded.bundles] == ["mac", "linux"]
    assert decoded.programs[0].bundles == ["mac", "linux"]
    with pytest.raises(UsageError, match="unknown format"):
        combined_report([bundles.mac, bundles.linux], tmp_path / "other", ["pdf"])
    assert not (tmp_path / "other").exists()


def test_the_page_needs_nothing_else(report, shown):
    """Open offline, run nothing, and follow the reader's light or dark.

    Of many bundles the tables stay; what is said of each is one click away, and nothing is left out.
    """
    page = combined_html(report)
    assert "<script" not in page
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", page)
    assert "prefers-color-scheme: dark" in page
    for element in ("table", "tr"):
        assert len(re.findall(f"<{element}[ >]", page)) == page.count(f"</{element}>")
    few, many = (combine([BundlePart(f"b{n}", f"/b{n}", shown) for n in range(count)], [], []) for count in (8, 9))
    assert "categories, longest operators and findings</summary>" not in combined_html(few)
    page = combined_html(many)
    assert page.count("categories, longest operators and findings</summary>") == 9
    assert page.count("Summary of each bundle</summary>") == 1
    assert (page.count("<details"), page.count("<h3>")) == (page.count("</details>"), 0)


@pytest.fixture(scope="module")
def hostile(shown: ReportContent, report: CombinedReport) -> CombinedReport:
    """Names of everything that want to be more than names."""
    replace = msgspec.structs.replace
    first = shown.variants[0]
    names = itertools.cycle(HOSTILE)
    operators = [replace(operator, name=next(names)) for operator in first.analysis.operators]
    renamed = replace(first, analysis=replace(first.analysis, operators=operators))
    shown = replace(shown, variants=[renamed, *shown.variants[1:]])
    parts = []
    for label in (HOSTILE[0], HOSTILE[2], HOSTILE[5]):
        model = replace(shown.manifest.model, name=HOSTILE[1], dtype=HOSTILE[2])
        environment = replace(shown.manifest.environment, cpu=HOSTILE[6], versions={HOSTILE[7]: HOSTILE[3]})
        manifest = replace(shown.manifest, model=model, environment=environment)
        parts.append(BundlePart(label, HOSTILE[7], replace(shown, manifest=manifest)))
    return combine(parts, report.series, list(HOSTILE))


def test_hostile_names_stay_text(hostile):
    """No element of a name reaches the page, and no Markdown table has a row of another length."""
    page, text = combined_html(hostile), combined_markdown(hostile)
    assert not re.search(r"<(script|img)", page)
    assert not re.search(r"(?<!\\)<(script|img)", text)
    cells = None
    for line in text.splitlines():
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert count is None or cells is None or count == cells, line[:200]
        cells = count
    for shown in (page, text):
        assert not {"\N{RIGHT-TO-LEFT OVERRIDE}", "\x07"} & set(shown)
        assert "x" * 700 not in shown
