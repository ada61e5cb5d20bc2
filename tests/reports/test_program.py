"""The parts of a report that need the program: layers, lines, the layout tax, delegates and the roofline."""

from pathlib import Path

import msgspec
import pytest

from block_texts import sentences, tables
from bundle_damage import manifest
from fakes import FakeTarget
from opscope.analysis.analysis import Analysis
from opscope.analysis.operators.modules import ModuleTime
from opscope.api import Profiled, Settings, analyze, content, inspect, profile, report
from opscope.core.errors import InvalidBundleError, MismatchError, UsageError
from opscope.core.files import sha256_of
from opscope.reports.content.places import boundary_text, source_text
from opscope.reports.report import markdown_report
from opscope.reports.sections.program import backends_section, module_rows
from texts import NO_ZIP_FILE, NOT_THE_MEASURED_FILE, WITHOUT_ITS_PROGRAM
from traces import parse

TOY = """
Method::execute 1000000
  DELEGATE_CALL @0 410000
    Transpose (ND, X32) #1 10000
    Convolution (NHWC, F32) IGEMM #1 100000
    Convolution (NHWC, F32) IGEMM #2 200000
    Transpose (ND, X32) #2 40000
    Transpose (ND, X32) #3 50000
  OPERATOR_CALL @1 200000
    native_call_native_layer_norm.out 190000
  DELEGATE_CALL @2 60000
    Transpose (ND, X32) #1 30000
    Clamp (NC) #1 20000
  OPERATOR_CALL @3 100000
    native_call_mean.out 100000
  DELEGATE_CALL @4 10000
    Fully Connected (NC, F32) GEMM #1 9000
"""


class ToyTarget(FakeTarget):
    """Leaves the traces that the toy network would, always the same."""

    def _inference(self, _):
        return parse(TOY)[0]


@pytest.fixture(scope="module")
def done(toy_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """A bundle of the toy network with its program, record and ceilings."""
    out = tmp_path_factory.mktemp("toy") / "out"
    return profile(str(toy_program), settings=Settings(rounds=2, runs=3, warmup=1), out=out, target=ToyTarget())


@pytest.fixture
def page(done: Profiled) -> str:
    """The HTML report."""
    return (done.path / "report.html").read_text()


@pytest.fixture
def markdown(done: Profiled) -> str:
    """All of it in Markdown."""
    return markdown_report(content(done.path))


@pytest.mark.parametrize(
    "told",
    [
        "Which layer takes the time",
        "100.0 % of delegate time is attributed exactly",
        "toy_cnn.py:30",
        "features = self.body(self.stem(image))",
        "Layout tax",
        "60.0 µs, 6.0 % of the latency",
        "aten::native_layer_norm.out at instruction 1",
        "exact (native)",
        "Distance from this machine&#39;s limit",
        "products in f32",
        "with batch_norm, relu",
    ],
)
def test_the_page_shows(told, page):
    """Each part, with figures of the trace."""
    assert told in page.replace("'s limit", "&#39;s limit")


def test_the_page_draws_the_roofline(page):
    """One picture more than the latency pictures, with its axes."""
    assert "multiply-accumulates per byte" in page


@pytest.mark.parametrize(
    "told",
    [
        "body | Conv2d | 0.200 | 0.200 | 20.0 % | 18.9 M |",
        "| Transpose (ND, X32) #1 | input of the model | stem.0 (Conv2d) | partitioner | 0.010 | 1.0 % |",
        "| 0 | XnnpackBackend 0 | 5 | 5 | 0.400 | 0.009 | 40.9 % | exact (native) |",
    ],
)
def test_the_markdown_report_shows(told, markdown):
    """The same in tables."""
    assert told in markdown.replace("\\", "")


def test_layout_changes_are_a_finding(page):
    """6 % of the operators: above the threshold of 5 %."""
    assert "Layout changes that are not in the model take 6.0 % of the latency" in page


def test_the_bundle_says_that_this_program_was_run(done):
    """Its hash is in the manifest; operators stand under the ceilings of their variant."""
    found = analyze(done.path)
    assert found.program.verified
    assert found.roofline is not None
    assert found.ceilings.cleared == []


def test_a_changed_program_is_refused(done, tmp_path):
    """Its operators would be those of another program."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(done.path, copy)
    program = next((copy / "model").glob("*.pte"))
    program.write_bytes(program.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE):
        analyze(copy)


def test_a_damaged_record_leaves_shapes_and_costs(done, tmp_path):
    """Modules are not known, which is said; everything else is."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(done.path, copy)
    record = next((copy / "model").glob("*.etrecord"))
    record.write_bytes(b"PK\x03\x04 nothing")
    manifest("model.etrecord_sha256", sha256_of(record))(copy)  # as it was exported, so it is the one that was measured
    found = analyze(copy)
    assert {warning.code for warning in found.trace.warnings} >= {"record_unusable"}
    assert found.program
    assert NO_ZIP_FILE in (found.program.etrecord_problem or "")
    report(copy, ("html",), out=tmp_path / "pages")
    for text in ((tmp_path / "pages" / "report.html").read_text(), markdown_report(content(copy))):
        assert "(.etrecord) cannot be used: " in text
        assert "there is no export record" not in text
    assert found.program.etrecord is None
    assert found.operators[1].macs is not None


def test_a_trace_alone_is_attributed_with_the_files_that_are_named(done, toy_program):
    """Without a bundle nothing verifies the program but that it fits."""
    trace = next(done.path.glob("variants/accelerated/*/trace.etdump.zst"))
    found = analyze(trace, program=toy_program, etrecord=toy_program.with_suffix(".etrecord"), warmup=0)
    assert not found.program.verified
    assert found.operators[2].module == "body"
    assert analyze(trace, warmup=0).operators[2].module is None


def test_a_record_without_its_program_is_refused(done):
    """A record tells nothing about a trace alone."""
    trace = next(done.path.glob("variants/accelerated/*/trace.etdump.zst"))
    with pytest.raises(UsageError, match=WITHOUT_ITS_PROGRAM):
        analyze(trace, etrecord="m.etrecord")


def test_a_program_for_what_is_no_trace_is_refused(toy_program):
    """A summary of a program needs no program."""
    with pytest.raises(UsageError, match="this is not a trace"):
        inspect(toy_program, program=toy_program)


def test_another_program_for_a_bundle_is_refused(done):
    """The bundle knows the hash of its own."""
    other = Path(__file__).parents[1] / "data" / "two_methods.pte"
    with pytest.raises(MismatchError, match="another program"):
        analyze(done.path, program=other)


def test_analyses_can_be_read_back(done):
    """analysis.json holds all of it."""
    found = msgspec.json.decode((done.path / "analysis.json").read_bytes(), type=Analysis)
    assert (found.modules[0].path, len(found.layout), len(found.delegates)) == ("", 2, 3)


def module(path: str, own: float, total: float) -> ModuleTime:
    """A module of a latency of 100 ns."""
    return ModuleTime("forward", path, None, path.count(".") + bool(path), own, total, total / 100, 1, None, own / 100)


def test_containers_that_add_nothing_are_joined_with_their_only_part():
    """``blocks.0`` takes time itself, ``stem`` only passes it on."""
    tree = [
        module("", 0, 90),
        module("stem", 0, 30),
        module("stem.conv", 30, 30),
        module("blocks", 0, 60),
        module("blocks.0", 20, 60),
        module("blocks.0.linear", 40, 40),
    ]
    shown, hidden = module_rows(tree)
    assert [(row.depth, row.label) for row in shown] == [
        (0, "the model"),
        (1, "stem.conv"),
        (1, "blocks.0"),
        (2, "linear"),
    ]
    assert hidden == (0, 0)


def test_the_smallest_modules_are_left_out():
    """Below a tenth of a percent."""
    shown, hidden = module_rows([module("", 0, 90), module("a", 89.99, 89.99), module("b", 0.01, 0.01)])
    assert [row.label for row in shown] == ["the model", "a"]
    assert hidden == (1, 0.0001)


def test_layout_changes_that_are_left_out_are_counted_with_their_time(done):
    """Those below a tenth of a percent, and what is more than twenty rows."""
    found = analyze(done.path)
    row = msgspec.structs.replace(found.layout[0], time_ns=10.0, share=0.01)
    small = msgspec.structs.replace(row, time_ns=0.5, share=0.0005)
    section = backends_section(msgspec.structs.replace(found, layout=[row] * 22 + [small]), [])
    [layout] = [table for table in tables(section) if table.columns[1].head == "between"]
    assert len(layout.rows) == 20
    assert "3 shorter ones omitted, 2.1 % of the latency." in sentences(section)


def test_texts():
    """Directories of the exporting machine are left out, long lists are cut."""
    assert source_text("/home/me/models/net.py:12") == "net.py:12"
    assert boundary_text([]) == "unknown"
    assert boundary_text(list("abcde")) == "a, b, c and 2 more"


def test_without_a_program_there_is_nothing_to_show(done):
    """Portable operators are listed by name; the reasons and the other tables are not filled with guesses."""
    trace = next(done.path.glob("variants/accelerated/*/trace.etdump.zst"))
    section = backends_section(analyze(trace, warmup=0), [])
    assert len(tables(section)) == 2
    assert {row.cells[-1].value for row in tables(section)[1].rows} == {"unknown"}


def test_a_runtime_without_delegates_is_not_said_to_delegate() -> None:
    """Nor that nothing ran outside of a delegate: without a program, too."""
    profile = Path(__file__).parents[1] / "data" / "onnxruntime" / "cnn-1.31.json"
    section = backends_section(analyze(profile, warmup=0), [])
    assert section.answer == "no delegates"
    assert not any("delegate" in text and "no delegates" not in text for text in sentences(section))
