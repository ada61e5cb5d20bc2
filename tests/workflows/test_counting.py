"""Work counted under Valgrind: exact, by operator, whatever the process is started with."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from command_line import opscope
from exports import program
from installed import needs_litert, needs_onnxruntime
from opscope.analysis.gate.decision import Outcome
from opscope.analysis.work.gate import work_decision
from opscope.analysis.work.work import READ_NS, CountedReads, Work
from opscope.api import content, count, validate
from opscope.core.errors import (
    FeatureError,
    InvalidBundleError,
    MissingDependencyError,
    TraceFormatError,
    UsageError,
)
from opscope.core.table import EventTable
from opscope.core.table.places import operator_key
from opscope.readers.registry import read_trace
from opscope.reports.content.content import operator_rows

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "data" / "versions" / "executorch-1.5.1.pte"
CPU = Path("/proc/cpuinfo")
HAS_AVX512 = CPU.exists() and "avx512f" in CPU.read_text(encoding="utf-8").split()
SCHEMAS = ROOT / "docs" / "reference" / "schemas"
pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="Valgrind is not installed"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions are counted on x86-64"),
    pytest.mark.skipif(find_spec("iced_x86") is None, reason="iced-x86 is not installed"),
]


def counted(*words: str, cwd: Path, program: Path = PROGRAM, **variables: str) -> Work:
    """What the command writes."""
    command = [sys.executable, "-m", "opscope", "count", str(program), "--json", "-", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr
    check_schema(done.stdout, "work")
    return msgspec.json.decode(done.stdout, type=Work)


def check_schema(text: str, name: str) -> Any:
    """The document, once it obeys the published schema of this name."""
    document = json.loads(text)
    jsonschema.validate(document, json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")))
    return document


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Of a small program, with all features and without AVX2."""
    return counted("--ablate", "avx2", cwd=tmp_path_factory.mktemp("counting"))


def test_what_is_counted_adds_up(work: Work) -> None:
    """Add classes up to instructions; lanes hold at least what the model needs; each operator stands once.

    Without AVX2 no fused multiply-add is left, and more instructions do the same work.
    """
    assert [one.name.split(" ")[0] for one in work.operators] == [
        *("Transpose", "Convolution", "Mean", "Transpose", "Static", "native_call_native_layer_norm.out", "Fully"),
    ]
    for one in work.operators:
        assert sum(one.classes.values()) == one.instructions > 0
        assert "unknown" not in one.classes
        assert one.bytes_loaded > one.bytes_stored > 0
        assert one.mac_capacity >= (one.macs or 0)
    convolution = work.operators[1]
    assert (convolution.macs, convolution.mac_capacity) == (55_296, 8 * convolution.classes["multiply_add"])
    assert work.rest.before > work.rest.after > 0
    (off,) = work.others
    assert (off.off, sum(one.mac_capacity for one in off.operators)) == (["avx2"], 0)
    assert off.instructions > work.instructions
    assert [one.macs for one in off.operators] == [one.macs for one in work.operators]


def test_methods_are_counted_as_each_alone(tmp_path: Path) -> None:
    """However often they are called, and whatever operators share a place in two of them."""
    methods, kept = ROOT / "tests" / "data" / "two_methods.pte", {}
    for name in ("prefill", "decode"):
        alone = counted("--methods", name, cwd=tmp_path, program=methods)
        kept |= {(name, one.instruction, one.position): (one.instructions, one.macs) for one in alone.operators}
    together = counted("--methods", "decode:3,prefill", cwd=tmp_path, program=methods)
    assert {(one.method, one.instruction, one.position) for one in together.operators} == kept.keys()
    for one in together.operators:
        instructions, macs = kept[one.method, one.instruction, one.position]
        assert one.instructions == pytest.approx(instructions, rel=0.02, abs=500)
        assert one.macs == macs


def test_a_planted_percent_of_work_is_named(work: Work) -> None:
    """In each operator in turn; the candidate is let through below the limit, and what is gone or new is told."""
    for place, own in enumerate(work.operators):
        more = msgspec.structs.replace(own, instructions=own.instructions + max(1, own.instructions // 100))
        changed = [*work.operators[:place], more, *work.operators[place + 1 :]]
        found = work_decision(work, msgspec.structs.replace(work, operators=changed))
        assert found.outcome is Outcome.REGRESSION
        assert [one.name for one in found.evidence.changed] == [own.name]
        assert found.evidence.equal == len(work.operators) - 1
        assert own.name in found.criteria[0].reason
        assert work_decision(work, msgspec.structs.replace(work, operators=changed), 0.02).let_through
    less = msgspec.structs.replace(work, operators=work.operators[1:])
    found = work_decision(work, less)
    assert (found.outcome, found.evidence.changed[0].candidate) == (Outcome.PASSED, None)
    found = work_decision(less, work)
    assert (found.outcome, found.evidence.changed[0].baseline) == (Outcome.REGRESSION, None)


def test_the_gate_on_two_programs(tmp_path: Path) -> None:
    """Find a program equal to itself in every operator; what has no meaning beside it is refused."""
    words = ("check", PROGRAM, "--against", PROGRAM, "--count")
    done = opscope(*words, "--json", "check.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "7 of 7 operators equal to the instruction" in done.stdout
    found = check_schema((tmp_path / "check.json").read_text(), "check")
    assert (found["evidence"]["kind"], found["outcome"], found["criteria"][0]["measured"]) == ("work", "passed", 0)
    refused = opscope(*words, "--rounds", "5", cwd=tmp_path)
    assert (refused.returncode, "--rounds" in refused.stderr) == (2, True)


@pytest.mark.nightly  # twenty runs under Valgrind
def test_twenty_pairs_differ_in_no_operator(work: Work, tmp_path: Path) -> None:
    """Count alike with other environments, lengths of paths and directories, beside two busy processes.

    Operators are equal to the instruction, class and byte.
    """
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for number in range(20):
            place = tmp_path / ("d" * (1 + 11 * number))
            place.mkdir()
            found = counted(cwd=place, OMP_NUM_THREADS="2", **{f"VARIABLE_{number}": "v" * (number * 97)})
            assert (found.operators, found.sha256) == (work.operators, work.sha256)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_the_screen(tmp_path: Path) -> None:
    """Show the answer, classes, operators, and that it is no time."""
    done = opscope("count", PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("instructions per inference in 7 operators", "vector multiply-add", "lanes filled", "work, not time"):
        assert words in done.stdout
    assert not [unit for unit in (" ms", "µs") if unit in done.stdout]


def test_without_valgrind_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its exit code, too."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependencyError) as caught:
        count(PROGRAM)
    assert "apt install valgrind" in (caught.value.hint or "")


def test_a_trace_of_a_clock_is_not_counted() -> None:
    """Its times are no numbers of reads."""
    table = EventTable.concat([read_trace(ROOT / "tests" / "data" / "toy_cnn.etdump").table])
    with pytest.raises(TraceFormatError, match="counted clock"):
        CountedReads(table)
    assert READ_NS == 1_000_000


@pytest.mark.parametrize(
    ("file", "feature", "said"),
    [
        ("versions/executorch-1.5.1.pte", "avx512", "avx512 is off in every count" if HAS_AVX512 else "avx512"),
        pytest.param(
            *("onnx/cnn.onnx", "avx2", "switched off by trap, which does not work under Valgrind"),
            marks=needs_onnxruntime,
        ),
        pytest.param(
            *("litert/partial.tflite", "avx2", "which does not work under Valgrind"),
            marks=needs_litert,
        ),
    ],
    ids=["not shown by Valgrind", "ONNX Runtime", "LiteRT"],
)
def test_what_cannot_be_switched_off_in_a_count_is_refused(file: str, feature: str, said: str) -> None:
    """Tell what Valgrind does not show, or does not load, from what the CPU does not have."""
    with pytest.raises(FeatureError, match=said):
        count(ROOT / "tests" / "data" / file, ablate=[feature])


@needs_litert
@pytest.mark.parametrize(("name", "operators"), [("tiny_fp32", 6), ("partial", 4)])
def test_a_litert_model_is_counted(name: str, operators: int) -> None:
    """Every product holds the multiplications that it needs, also between operators of LiteRT's own; twice the same."""
    program = ROOT / "tests" / "data" / "litert" / f"{name}.tflite"
    found = count(program)
    assert len(found.operators) == operators
    products = [one for one in found.operators if one.macs]
    assert products
    assert all(one.mac_capacity >= (one.macs or 0) for one in products)
    assert all(not one.mac_capacity for one in found.operators if not one.macs)
    assert count(program).operators == found.operators


def test_a_receipt_is_verified(tmp_path: Path) -> None:
    """In another directory; a figure that was changed is found without a run, another program by counting it."""
    receipt, changed = tmp_path / "work.receipt", tmp_path / "changed.receipt"
    counted("--receipt", str(receipt), cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert verified(PROGRAM, receipt, elsewhere) == (0, f"{PROGRAM}: every operator matches {receipt}\n")
    found = check_schema(receipt.read_text(), "work-receipt")
    assert {"libexecutorch_backend_xnnpack.so", "libc.so.6"} <= found["work"]["files"].keys()
    found["work"]["operators"][-1]["bytes_loaded"] += 1
    changed.write_text(json.dumps(found))
    code, told = verified(PROGRAM, changed, tmp_path)
    assert (code, "changed.receipt: " in told) == (4, True)
    code, told = verified(ROOT / "tests" / "data" / "tflite" / "cnn.tflite", receipt, tmp_path)
    assert (code, "program: " in told) == (1, True)


@pytest.mark.nightly  # downloads a package
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root mounts another libc")
def test_another_libc_is_named_where_operators_call_it(tmp_path: Path) -> None:
    """That of the next Debian: kernels of XNNPACK execute the same, what calls the library some instructions more."""
    unpack = f". {ROOT}/.ci/debian.sh; unpack_debian alone trixie amd64 {tmp_path}/trixie libc6"
    libraries = Path("/usr/lib/x86_64-linux-gnu")
    if not libraries.exists() or subprocess.run(["bash", "-c", unpack], check=False).returncode:
        pytest.skip("not Debian, or its packages cannot be downloaded")
    own = tmp_path / "libraries"
    shutil.copytree(libraries, own, symlinks=True)
    for library in (tmp_path / "trixie" / libraries.relative_to("/")).glob("*.so*"):
        shutil.copy2(library, own / library.name)
    if (own / "libc.so.6").read_bytes() == (libraries / "libc.so.6").read_bytes():
        pytest.skip("this Debian has that library already")
    receipt, model = tmp_path / "work.receipt", program("toy_cnn-fp32")
    counted("--receipt", str(receipt), cwd=tmp_path, program=model)
    words = [sys.executable, "-m", "opscope", "count", str(model), "--verify", str(receipt)]
    elsewhere = f"mount --bind {own} {libraries} && exec {shlex.join(words)}"
    command = ["unshare", "-m", "bash", "-c", elsewhere]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "native_call_mean.out: instructions" in done.stderr
    assert "(and " not in done.stderr, "more than what calls the library differs"
    assert re.search(r"files that differ from the receipt's may be the cause: .*libc\.so\.6", done.stderr)


def verified(program: Path, receipt: Path, cwd: Path) -> tuple[int, str]:
    """Exit code of the second count, and what it says."""
    done = opscope("count", program, "--verify", receipt, cwd=cwd)
    return done.returncode, done.stdout + done.stderr


def test_a_bundle_shows_what_was_counted_beside_the_times(tmp_path: Path) -> None:
    """In each table of operators, told from times; kept with a hash, so that another record is not shown."""
    bundle = tmp_path / "out"
    words = ["--rounds", "2", "--runs", "6", "--warmup", "1", "--no-ceilings", "--ablate", "none", "--quiet"]
    for command in (["profile", PROGRAM, *words, "--out", bundle], ["count", bundle, "--quiet"]):
        assert opscope(*command).returncode == 0
    alone = {operator_key(one): one.instructions for one in count(PROGRAM).operators}
    found = content(bundle)
    rows = {operator_key(row.operator): row.instructions for row in operator_rows(found)}
    assert {key: own for key, own in rows.items() if key} == alone
    told = (bundle / "report.md").read_text(encoding="utf-8")
    assert "Instructions are exact counts, not time: Valgrind" in told
    assert (bundle / "report.html").read_text(encoding="utf-8").count(">instructions</th>") == 2
    assert validate(bundle).valid
    record = bundle / "evidence" / "accelerated" / "work.json"
    record.write_text(record.read_text(encoding="utf-8").replace('"instructions": ', '"instructions": 1'))
    assert not validate(bundle).valid
    with pytest.raises(InvalidBundleError, match="not the file that was measured"):
        content(bundle)
    with pytest.raises(UsageError, match="a bundle records its own inputs"):
        count(bundle, inputs=["5"])


@pytest.mark.nightly  # measures and counts two programs
def test_two_verdicts_stand_side_by_side(tmp_path: Path) -> None:
    """Work is exact, time has an interval or too few rounds; the schema knows both."""
    how = ("--rounds", "2", "--inconclusive", "pass", "--out", tmp_path / "out", "--json", "-")
    done = opscope("check", PROGRAM, "--against", PROGRAM, "--count", "--time", *how, cwd=tmp_path)
    found = check_schema(done.stdout, "check")
    assert (found["criteria"][0]["name"], found["criteria"][0]["quantity"]) == ("work", "work")
    assert found["criteria"][1]["quantity"] == "slowdown"
    assert (found["criteria"][0]["measured"], found["evidence"]["work"]["changed"]) == (0.0, [])
    assert found["evidence"]["time"]["end_to_end"]["baseline_processes"] == 2


@needs_onnxruntime
@pytest.mark.parametrize(
    ("name", "operators", "products"), [("cnn", 9, 5), ("quantised", 4, 1), ("branch", 3, 0), ("external", 1, 1)]
)
def test_an_onnx_model_is_counted(name: str, operators: int, products: int, tmp_path: Path) -> None:
    """Every product executes the multiplications that it needs; those in blocks of channels execute no others."""
    program = ROOT / "tests" / "data" / "onnx" / f"{name}.onnx"
    found = counted(program=program, cwd=tmp_path)
    assert len(found.operators) == operators
    own = [one for one in found.operators if one.macs]
    assert len(own) == products
    assert all(one.mac_capacity >= (one.macs or 0) - one.padding_macs > 0 for one in own)
    blocked = [one for one in own if one.name.startswith("Conv: ")]
    assert all(one.mac_capacity == (one.macs or 0) - one.padding_macs for one in blocked)
    assert not any(one.mac_capacity for one in found.operators if not one.macs and "Exp" not in one.name)
    # The profiler writes the shapes of each node's tensors, by more than 20,000 instructions.
    assert min(one.instructions for one in found.operators) < 10_000
    assert found.rest.framework > 20_000 * operators
    if name == "cnn":
        elsewhere = tmp_path / ("long" * 40)
        elsewhere.mkdir()
        again = counted(program=program, cwd=elsewhere, A_LONG_VARIABLE="x" * 3000)
        assert again.operators == found.operators


def test_weights_of_a_token_are_what_is_loaded(tmp_path: Path) -> None:
    """Of products of one row that differ in size: what the larger ones load more is their further weights.

    Kernels of AVX2 have 16 columns, for which they load each number of the input once: a sixteenth more.
    """
    program = ROOT / "tests" / "data" / "language" / "litert-fp32.tflite"
    found = counted("--methods", "decode", cwd=tmp_path, program=program)
    products = [one for one in found.operators if one.name.startswith("Fully Connected") and one.macs]
    loads = {one.macs: one.bytes_loaded for one in products}
    assert len(loads) > 1
    least, most = min(loads), max(loads)
    assert (loads[most] - loads[least]) / (4 * (most - least)) == pytest.approx(1 + 1 / 16, rel=0.02)
