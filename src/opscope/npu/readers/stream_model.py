"""What Stream (KULeuven-MICAS/stream) writes of the schedule that its cost model chose: the latency of its iterations.

Three files hold it:

- ``slot_latency_breakdown.yaml``: a block ``totals``, written by yaml.safe_dump in block style;
- the schedule's intermediate representation, in JSON or YAML: a block ``latency``;
- ``steady_state_trace.json`` and its compact form: an object ``otherData``.

The latency of an iteration is the sum over all slots of the schedule, those in which data is moved as well as those in
which cores compute. The next iteration starts a step later, which is the latency less the overlap. Only these numbers
are read; of YAML, one block of numbers, so that no parser of all of YAML is needed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import UsageError
from opscope.core.json import from_json
from opscope.core.system.memory import file_bytes
from opscope.npu.cost_model import CostModel, cost_model

if TYPE_CHECKING:
    from pathlib import Path

_HINT = "give slot_latency_breakdown.yaml or steady_state_trace.json of Stream's output, or a file with a latency block"
_BLOCK = re.compile(rb"^(totals|latency):[ \t]*\r?\n((?:[ \t][^\r\n]*(?:\r?\n|\Z))+)", re.MULTILINE)
_LINE = re.compile(rb"^[ \t]+(\w{1,60}):[ \t]*([^\r\n#]{1,60}?)[ \t]*(?:#[^\r\n]*)?\r?$", re.MULTILINE)
_NOTHING = {b"null", b"~", b"None"}


class _Totals(msgspec.Struct):
    latency_per_iteration: float | None = None
    overlap: float | None = None
    iter_step: float | None = None
    total_latency: float | None = None


class _Latency(msgspec.Struct):
    total: float | None = None
    per_iteration: float | None = None
    overlap_between_iterations: float | None = None


class _Trace(msgspec.Struct):
    total_iterations: int | None = None
    latency_per_iteration_cycles: float | None = None
    overlap_cycles: float | None = None
    iter_step_cycles: float | None = None
    total_latency_cycles: float | None = None


class _File(msgspec.Struct, rename={"other_data": "otherData"}):
    totals: _Totals | None = None
    latency: _Latency | None = None
    other_data: _Trace | None = None


def read_stream_model(path: Path) -> CostModel:
    """The latencies in a file of Stream's, with the step from the two that make it where it is not there itself."""
    data = file_bytes(path)
    try:
        file = from_json(data, _File) if data.lstrip()[:1] == b"{" else _from_yaml(data, path)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a Stream file: {error}", where=path, hint=_HINT) from None
    found = _numbers_of(file)
    numbers = {**msgspec.structs.asdict(found), "iteration_step": found.step, "of_slots": True}
    model = cost_model(**numbers)
    if model is None:
        raise UsageError("the file has no Stream latency", where=path, hint=_HINT)
    return model


def _from_yaml(data: bytes, path: Path) -> _File:
    blocks = {match[1]: match[2] for match in _BLOCK.finditer(data)}
    if b"totals" in blocks:
        return _File(totals=_Totals(**_numbers(blocks[b"totals"], _Totals.__struct_fields__, path)))
    if b"latency" in blocks:
        return _File(latency=_Latency(**_numbers(blocks[b"latency"], _Latency.__struct_fields__, path)))
    return _File()


def _numbers(block: bytes, names: tuple[str, ...], path: Path) -> dict[str, float | None]:
    """The numbers of these names in a block."""
    lines = ((line[1].decode("ascii", "replace"), line[2]) for line in _LINE.finditer(block))
    return {name: _number(name, said, path) for name, said in lines if name in names}


def _number(name: str, said: bytes, path: Path) -> float | None:
    if said in _NOTHING:
        return None
    try:
        return float(said)
    except ValueError:
        problem = f"{name} is {said.decode('utf-8', 'replace')}, not a number of cycles"
        raise UsageError(problem, where=path, hint=_HINT) from None


def _numbers_of(file: _File) -> CostModel:
    """The numbers as they are in the file, under the names that a cost model has for them."""
    if (totals := file.totals) is not None:
        return CostModel(
            iteration_step=totals.iter_step,
            overlap=totals.overlap,
            latency_per_iteration=totals.latency_per_iteration,
            total=totals.total_latency,
        )
    if (short := file.latency) is not None:
        return CostModel(
            overlap=short.overlap_between_iterations, latency_per_iteration=short.per_iteration, total=short.total
        )
    if (trace := file.other_data) is not None:
        return CostModel(
            iteration_step=trace.iter_step_cycles,
            overlap=trace.overlap_cycles,
            latency_per_iteration=trace.latency_per_iteration_cycles,
            total=trace.total_latency_cycles,
            iterations=trace.total_iterations,
        )
    return CostModel()
