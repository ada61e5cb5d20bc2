"""Multiply-accumulates of an ONNX model, counted from what a session without any optimisation ran.

A second, plain implementation beside that of opscope: it knows no graph, no names and no weights. The profile of such a
session has a row for each run of each node, those of bodies too, with the shapes of all that it read and left.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

Shape = list[int]


def counted_macs(model: Path, inputs: Mapping[str, np.ndarray]) -> Counter[str]:
    """Multiply-accumulates of one run, by type of operator."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as directory:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")  # which would leave weights out of rows
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = f"{directory}/profile"
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        session.run(None, dict(inputs))
        rows = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found: Counter[str] = Counter()
    for row in rows:
        if row["cat"] == "Node" and row["name"].endswith("_kernel_time"):
            found[row["args"]["op_name"]] += _macs(row["args"])
    return found


def _macs(row: dict[str, Any]) -> int:
    read, written = (
        [shape for one in row[side] for shape in one.values()] for side in ("input_type_shape", "output_type_shape")
    )
    rule = _RULES.get(row["op_name"])
    return rule(read, written[0]) if rule and written else 0


def _rows_by_columns(read: list[Shape], made: Shape) -> int:
    """The inner size is what is left of the first matrix beside its rows, whether it is transposed or not."""
    return math.prod(made) * (math.prod(read[0]) // made[0])


_RULES: dict[str, Callable[[list[Shape], Shape], int]] = {
    "Conv": lambda read, made: math.prod(made) * math.prod(read[1][1:]),
    "ConvInteger": lambda read, made: math.prod(made) * math.prod(read[1][1:]),
    "QLinearConv": lambda read, made: math.prod(made) * math.prod(read[3][1:]),
    "ConvTranspose": lambda read, made: math.prod(read[0]) * math.prod(read[1][1:]),  # noqa: ARG005
    "Gemm": _rows_by_columns,
    "MatMul": lambda read, made: math.prod(made) * read[0][-1],
    "MatMulInteger": lambda read, made: math.prod(made) * read[0][-1],
    "QLinearMatMul": lambda read, made: math.prod(made) * read[0][-1],
    **dict.fromkeys(
        ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"),
        lambda read, made: read[0][0] * read[0][1] * (math.prod(read[1]) + math.prod(read[2])),  # noqa: ARG005
    ),
}
