"""Look for what opscope must not do: ``python -m fuzz [NAME...] [--seconds N] [--seed N]``, behind ``make fuzz``.

A name is a target of ``fuzz/targets.py`` (a reader), one of ``fuzz/commands.py`` (a command and what is damaged, such
as ``analyze-etdump``), MODULE:OBJECT, or a group of the list below; without names all groups run. A target has the
seconds to itself; the targets of ``commands`` share them. Findings of targets are made smaller and written to
``fuzz/findings``, others are printed; the exit code is then 1. The seed decides what is tried, the time how much.
``NAME --input FILE`` reads one file again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from fuzz import commands, failing_calls, prefixes, store
from fuzz.run import FINDINGS, describe_report, fuzz_target, read_again
from fuzz.targets import target_named, targets
from fuzz.worker import Effort

READERS, COMMANDS = "readers", "commands"
CHECKS = {"store": store.fuzz_store, "prefixes": prefixes.try_prefixes, "failing-calls": failing_calls.try_calls}
GROUPS = {
    READERS: "every reader, with damaged files",
    COMMANDS: "whole commands, with damaged traces, programs and files of bundles",
    "store": "a store, with commands in any order",
    "prefixes": "every prefix of every fixture of every reader",
    "failing-calls": "commands whose n-th write, fsync, rename or mmap fails (Linux)",
}


def main(arguments: list[str] | None = None) -> int:
    """Fuzz what is chosen; return 1 when something was found."""
    options = _parse_options(arguments)
    if options.input:
        return max(read_again(name, options.input.resolve()) for name in options.names)
    found = 0
    for name in options.names or GROUPS:
        if name in CHECKS:
            found += CHECKS[name](options.seconds, options.seed)
            continue
        members = {READERS: targets(), COMMANDS: commands.TARGETS}.get(name, [name])
        seconds = options.seconds / len(members) if name == COMMANDS else options.seconds
        for member in members:
            found += _fuzz_one(member, seconds, options)
    return int(found > 0)


def _parse_options(arguments: list[str] | None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:14} {text}" for name, text in GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description="Look for what opscope must not do.",
        epilog=f"groups:\n{listed}\n\nreaders: {', '.join(targets())}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="groups and targets; none: all groups")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each of them")
    parser.add_argument("--least", type=int, default=1, help="inputs for each target, however long they take")
    parser.add_argument("--seed", type=int, default=1, help="decides what is tried")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="directory for failing inputs")
    parser.add_argument("--keep", action="store_true", help="write the inputs worth keeping into fuzz/corpus")
    parser.add_argument("--input", type=Path, help="read this file once with the named target and say what comes of it")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in GROUPS:
            target_named(name)  # refuses what is not there
    if options.input and (not options.names or set(options.names) & set(GROUPS)):
        parser.error("--input needs the name of a target")
    return options


def _fuzz_one(name: str, seconds: float, options: argparse.Namespace) -> int:
    """Fuzz a target, print what was done, and return the number of findings."""
    effort, began = Effort(seconds, options.least), time.monotonic()
    report = fuzz_target(name, options.seed, effort, options.findings.resolve(), keeping=options.keep)
    print(f"{name}: {describe_report(report)} ({time.monotonic() - began:.0f} s with its start)", flush=True)
    for path, what in report.findings:
        print(f"  {what}: {os.path.relpath(path)}", flush=True)
    return len(report.findings)


if __name__ == "__main__":
    sys.exit(main())
