"""``opscope preflight``: the answer on the first screen, JSON for programs, a hint and a code for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from rich.console import Console

from flat import flat, i32, u8
from opscope.analysis.preflight.parts import MatrixGroup, MatrixWork
from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
from opscope.api import features, preflight
from opscope.program.partition.verdicts import Form, SmeSupport
from opscope.reports.document.terminal import terminal_document
from opscope.reports.preflight import headline, preflight_document
from programs import tiny_program, write_tiny_program
from pseudo_terminal import on_terminal
from texts import NO_PROGRAM
from traces import etdump


def opscope(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "opscope", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that calls a delegate without payload and an addition."""
    return write_tiny_program(tmp_path)


def test_the_answer_comes_first(program: Path) -> None:
    """Path, share, partition; then what holds it back."""
    done = opscope("preflight", program)
    assert done.returncode == 0
    assert done.stderr == ""
    path, _, answer = done.stdout.partition("forward: ")
    assert " ".join(path.split()).endswith("tiny.pte (pte)")
    assert answer.startswith("unknown what can run with SME and SME2: delegates have no payload")
    assert "1 XNNPACK call, 1 delegate without payload; 1 portable operator" in done.stdout
    assert "next: use the program that the exporter wrote" in done.stdout
    assert max(map(len, on_terminal("preflight", program).lines)) <= 80


def test_json_obeys_its_schema(program: Path, tmp_path: Path) -> None:
    """On standard output alone, or in a file, valid against the published schema."""
    done = opscope("preflight", program, "--json", "-")
    found = json.loads(done.stdout)
    jsonschema.validate(found, msgspec.json.schema(Preflight))
    assert found["schema"] == "opscope.preflight/2"
    assert found["methods"][0]["partition"]["unread"] == 1
    target = tmp_path / "preflight.json"
    quiet = opscope("preflight", program, "--json", target, "--quiet")
    assert quiet.stdout == ""
    assert json.loads(target.read_text()) == found


def test_what_another_backend_runs_is_not_known(tmp_path: Path) -> None:
    """It is not a claim that there is nothing to accelerate."""
    path = tmp_path / "other.pte"
    path.write_bytes(write_tiny_program(tmp_path).read_bytes().replace(b"XnnpackBackend", b"AnotherBackend"))
    text = " ".join(rendered(preflight(path)).split())
    assert "forward: unknown what can run with SME and SME2; not inspected: 1 delegate of AnotherBackend" in text
    assert "no multiply-accumulates" not in text


@pytest.mark.runtime
def test_a_machine_without_sme_is_told_what_it_has(program: Path) -> None:
    """Its own features, and the command that measures what they bring."""
    done, found = opscope("preflight", program), features()
    text = " ".join(done.stdout.split())
    names = [group.name for group in found.groups if group.present]
    if "sme" in names:
        assert "No SME here" not in text
    else:
        assert f"No SME here but {', '.join(names)}" in text
        assert "opscope profile" in text


def test_quiet_prints_nothing(program: Path) -> None:
    """Only the exit code tells."""
    done = opscope("preflight", program, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", [["preflight", "--help"], ["preflight", "{program}"]])
def test_it_loads_neither_torch_nor_executorch(command: list[str], program: Path) -> None:
    """A program is read without the packages that made it."""
    words = [word.format(program=program) for word in command]
    code = (
        f"import sys\nsys.argv = ['opscope', *{words!r}]\nfrom opscope.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'executorch', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_absent(tmp_path: Path) -> None:
    """Exit code 3, one error line, no traceback."""
    done = opscope("preflight", tmp_path / "no.pte")
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_directory(tmp_path: Path) -> None:
    """A bundle is not a program; the hint says where its program is."""
    done = opscope("preflight", tmp_path)
    assert done.returncode == 3
    assert "a directory, not a program" in done.stderr


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "download it again"),
        (b"something else", "give a .pte as written by"),
        (etdump("Method::execute 10", repeat=1), "opscope analyze"),
    ],
)
def test_a_file_that_is_no_program(content: bytes, hint: str, tmp_path: Path) -> None:
    """Exit code 4 and what is expected instead."""
    path = tmp_path / "model.pte"
    path.write_bytes(content)
    done = opscope("preflight", path)
    assert done.returncode == 4
    assert NO_PROGRAM in done.stderr
    assert hint in done.stderr


def test_a_damaged_program(tmp_path: Path) -> None:
    """Exit code 4 and the place of the damage."""
    path = tmp_path / "model.pte"
    path.write_bytes(tiny_program()[:60])
    done = opscope("preflight", path)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_names_in_a_program_stay_text(tmp_path: Path) -> None:
    """Control characters and markup of a hostile program do not reach the terminal, and long names are cut."""
    hostile = "\x1b[31m[bold]" + "n" * 300
    path = tmp_path / "model.pte"
    path.write_bytes(one_kernel(hostile, "aten::\x07" + "x" * 300))
    found = preflight(path)
    text = rendered(found)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(headline(found.methods[0])) < 150


def one_kernel(method: str, operator: str) -> bytes:
    """A program with one method that calls a portable operator without arguments."""
    chain = {2: [{0: u8(1), 1: {0: i32(0)}}]}
    return flat({1: [{0: method, 5: [chain], 6: [{0: operator, 1: "out"}]}]}, b"ET12")


def rendered(found: Preflight) -> str:
    """The summary as a terminal of 80 columns gets it."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=80, highlight=False).print(terminal_document(preflight_document(found)))
    return out.getvalue()


@pytest.mark.runtime
def test_a_real_program(toy_program: Path) -> None:
    """toy_cnn: its convolutions can be accelerated, the layer norm and the mean stay portable with their reasons."""
    done = opscope("preflight", toy_program)
    assert done.returncode == 0
    assert "can run with SME and SME2" in done.stdout
    assert "aten::native_layer_norm.out" in done.stdout
    assert "keepdim is False" in done.stdout
    (method,) = preflight(toy_program).methods
    assert method.partition.calls == 3
    assert {group.operator for group in method.portable} == {"aten::native_layer_norm.out", "aten::mean.out"}
    assert method.matrix.unknown == 0
    assert method.matrix.share == pytest.approx(1.0)
    assert method.layout.transposes
    assert not method.dynamic


def rows_of_matrix_work(method: MethodPreflight) -> list[str]:
    """The lines of a method's table of matrix work."""
    console = Console(width=100)
    with console.capture() as captured:
        console.print(terminal_document(preflight_document(Preflight("x.pte", "0", "r", "p", [method]))))
    table = captured.get().partition("matrix work")[2].partition("\n\n")[0]
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
    """Groups that differ in what the table does not show are one row."""
    assert rows_of_matrix_work(worked(program)) == ["depthwise convolution f32 no 4 100.0 %"]


def test_a_machine_without_sme_is_not_spoken_of_as_if_it_had_it(program: Path) -> None:
    """The answer itself says whose units these are."""
    assert headline(worked(program), elsewhere=True).endswith(
        "can run with SME and SME2, which this machine does not have"
    )
    assert headline(worked(program)).endswith("can run with SME and SME2")
