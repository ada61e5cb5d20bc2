"""What ``executor_runner`` prints: its own log lines, then the outputs.

Lines of the log, as ExecuTorch's executor_runner.cpp words them, the second one its threadpool.cpp; older ones lack the
third and the fourth:

    Resetting threadpool with num threads = 1
    Resetting threadpool to 1 threads.
    Model loaded in 3.2 ms.
    Iteration 1 of 2: 1.5 ms
    Model executed successfully 2 time(s) in 3.0 ms.
    OutputX 0: tensor(sizes=[1, 10], [0.5, nan, ...])
"""

from __future__ import annotations

import re

import msgspec

DEFAULT_TRACE = "model.etdump"
"""Where executor_runner writes its ETDump when it is not told."""
_NS_PER_MS = 1_000_000
_MS = r"([0-9.]+(?:e[-+]?[0-9]+)?) ms"
_THREADS = re.compile(r"Resetting threadpool (?:with num threads = |to )(\d+)")
_LOADED = re.compile(rf"Model loaded in {_MS}")
_ITERATION = re.compile(rf"Iteration (\d+) of \d+: {_MS}")
_CLOSING = re.compile(rf"Model executed successfully (\d+) time\(s\) in {_MS}")
_UNKNOWN_FLAG = re.compile(r"unknown command line flag '(\w+)'")
_FLAG = re.compile(r"^\s+--?(\w+)\b", re.MULTILINE)
_OUTPUTS = re.compile(r"^Output(?:X (?P<number>\d+)\b|\[\d+\])", re.MULTILINE)
_LOG_LINE = re.compile(r"^[A-Z] \d+:\d+:\d+\.\d+ executorch:.*$", re.MULTILINE)
_SIZES = re.compile(r"^OutputX (\d+): tensor\(sizes=\[([\d,\s]*)\]", re.MULTILINE)
_NAN = re.compile(r"(?<![\w.])[-+]?nan\b(?!\w)", re.IGNORECASE)


class RunnerLog(msgspec.Struct, frozen=True):
    """A runner's log; what it does not say is null or empty."""

    threads: int | None  # size of the thread pool that it set
    load_ns: int | None  # loading the program and its method
    calls_ns: list[int]  # duration of every call, when it prints each one
    executed: int | None  # number of calls of its closing line
    total_ns: int | None  # their total, of the same line
    shapes: dict[int, list[int]]  # sizes of every output tensor, by the output's number
    nan_outputs: int  # not-a-number values among the printed outputs, of which it prints the first and last hundred
    unknown_flag: str | None  # a flag that it does not know


def parse_log(text: str) -> RunnerLog:
    """What a runner's log says."""
    loaded, closing, flag = (pattern.search(text) for pattern in (_LOADED, _CLOSING, _UNKNOWN_FLAG))
    threads = _THREADS.findall(text)
    first = _OUTPUTS.search(text)
    printed = _LOG_LINE.sub("", text[first.start() :]) if first else ""
    return RunnerLog(
        threads=int(threads[-1]) if threads else None,
        load_ns=_ns(loaded[1]) if loaded else None,
        calls_ns=[_ns(match[2]) for match in _ITERATION.finditer(text)],
        executed=int(closing[1]) if closing else None,
        total_ns=_ns(closing[2]) if closing else None,
        shapes={
            int(number): [int(size) for size in sizes.split(",") if size.strip()]
            for number, sizes in _SIZES.findall(printed)
        },
        nan_outputs=len(_NAN.findall(printed)),
        unknown_flag=flag[1] if flag else None,
    )


class RunnerHelp(msgspec.Struct, frozen=True):
    """What a runner's ``--help`` says."""

    flags: frozenset[str] | None  # that it lists; null when it is not the help of an executor_runner
    always_traces: bool | None  # whether each of its runs is traced; null when that is not known


def parse_help(text: str) -> RunnerHelp:
    """What a runner's ``--help`` says.

    executor_runner has ``--etdump_path`` when event tracing is built in, with a file as its default, and not otherwise.
    """
    flags = frozenset(_FLAG.findall(text))
    if not {"model_path", "num_executions"} <= flags:
        return RunnerHelp(None, None)
    if "etdump_path" not in flags:
        return RunnerHelp(flags, always_traces=False)
    return RunnerHelp(flags, always_traces=True if DEFAULT_TRACE in text else None)


def _ns(milliseconds: str) -> int:
    return round(float(milliseconds) * _NS_PER_MS)
