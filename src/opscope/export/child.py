"""The process that exports: ``python -m opscope.export.child MODEL DTYPE PROGRAM ETRECORD``.

Torch stays out of the calling process, and what it prints goes to a log. Errors are written to standard output as one
JSON object; the exit code is the error's own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.errors import OpscopeError
from opscope.export.lower import export
from opscope.export.process import Refusal
from opscope.export.registry import build

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Export one model."""
    name, dtype, program, etrecord = arguments
    try:
        export(build(name), dtype, Path(program), Path(etrecord))
    except OpscopeError as error:
        Path(program).unlink(missing_ok=True)
        sys.stdout.write(msgspec.json.encode(Refusal(error.problem, error.hint)).decode() + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
