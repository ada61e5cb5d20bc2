"""``opscope preflight``: the answer on the first screen, JSON for programs, a hint and a code for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from ended import Command
from flat import flat, i32, u8
from opscope.analysis.preflight.parts import MatrixGroup, MatrixWork
from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
from opscope.api import features, preflight
from opscope.core.errors import ExportError, FeatureError
from opscope.program.partition.verdicts import Form, SmeSupport
from opscope.reports.document.terminal import terminal_document
from opscope.reports.preflight import headline, preflight_document
from programs import tiny_program, write_tiny_program
from pseudo_terminal import on_terminal
from terminal_text import text_of
from texts import NO_PROGRAM
from traces import etdump


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that calls a delegate without payload and an addition."""
    return write_tiny_program(tmp_path)


def test_the_answer_comes_first(command: Command, program: Path) -> None:
    """Tell path, share and partition, then what holds it back."""
    done = command("preflight", program)
    assert (done.returncode, done.stderr) == (0, "")
    path, _, answer = done.stdout.partition("forward: ")
    assert " ".join(path.split()).endswith("tiny.pte (pte)")
    assert answer.startswith("kernels unknown: delegates have no payload")
    assert "1 XNNPACK call, 1 delegate without payload; 1 portable operator" in done.stdout
    assert "next: use the program that the exporter wrote" in done.stdout
    command_line = "to measure it: "  # stays in one line, to be copied
    lines = [line for line in on_terminal("preflight", program).lines if not line.startswith(command_line)]
    assert max(map(len, lines)) <= 80


def test_json_obeys_its_schema(command: Command, program: Path, tmp_path: Path) -> None:
    """Print it alone on standard output, or write it to a file and print nothing."""
    found = json.loads(command("preflight", program, "--json", "-").stdout)
    jsonschema.validate(found, msgspec.json.schema(Preflight))
    assert (found["schema"], found["methods"][0]["partition"]["unread"]) == ("opscope.preflight/3", 1)
    target = tmp_path / "preflight.json"
    assert command("preflight", program, "--json", target, "--quiet") == (0, "", "")
    assert json.loads(target.read_text()) == found


def test_what_another_backend_runs_is_not_known(tmp_path: Path) -> None:
    """It is not a claim that there is nothing to accelerate."""
    path = tmp_path / "other.pte"
    path.write_bytes(write_tiny_program(tmp_path).read_bytes().replace(b"XnnpackBackend", b"AnotherBackend"))
    text = " ".join(rendered(preflight(path)).split())
    assert "forward: not inspected: 1 delegate of AnotherBackend" in text
    assert "no multiply-accumulates" not in text


@pytest.mark.runtime
def test_the_features_of_this_machine_are_told(command: Command, program: Path) -> None:
    """And the command that measures what they bring; for a named CPU its features, and no command for this one."""
    names = [group.name for group in features().groups if group.present]
    here, named = (
        " ".join(command("preflight", program, *more).stdout.split()) for more in ((), ("--cpu", "apple-m4"))
    )
    assert f"this CPU: {', '.join(names)}" in here
    assert "opscope profile" in here
    assert "apple-m4: sme2, sme, i8mm, dotprod, bf16, fp16" in named
    assert "opscope profile" not in named


def test_a_cpu_of_which_nothing_is_known_is_refused(command: Command, program: Path) -> None:
    """With the names that are like it."""
    done = command("preflight", program, "--cpu", "apple-m9")
    assert (done.returncode, done.stdout) == (FeatureError.exit_code, "")
    assert "did you mean apple-m4" in done.stderr


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        (None, 3, "no such file"),
        ("directory", 3, "a directory, not a program"),
        (b"", 4, "download it again"),
        (b"something else", 4, "give a .pte as written by"),
        (etdump("Method::execute 10", repeat=1), 4, "opscope analyze"),
        (tiny_program()[:60], 4, "model.pte"),
    ],
    ids=["nothing", "a directory", "empty", "text", "a trace", "damaged"],
)
def test_a_file_that_is_no_program(
    command: Command, content: bytes | str | None, code: int, told: str, tmp_path: Path
) -> None:
    """Say what is expected instead, with the code of what is wrong."""
    path = tmp_path if content == "directory" else tmp_path / "model.pte"
    if isinstance(content, bytes):
        path.write_bytes(content)
    done = command("preflight", path)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert (NO_PROGRAM in done.stderr) is (content in {b"", b"something else"} or told == "opscope analyze")


def test_names_in_a_program_stay_text(tmp_path: Path) -> None:
    """Keep control characters and markup of a hostile program off the terminal, and cut long names."""
    path = tmp_path / "model.pte"
    path.write_bytes(one_kernel("\x1b[31m[bold]" + "n" * 300, "aten::\x07" + "x" * 300))
    found = preflight(path)
    text = rendered(found)
    assert not {"\x1b", "\x07"} & set(text)
    assert "[bold]" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(headline(found.methods[0], found.cpu)) < 150


def one_kernel(method: str, operator: str) -> bytes:
    """A program with one method that calls a portable operator without arguments."""
    chain = {2: [{0: u8(1), 1: {0: i32(0)}}]}
    return flat({1: [{0: method, 5: [chain], 6: [{0: operator, 1: "out"}]}]}, b"ET12")


def rendered(found: Preflight) -> str:
    """The summary as a terminal of 80 columns gets it."""
    return text_of(terminal_document(preflight_document(found)))


@pytest.mark.runtime
def test_a_real_program(command: Command, toy_program: Path) -> None:
    """Find that the convolutions of toy_cnn can be accelerated, and why the layer norm and the mean stay portable."""
    done = command("preflight", toy_program)
    assert done.returncode == 0
    for words in ("22.4 MMAC on this CPU", "aten::native_layer_norm.out", "keepdim is False"):
        assert words in done.stdout
    (method,) = preflight(toy_program).methods
    assert (method.partition.calls, method.matrix.unknown, method.dynamic) == (3, 0, False)
    assert {group.operator for group in method.portable} == {"aten::native_layer_norm.out", "aten::mean.out"}
    assert method.matrix.share == pytest.approx(1.0)
    assert method.layout.transposes


def rows_of_matrix_work(method: MethodPreflight) -> list[str]:
    """The lines of a method's table of matrix work."""
    table = rendered(Preflight("x.pte", "0", None, "r", "p", [method])).partition("matrix work")[2].partition("\n\n")[0]
    return [" ".join(line.split()) for line in table.splitlines()[1:]]


def worked(program: Path) -> MethodPreflight:
    """A method with two groups of matrix work that differ in the reason alone."""
    group = MatrixGroup(
        verdict=SmeSupport.NOT_ELIGIBLE,
        form=Form.DEPTHWISE,
        types="f32",
        operators=2,
        macs=50,
        share=0.5,
        reason="one",
        source=None,
        tried=True,
        advice=None,
    )
    groups = [group, msgspec.structs.replace(group, reason="another")]
    matrix = MatrixWork(100, 0, 0.0, 0.0, 0, groups)
    return msgspec.structs.replace(preflight(program).methods[0], matrix=matrix)


def test_a_table_has_no_two_rows_alike(program: Path) -> None:
    """Make one row of groups that differ in what the table does not show."""
    method = worked(program)
    assert rows_of_matrix_work(method) == ["depthwise convolution f32 unknown 4 100.0 %"]
    assert headline(method, None) == "forward: 100 MAC, 100.0 % with unknown kernels"


@pytest.mark.runtime
def test_a_model_in_python_is_exported_first(command: Command, tmp_path: Path) -> None:
    """By its file, and by the function in it; the work is that of the layer, and no export is left."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(8, 4)\n"
        "    def forward(self, x): return self.layer(x)\n"
        "def build(): return Net(), (torch.ones(2, 8),)\n"
    )
    done = command("preflight", "net.py:build", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["path"] == "net.py:build, exported in fp32"
    assert sum(work["delegated"]["macs"] for work in result["methods"][0]["work"]) == 2 * 8 * 4
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["net.py"]


@pytest.mark.runtime
def test_the_log_of_an_export_that_fails_is_kept(command: Command, tmp_path: Path) -> None:
    """Where the message says, in the current directory."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x): return x if x.sum() > 0 else -x\n"
        "def build(): return Net(), (torch.ones(2),)\n"
    )
    done = command("preflight", "net.py", cwd=tmp_path)
    assert done.returncode == ExportError.exit_code
    (log,) = tmp_path.glob("*-export.log")
    assert log.name in done.stderr
    assert log.read_text()
