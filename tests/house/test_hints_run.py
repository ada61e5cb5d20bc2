"""Commands that hints and findings name with their arguments are run on real files."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from command_line import opscope
from installed import needs_executorch, needs_onnxruntime
from named_commands import NAMED, command_of, texts
from opscope.core.errors import EXIT_INTERNAL
from smoke_files import write_all

DATA = Path(__file__).parents[1] / "data"
FEW = "--rounds 1 --runs 2 --warmup 1 --no-ceilings --lock warn"
SLOTS = "INSTR_EVENT_0,INSTR_EVENT_1,LOCK_STALL,INSTR_VECTOR,NONE,NONE,NONE,NONE"


class HintRun(NamedTuple):
    """A command as hints name it, how a user types it here, and the exit codes with which it does what it promises.

    Attributes:
        named: the command with its placeholders, as the text of the hint begins.
        typed: the same with files of this test.
        codes: exit codes; a gate may find anything, and a feature may be absent on this CPU (6).
    """

    named: str
    typed: str
    codes: tuple[int, ...] = (0,)


RUNS = (
    HintRun("aie --slots ... --out DIR", f"aie aie.txt --slots {SLOTS} --out tiles1"),
    HintRun("aie TRACE --out DIR", "aie aie.json --out tiles2"),
    HintRun("aie TRACE writes", "aie aie.json --out tiles3"),
    HintRun("aie TRACE", "aie aie.json"),
    HintRun("aie WORDS --slots NAME", f"aie aie.txt --slots {SLOTS}"),
    HintRun("aie --out", "aie aie.json --out tiles4"),
    HintRun("analyze FILE", "analyze trace.etdump"),
    HintRun("check --new DATE", "check --new 2020-01-01 --store runs", (0, 1, 14, 20)),
    HintRun("check NEW --against OLD", "check bundle#accelerated --against bundle#baseline", (0, 1, 14, 20)),
    HintRun("count BUNDLE", "count measured"),
    HintRun("count MODEL --receipt FILE", "count cnn.onnx --receipt counts.json"),
    HintRun("doctor --features", "doctor --features"),
    HintRun("export MODEL --dtype TYPE", "export toy_cnn --dtype int8 --out export1"),
    HintRun("export MODEL --out DIRECTORY", "export toy_cnn --out export2"),
    HintRun("export {name}", "export toy_cnn --out export3"),
    HintRun("export {}", "export toy_cnn --out export4"),
    HintRun("tune MODEL", "tune cnn.onnx --minutes 0.1 --lock warn --out tuned1", (0, 20)),
    HintRun(
        "tune MODEL --try {}={}",
        "tune cnn.onnx --try graph_optimization_level=basic --minutes 0.1 --lock warn --out tuned2",
        (0, 20),
    ),
    HintRun("history --by commit", "history latency --store runs --by commit"),
    HintRun("init --model NAME", "init --model my_network"),
    HintRun("init --model writes", "init --model my_other_network"),
    HintRun("init --out FILE", "init --out experiments.toml"),
    HintRun("kernels BUNDLE --count", "kernels bundle --count", (0, 2, 5, 6)),
    HintRun("kernels PATH", "kernels bundle"),
    HintRun("preflight MODEL.tflite", "preflight tiny_fp32.tflite"),
    HintRun("profile --ablate none", f"profile cnn.onnx --ablate none {FEW} --out profile1"),
    HintRun("profile --ablate sme", f"profile cnn.onnx --ablate sme {FEW} --out profile2", (0, 6)),
    HintRun("profile --target {}", f"profile cnn.onnx --target local {FEW} --out profile3", (0, 20)),
    HintRun("profile FILE.py", f"profile my_net.py:build --ablate none {FEW} --out profile4"),
    HintRun("profile FILE", f"profile cnn.onnx --ablate none {FEW} --out profile5"),
    HintRun("profile {name}", f"profile toy_cnn --ablate none {FEW} --out profile6"),
    HintRun(
        "report DIR --baseline NAME --candidate NAME", "report kit --baseline alpha --candidate beta --out report1"
    ),
    HintRun("report {bundle}", "report bundle"),
    HintRun("run CONFIG --analysis-only", "run few.toml --analysis-only"),
    HintRun("run FILE --resume", "run few.toml --resume"),
    HintRun("skills show {}", "skills show layer-norm"),
    HintRun("store add --device", "store add other --device pixel --store runs"),
    HintRun("store add PATH...", "store add bundle --store runs"),
    HintRun("store query --views VIEW", "store query --views operators --store runs"),
    HintRun("store query --views", "store query --views --store runs"),
    HintRun("store query 'SELECT ...'", "store query 'SELECT count(*) FROM latency' --store runs"),
)


def commands_with_arguments() -> Iterator[tuple[str, str]]:
    """Yield where a text names a command with arguments or options, and the text from its first word on."""
    for where, text in texts():
        for match in NAMED.finditer(text):
            command = command_of(match["words"])
            rest = f"{match['words']}{match['rest']}"
            if command and re.search(r"(?:^| )(?:--[a-z-]+ \S|[A-Z]{3,}|\{)", rest.removeprefix(command)):
                yield where, rest


def test_every_command_of_a_hint_is_in_the_table() -> None:
    """Of messages, not of help: docstrings of commands are examples, which tests of documents run."""
    unknown = {
        where: text
        for where, text in commands_with_arguments()
        if not where.startswith("cli/") and not any(text.startswith(run.named) for run in RUNS)
    }
    assert unknown == {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the commands name: models, traces, bundles, a kit run, a store, a run of a file."""
    directory = tmp_path_factory.mktemp("hints")
    write_all(directory)
    for model in ("onnx/cnn.onnx", "litert/tiny_fp32.tflite"):
        shutil.copy(DATA / model, directory)
    (directory / "my_net.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Linear(8, 4), (torch.ones(2, 8),)\n", encoding="utf-8"
    )
    (directory / "few.toml").write_text(
        'model = "cnn.onnx"\nrounds = 1\nruns = 2\nablate = ["none"]\nceilings = false\n', encoding="utf-8"
    )
    for command in (
        f"profile cnn.onnx --ablate none {FEW} --out measured",
        "store add bundle --store runs",
        "run few.toml",
    ):
        done = opscope(*shlex.split(command), cwd=directory)
        assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.nightly  # runs models, exports some, and counts
@needs_executorch
@needs_onnxruntime
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Valgrind of Linux")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.named)
def test_what_a_hint_names_can_be_typed(run: HintRun, place: Path) -> None:
    """It ends with a code of its promise, and without a traceback."""
    done = opscope(*shlex.split(run.typed), cwd=place)
    assert done.returncode in run.codes, f"{run.typed}: {done.returncode}\n{done.stderr}"
    assert done.returncode != EXIT_INTERNAL
    assert "Traceback" not in done.stderr
