"""Small executables that behave like ``executor_runner`` as far as opscope sees it.

They have its flags, its log, its outputs, its ETDump and its faults. Each is a script of its own with a line that
starts it, so the real process handling runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opscope.bundle.manifest import Target
from opscope.hosts.this_machine import ThisMachine
from traces import etdump

INFERENCE = """
    Program::load_method 900
    Method::execute 100000
      DELEGATE_CALL @0 80000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 15000
        native_call_add.out 14000
"""
FLAGS = ("model_path", "num_executions", "cpu_threads", "etdump_path", "method_name", "output_file", "data_path")
OUTPUT = "OutputX 0: tensor(sizes=[1, 4], [0.5, -1., 2., 3.])"

_MAIN = """\
#!{python}
import os, pathlib, signal, struct, sys, time
known, words = {known!r}, sys.argv[1:]
if words == ["--help"]:
    print("executor_runner:\\n  Flags from executor_runner.cpp:")
    for name in known:
        default = "model.etdump" if name == "etdump_path" else ""
        print(f"    -{{name}} (What it is for.) type: string default: \\"{{default}}\\"")
    sys.exit(1)
options = dict(zip((word.lstrip("-") for word in words[::2]), words[1::2]))
for name in options:
    if name not in known:
        print(f"ERROR: unknown command line flag '{{name}}'", file=sys.stderr)
        sys.exit(1)
runs = int(options["num_executions"])
cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pathlib.Path("seen").write_text(repr((words, cpus)))
def log(text):
    print(f"I 00:00:00.000123 executorch:executor_runner.cpp:400] {{text}}", flush=True)
def trace(content):
    pathlib.Path(options.get("etdump_path", "model.etdump")).write_bytes(content)
def whole():
    return pathlib.Path({traces!r}).joinpath(f"{{runs}}.etdump").read_bytes()
def start():
    log("Resetting threadpool with num threads = " + options["cpu_threads"])
    log("Model loaded in 3.25 ms.")
def infer():
    for number in range(runs):
        log(f"Iteration {{number + 1}} of {{runs}}: 0.{{number + 1}}00000 ms")
def close():
    log(f"Model executed successfully {{runs}} time(s) in {{0.1 * runs:f}} ms.")
    log("1 outputs: ")
def output(text={output!r}):
    print(text, flush=True)
def finish():
    output()
    trace(whole())
{script}
"""
GOOD = "start(); infer(); close(); finish()"


def write_runner(directory: Path, script: str = GOOD, known: tuple[str, ...] = FLAGS, name: str = "runner") -> Path:
    """A runner that does what the script says, with the functions above; it knows the flags that are given."""
    traces = directory / "prepared"
    traces.mkdir(parents=True, exist_ok=True)
    for runs in range(1, 6):
        (traces / f"{runs}.etdump").write_bytes(etdump(INFERENCE, repeat=runs))
    path = directory / name
    path.write_text(_MAIN.format(python=sys.executable, known=known, traces=str(traces), output=OUTPUT, script=script))
    path.chmod(0o755)
    return path


def this_machine(runner: Path) -> ThisMachine:
    """This machine as the host of a runner."""
    return ThisMachine(Target("runner", str(runner.resolve())))
