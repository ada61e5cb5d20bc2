"""One model tried as a stranger would: profiled, and once more with what the refusal says where it was refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
_SHORT = "--rounds 1 --runs 3 --warmup 1 --no-ceilings --lock warn"
"""The corpus is about what works, not about how fast it is."""
_SECONDS = 900
_LONGEST = 300
_OPEN, _GUESS = "its inputs have dynamic sizes", "--guess-inputs"
_PRODUCTS = {"Convolution", "GEMM"}
_FAULTS = ("Traceback", "bug in opscope")


class Measured(msgspec.Struct, frozen=True):
    """What the report of a model holds.

    Attributes:
        operators: that ran, each of its runs once.
        exact: share of their time that is attributed exactly.
        macs: multiply-accumulates of one inference, with acceleration and without it, each figure once;
            empty where those of a product are not known.
        split: sum of the split of the latency, over the latency.
        agree: outputs with acceleration off are those with it on; null where that was not compared.
    """

    operators: int
    exact: float
    macs: list[int]
    split: float
    agree: bool | None


class Trial(msgspec.Struct, frozen=True):
    """What became of a model.

    Attributes:
        package: that it is from, with its version.
        model: its file name.
        sha256: of the file.
        size: of the file, in bytes.
        inputs: that it was given; empty where it states them.
        commands: that were needed to the last outcome.
        measured: what its report holds; null where there is none.
        refusal: why there is none; null where there is one.
        runtime: what the runtime itself says, given the same inputs; null where it was not asked, empty where it runs.
        fault: whether opscope ended in a fault of its own.
    """

    package: str
    model: str
    sha256: str
    size: int
    inputs: list[str]
    commands: int
    measured: Measured | None = None
    refusal: str | None = None
    runtime: str | None = None
    fault: bool = False

    @property
    def kept(self) -> bool:
        """Whether it ended as every model has to: in a report, or in a refusal that the runtime makes, too."""
        return not self.fault and (self.measured is not None or bool(self.runtime))


def tried(package: str, model: Path, sha256: str) -> Trial:
    """Profile a model, at most twice, and ask the runtime itself where there is no report.

    Args:
        package: that it is from.
        model: its file.
        sha256: of the file.
    """
    with tempfile.TemporaryDirectory(prefix="corpus-") as place:
        done = _profiled(model, Path(place) / "first")
        commands = 1
        if done.returncode and _OPEN in done.stderr:
            done, commands = _profiled(model, Path(place) / "second", _GUESS), 2
        answer = json.loads(done.stdout) if not done.returncode else {}
        found = Trial(package, model.name, sha256, model.stat().st_size, _inputs(answer), commands)
        if answer:
            return msgspec.structs.replace(found, measured=_measured(answer))
        fault = any(word in done.stderr for word in _FAULTS)
        said = _anywhere(done.stderr, model)
        return msgspec.structs.replace(found, refusal=said, runtime=_asked(model), fault=fault)


def _profiled(model: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["profile", str(model), "--out", str(out), "--json", "-", *_SHORT.split(), *more]
    return _run([sys.executable, "-m", "opscope", *words])


def _asked(model: Path) -> str:
    """What the runtime itself says of a model, on the inputs that opscope would guess; empty where it runs."""
    done = _run([sys.executable, "-m", "corpus.runtime", str(model)])
    return _anywhere(done.stderr or f"ended with {done.returncode}", model) if done.returncode else ""


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=ROOT)


def _inputs(answer: Mapping[str, Any]) -> list[str]:
    given = answer["manifest"]["plan"]["inputs"] if answer else []
    return [one["source"] for one in given if one["source"]]


def _measured(answer: Mapping[str, Any]) -> Measured:
    analyses = [one["analysis"] for one in answer["variants"] if one["analysis"]]
    first = analyses[0]
    operators = [one for one in first["operators"] if one["kind"] != "framework"]
    times = {exact: sum(one["traced_ns"] for one in operators if (one["attribution"] == "exact") is exact)
             for exact in (True, False)}  # fmt: skip
    outputs = [one["outputs"] for one in answer["comparisons"] if one["outputs"]]
    unknown = any(one["macs"] is None and one["category"] in _PRODUCTS for one in operators)
    counts = {sum(one["macs"] or 0 for one in own["operators"]) for own in analyses}
    split = sum(one["share"] for one in (*first["backends"], *first["outside"]))
    return Measured(
        operators=len(operators),
        exact=times[True] / (sum(times.values()) or 1),
        macs=[] if unknown else sorted(counts),
        split=split,
        agree=all(one["agree"] for one in outputs) if outputs else None,
    )


def _anywhere(text: str, model: Path) -> str:
    """The last error of a text, without where things are on this machine."""
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith("hint:")]
    errors = [line for line in lines if line.startswith("error:")] or lines[-1:]
    said = (errors[-1] if errors else "").removeprefix("error: ").replace(str(model), model.name)
    return re.sub(r"[^\s:`']*/(?=[^\s/]+\.\w+)", "", said)[:_LONGEST]
