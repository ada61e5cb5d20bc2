"""What became of `opscope check`: outputs of the step, the summary of the job, and the text for the comment.

Variables: CODE, its exit code; DIRECTORY, where check.md, check.json and log.txt are, and result.md goes.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from github_rest import add_to_summary, set_output

_LOG_LINES = 30
_LOG_LETTERS = 8_000
_VERDICTS = {"0", "1", "14", "20"}
"""Exit codes of a check that has a result."""


def main() -> None:
    """Tell the result to the job."""
    code, directory = os.environ["CODE"], Path(os.environ["DIRECTORY"])
    has_result = code in _VERDICTS and (directory / "check.json").exists()
    found = json.loads((directory / "check.json").read_bytes()) if has_result else {}
    set_output("exit-code", code)
    set_output("outcome", found.get("outcome", "error"))
    times = (one["measured"] for one in found.get("criteria", []) if one["quantity"] == "slowdown")
    measured = next(times, None)  # the first limit is that of the whole
    set_output("slowdown", str("" if measured is None else measured))
    text = (directory / "check.md").read_text(encoding="utf-8") if has_result else failure(code, directory / "log.txt")
    (directory / "result.md").write_text(text, encoding="utf-8")
    add_to_summary(text)


def failure(code: str, log: Path) -> str:
    """Markdown for a check without a result: its exit code, and how its log ends."""
    written = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = written.rstrip()[-_LOG_LETTERS:].splitlines()[-_LOG_LINES:]
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", written)), 0)
    return (
        "## opscope check: no result\n\n"
        f"**opscope ended with exit code {code}; whether the candidate is slower is not known.**\n\n"
        f"{fence}text\n" + "".join(f"{line}\n" for line in lines) + f"{fence}\n"
    )


if __name__ == "__main__":
    main()
