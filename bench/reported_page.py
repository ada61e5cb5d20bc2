"""The page of reported regressions: what bench/reported.py found, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.core.units import ratio_text

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).with_name("data") / "reported.json"


def sections() -> Iterator[str]:
    """The page, piece by piece."""
    told = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = told["rows"]
    confirmed = [row for row in rows if row["first"]]
    right = [row for row in confirmed if is_right(row)]
    alone = [row for row in confirmed if row["answer"] == row["first"] and not row["named"]]
    wrong = [row for row in confirmed if row["answer"] and row not in right and row not in alone]
    open_ones = [row for row in confirmed if not row["answer"]]
    yield (
        f"Of {len(rows)} regressions that others reported for ONNX Runtime, a stopwatch confirms {len(confirmed)} on "
        f"this machine. Of these `opscope bisect` names release and operator right in **{len(right)}**, the release "
        f"alone in {len(alone)}, where the trace of so short a run is not split into operators. Wrong: {len(wrong)}. "
        f"No answer: {len(open_ones)}.\n"
    )
    yield (
        f"Run on {told['date']}, {told['machine']}, one thread, by `python bench/reported.py`. The stopwatch is a "
        "process without opscope for each release and round; its release is that of the largest step, of 4 % at least. "
        "Each operator stands between two others that copy as much data. Inputs lie between 0 and 1 (Softplus: 10), "
        "whole numbers between 1 and 99.\n"
    )
    yield "| issue | operator | reported | stopwatch | bisect | named | latency | measured | by |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in confirmed:
        issue = f"[{row['issue']}](https://github.com/microsoft/onnxruntime/issues/{row['issue']})"
        answer, named = row["answer"] or "no answer", (row["named"] or "").partition(":")[0]
        step = ratio_text(row["step"]) if row["step"] else ""
        cells = (issue, row["operator"], row["claim"], f"{row['first']}, {ratio_text(row['ratio'])}", answer, named)
        few = f"{row['measured']} of {row['releases']}"
        yield f"| {' | '.join((*cells, step, few, row['by']))} |"
    yield ""
    others = [row for row in rows if not row["first"]]
    if others:
        yield "Not confirmed here, with the largest step that the stopwatch saw:\n"
        yield "| issue | operator | reported | largest step |"
        yield "|---|---|---|---|"
        for row in others:
            issue = f"[{row['issue']}](https://github.com/microsoft/onnxruntime/issues/{row['issue']})"
            yield f"| {issue} | {row['operator']} | {row['claim']} | {ratio_text(row['ratio'])} |"
        yield ""
    yield (
        "Without a model that could be had, or for another machine: 23391 (Resize), 27436 (Windows, no model), 27633 "
        "(convolutions of 9 x 9 on Apple silicon), 26977 (CenterCropPad), 27184 (Where), 27187 "
        "(TreeEnsembleRegressor), 28466 (memory).\n"
    )


def is_right(row: dict[str, Any]) -> bool:
    """Whether the answer is the release of the stopwatch, and the operator that was reported."""
    return bool(row["answer"] == row["first"] and row["operator"] in (row["named"] or ""))
