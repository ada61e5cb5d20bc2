"""Every command once, as a user with the core alone types it: the exit code, a word of the answer, and no traceback.

``python tests/support/smoke.py FILES``, where FILES is a directory that ``smoke_files.py`` wrote; it is copied
and not changed. Needs an installed opscope and nothing else, neither pytest nor a runtime; warnings are errors. Prints
a row for the table of ``.ci/pythons``: the version of Python and of opscope, commands, how many went wrong, seconds.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

NO_RUNTIME = "[executorch]'"
NO_STORE = "[store]'"
MISSING, ABSENT = 5, 3
TIMEOUT = 600


class Step(NamedTuple):
    """A command line and what shall come of it.

    Attributes:
        line: words behind ``opscope``; files are those of FILES, and what earlier steps wrote.
        says: text that it prints.
        exits: exit codes that are right.
    """

    line: str
    says: str = ""
    exits: tuple[int, ...] = (0,)


STEPS = (
    Step("--version", "opscope "),
    Step("--help", "Usage: "),
    Step("models", "mobilenet_v3_small"),
    Step("doctor", "opscope", (0, 12)),
    Step("doctor --features", NO_RUNTIME, (MISSING,)),
    Step("profile tiny.pte --out never", NO_RUNTIME, (MISSING,)),
    Step("profile toy_cnn --out never", NO_RUNTIME, (MISSING,)),
    Step("export toy_cnn --out never", NO_RUNTIME, (MISSING,)),
    Step("init --out experiments.toml", "experiments.toml"),
    Step("run experiments.toml --out never", NO_RUNTIME, (MISSING,)),
    Step("init --model my_network", "my_network"),
    Step("analyze trace.etdump", "Convolution"),
    Step("analyze trace.etdump --json -", '"operators"'),
    Step("analyze bundle", "Convolution"),
    Step("analyze kit", "Convolution"),
    Step("analyze tiny.pte", "XnnpackBackend"),
    Step("analyze two_methods.pte", "FullyConnected"),
    Step("analyze kernels.log", "gemm"),
    Step("compare bundle#baseline bundle#accelerated", "faster"),
    Step("compare bundle other --json -", '"verdict"'),
    Step("compare kit#alpha kit#beta", "beta"),
    Step("check bundle --against other --threshold 50% --markdown check.md --junit check.xml", "passed"),
    Step("check bundle#baseline --against bundle#accelerated --threshold 5%", "slower", (1,)),
    Step("report bundle", "report.html"),
    Step("report kit --out kit-report", "report.html"),
    Step("report bundle other --out platforms", "combined.html"),
    Step("validate bundle --markdown validation.md --json validation.json", "passed"),
    Step("preflight two_methods.pte", "matrix product"),
    Step("preflight tiny.pte --json -", '"methods"'),
    Step("count tiny.pte", "", (0, 5)),
    Step("tune tiny.pte --out never", NO_RUNTIME, (MISSING,)),
    Step("bisect tiny.pte --good 1.5.1", "", (2,)),
    Step("kernels bundle", "executed"),
    Step("kernels kernels.log --md kernels.md --kit-csv lists", "gemm"),
    Step("aie aie.json --out tiles", "core"),
    Step("aie aie.txt --slots INSTR_EVENT_0,INSTR_EVENT_1,LOCK_STALL,INSTR_VECTOR,NONE,NONE,NONE,NONE", "core"),
    Step("convert trace.etdump --to csv --out trace.csv", "trace.csv"),
    Step("convert trace.etdump --to parquet --out trace.parquet", "trace.parquet"),
    Step("analyze trace.csv", "Convolution"),
    Step("analyze trace.parquet", "Convolution"),
    Step("convert trace.etdump --to perfetto --out trace.pftrace", "trace.pftrace"),
    Step("convert bundle#baseline --to speedscope --out flame.json", "flame.json"),
    Step("convert bundle --to github-benchmark --out -", "latency"),
    Step("convert bundle#baseline --to model-explorer --out graphs", "graphs"),
    Step("convert two_methods.pte --to model-explorer --out methods", "methods"),
    Step("convert bundle --to tables --out tables", "tables"),
    Step("convert trace.etdump --to kit-csv --out kit.csv", "kit.csv"),
    Step("skills list", "profile"),
    Step("skills install skills", "SKILL.md"),
    Step("skills show layer-norm", "LayerNorm"),
    Step("mcp --root nowhere", "no such directory", (3,)),
    Step("store query --views operators", "time_ns"),
    Step("store add bundle other --store runs", NO_STORE, (MISSING,)),
    Step("store list --store runs", "there is no store", (ABSENT,)),
    Step("store remove ffffffff --store runs", "there is no store", (ABSENT,)),
    Step("store query 'SELECT 1' --store runs", "there is no store", (ABSENT,)),
    Step("store report --store runs --out fleet", "there is no store", (ABSENT,)),
    Step("history latency --store runs", "there is no store", (ABSENT,)),
    Step("check bundle --against store:last=5 --store runs", "there is no store", (ABSENT,)),
    Step("analyze nothing.etdump", "no such file", (3,)),
    Step("analyze experiments.toml", "hint", (4,)),
    Step("analyse trace.etdump", "No such command", (2,)),
)


def commands() -> Iterator[tuple[str, ...]]:
    """Words of every command and of every group of commands."""
    import typer

    from opscope.cli.main import app

    def visit(command: object, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from visit(inner, (*words, name))

    return visit(typer.main.get_command(app), ())


def unhelpful() -> dict[str, str]:
    """Commands whose help cannot be shown, and why; all in this process, since each is run by itself in a step."""
    from typer.testing import CliRunner

    from opscope.cli.main import app

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in map(list, commands()):
            done = CliRunner().invoke(app, [*words, "--help"])
            if done.exit_code or "Usage: " not in done.output:
                found[shlex.join([*words, "--help"])] = f"{done.exception}:\n{done.output}"
    return found


def failure(step: Step, directory: Path) -> str:
    """What is wrong with a step, empty when all is right."""
    command = [sys.executable, "-m", "opscope", *shlex.split(step.line)]
    environment = {**os.environ, "PYTHONWARNINGS": "error", "OPSCOPE_RAISE": "1", "COLUMNS": "200"}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {TIMEOUT} s"
    said = done.stdout + done.stderr
    if "Traceback (most recent call last)" in said:
        return f"a traceback:\n{said}"
    if done.returncode not in step.exits:
        return f"exit code {done.returncode}, not {' or '.join(map(str, step.exits))}:\n{said}"
    return "" if step.says in said else f"{step.says!r} is not in what it says:\n{said}"


def wrong(steps: tuple[Step, ...], files: Path) -> dict[str, str]:
    """Run all steps in a copy of the files; what is wrong, by command line."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(shutil.copytree(files, Path(temporary, "files")))
        return {step.line: problem for step in steps if (problem := failure(step, directory))}


def main(files: Path) -> int:
    """Tell what went wrong on standard error, and print the row."""
    began, count = time.monotonic(), len(STEPS) + len(list(commands()))
    found = wrong(STEPS, files) | unhelpful()
    for line, problem in found.items():
        sys.stderr.write(f"opscope {line}: {problem}\n")
    seconds = time.monotonic() - began
    row = f"{platform.python_version():9} {version('opscope'):7}  {count:8}  {len(found):6}  {seconds:7.0f}\n"
    sys.stdout.write(row)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
