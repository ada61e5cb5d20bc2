"""The line at the end of a test run that says what to install to run the skipped tests."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGES = re.compile(r"apt install ((?:[\w+.-]+ ?)+)")
_PYTHON = re.compile(r"pip install '([^']+)'")
_COMMANDS = (".ci/devices", "make test-arm64", "make test-all", "more time")


def describe_skips(reasons: Iterable[str]) -> str:
    """Return one line for the reasons of skipped tests, one reason for each test; empty without any.

    A reason names what is missing as ``apt install PACKAGE``, ``pip install 'REQUIREMENT'`` or a command of this
    repository. A test that needs several counts for the first of these that it names.
    """
    every = list(reasons)
    packages: set[str] = set()
    requirements: set[str] = set()
    counts: Counter[str] = Counter()
    for reason in every:
        kind = "other"
        if found := _PACKAGES.search(reason):
            kind = "packages"
            packages.update(found[1].split())
        elif found := _PYTHON.search(reason):
            kind = "requirements"
            requirements.add(found[1])
        else:
            kind = next((command for command in _COMMANDS if command in reason), kind)
        counts[kind] += 1
    steps = [
        (f"apt install {' '.join(sorted(packages))}", counts["packages"]),
        (f"pip install {' '.join(repr(name) for name in sorted(requirements))}", counts["requirements"]),
        *((command, counts[command]) for command in _COMMANDS),
        ("another machine", counts["other"]),
    ]
    told = "; ".join(f"{step} ({count})" for step, count in steps if count)
    return f"{len(every)} skipped tests need: {told}" if every else ""
