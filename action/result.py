"""What became of `opscope check`: outputs of the step, annotations, the summary of the job, the text for the comment.

Variables: CODE, its exit code; DIRECTORY, where check.md, check.json, annotations.txt and log.txt are, and result.md
goes; BASELINE, empty where there is none yet; CANDIDATE; FAIL_ON, as the input of that name.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from github_rest import add_to_summary, annotate, set_output

_LOG_LINES = 30
_LOG_LETTERS = 8_000
_LONGEST = 500
_LET_THROUGH = {
    "inconclusive": (),
    "regression": ("inconclusive", "untrusted"),
    "never": ("regression", "inconclusive", "untrusted"),
}
"""Outcomes that do not fail the job, by the input fail-on."""
_VERDICTS = {"0", "1", "14", "20"}
"""Exit codes of a check that has a result."""


def main() -> None:
    """Tell the result to the job."""
    code, directory = os.environ["CODE"], Path(os.environ["DIRECTORY"])
    if not os.environ["BASELINE"]:
        no_baseline(directory)
        return
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
    if has_result:
        print(annotated(directory / "annotations.txt", found["outcome"]), end="")
    else:
        annotate("error", f"no result, opscope ended with exit code {code}: {last_words(directory / 'log.txt')}")


def no_baseline(directory: Path) -> None:
    """Tell that there is nothing to compare with yet."""
    set_output("exit-code", "0")
    set_output("outcome", "no-baseline")
    set_output("slowdown", "")
    log = directory / "log.txt"
    why = f"\n{fenced([last_words(log)])}" if log.exists() else ""
    told = f"Nothing was judged. A run on the main branch leaves a baseline.\n{why}"
    text = f"## opscope check: no baseline yet\n\n{told}"
    (directory / "result.md").write_text(text, encoding="utf-8")
    add_to_summary(text)


def annotated(file: Path, outcome: str) -> str:
    """The annotations; what fail-on lets through is no error."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    passes = outcome in _LET_THROUGH[os.environ["FAIL_ON"]]
    return text.replace("::error ", "::warning ", 1) if passes and text.startswith("::error ") else text


def last_words(log: Path) -> str:
    """The last error of a log, else its last line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1][:_LONGEST]


def failure(code: str, log: Path) -> str:
    """Markdown for a check without a result: its exit code, and how its log ends."""
    written = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = written.rstrip()[-_LOG_LETTERS:].splitlines()[-_LOG_LINES:]
    told = f"**opscope ended with exit code {code}; whether the candidate is slower is not known.**"
    return f"## opscope check: no result\n\n{told}\n\n{fenced(lines)}"


def fenced(lines: list[str]) -> str:
    """Lines as they are, whatever they hold: none of them is Markdown."""
    fence = "`" * max(3, *(len(run) + 1 for line in lines for run in re.findall("`+", line)), 0)
    return f"{fence}text\n" + "".join(f"{line}\n" for line in lines) + f"{fence}\n"


if __name__ == "__main__":
    main()
