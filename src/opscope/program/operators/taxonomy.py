"""Classify operators: five categories, and finer kinds below them, from an operator's name or the program's node.

Names are looked up whole, never searched for parts, so ``address`` is not an addition and ``padding`` no
normalisation. The table of names: :mod:`opscope.program.operators.kinds`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.plug_ins import PlugIn, plug_ins
from opscope.program.operators.kinds import KINDS, Category, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GROUP = "opscope.kinds"


def plug_in_kinds() -> tuple[list[Kind], list[str]]:
    """Return the kinds of all installed packages, named PACKAGE:KIND, and a sentence for each that is unusable.

    Of two kinds for one name the last counts.
    """
    kinds: list[Kind] = []
    problems: list[str] = []
    for plug_in in plug_ins(GROUP):
        if plug_in.problem:
            problems.append(plug_in.problem)
            continue
        try:
            kinds += _check_kinds(plug_in)
        except Exception as error:  # noqa: BLE001 - the objects of any package
            problems.append(plug_in.failed("has no kinds", error))
    return kinds, problems


def _check_kinds(plug_in: PlugIn) -> list[Kind]:
    kinds = [plug_in.loaded] if isinstance(plug_in.loaded, Kind) else [*plug_in.loaded]
    for kind in kinds:
        if not isinstance(kind, Kind) or not isinstance(kind.category, Category):
            raise TypeError(f"{kind!r} is not a Kind with a Category")
        if not all(isinstance(text, str) for text in kind._replace(category=Category.OTHER)):
            raise TypeError(f"the names of {kind.name!r} are not text")
    return [kind._replace(name=f"{plug_in.package}:{kind.name}") for kind in kinds]


__all__ = [
    "COMPILED_REGION",
    "DEVICE_WAIT",
    "FRAMEWORK",
    "KINDS",
    "UNKNOWN",
    "Category",
    "Kind",
    "OperatorClass",
    "aten_operator",
    "classify",
    "classify_node",
    "classify_run",
]


class OperatorClass(NamedTuple):
    """Category and kind of an operator."""

    category: Category
    kind: str


UNKNOWN = OperatorClass(Category.OTHER, "unknown")
FRAMEWORK = OperatorClass(Category.OTHER, "framework")
COMPILED_REGION = OperatorClass(Category.OTHER, "compiled region")
"""A part of the graph that an accelerator runs as a unit: its operators are not visible in a trace."""
DEVICE_WAIT = OperatorClass(Category.OTHER, "waiting for the device")
"""Waiting until an accelerator has finished earlier work, and copying its result."""


class _Names(NamedTuple):
    """Kinds by the names in the columns of a table."""

    xnnpack: dict[str, Kind]
    events: dict[str, Kind]
    aten: dict[str, Kind]
    nodes: dict[str, Kind]
    coreml: dict[str, Kind]
    vulkan: dict[str, Kind]
    onnx: dict[str, Kind]
    tflite: dict[str, Kind]
    openvino: dict[str, Kind]


_COMMAS = {"xnnpack", "events"}
"""Columns whose names are separated by commas."""


def _names_of_kinds(kinds: Sequence[Kind]) -> _Names:
    return _Names(*(_kinds_by_name(kinds, column, "," if column in _COMMAS else None) for column in _Names._fields))


def _kinds_by_name(kinds: Sequence[Kind], column: str, separator: str | None) -> dict[str, Kind]:
    listed = ((name, kind) for kind in kinds for name in getattr(kind, column).split(separator))
    return {" ".join(name.split()): kind for name, kind in listed if name.strip()}


_OURS = _names_of_kinds(KINDS)


@lru_cache(maxsize=4)
def _plug_in_names(_installed: tuple[PlugIn, ...]) -> _Names:
    return _names_of_kinds(plug_in_kinds()[0])


def _iterate_tables() -> Iterator[_Names]:
    """Yield opscope's own names, and after them those of other packages."""
    yield _OURS
    if installed := plug_ins(GROUP):
        yield _plug_in_names(installed)


_DELEGATE_FORM = re.compile(r"^(?P<operator>[^(#]+?)(?: \([^)#]*\)(?: (?P<algorithm>[^#]+?))?)?(?: #\d+)?\Z")
_NAMESPACES = ("aten.", "aten_", "dim_order_ops.", "dim_order_ops_", "quantized_decomposed.", "quantized_decomposed_")
_NUMBER_TYPES = re.compile(r"_asym\d.*\Z", re.DOTALL)
"""Suffix of Cadence's kernels for fixed number types: ``quantized_add_asym8sxasym8s_asym8s``."""
_NODE = re.compile(r"(?P<node>\w{1,200})[: ]OpId_\d+(?: \(cycles\))?\Z")
_OVERLOADS = frozenset(
    """
    tensor scalar default dim dims int intlist self vec out src value mode list correction two no stats start step
    memory format
    """.split()
)
_MIL = re.compile(r"[^:]+:(?:ios\d+\.)?(?P<operator>\w+)\Z")
_SHADER = re.compile(r'"kernel_name": "(?P<shader>\w{1,200})"')
_CALLED = re.compile(r'"operator": \{"name": "(?P<operator>[\w.:]{1,200})"')
_PLAIN_SHADER = re.compile(r"(?P<shader>[a-z]\w{0,199}?_(?:float|half|double|int8|uint8|int32|int64|bool))(?:_\d+)?\Z")
_SHADER_WORDS = 9
_ONNX_FORM = re.compile(r"(?P<operator>[A-Z]\w{0,99}): ")
_UNIT = re.compile(r" \((?:us|cycles|count|bytes)\)\Z")


@lru_cache(maxsize=4096)
def classify(name: str) -> OperatorClass:
    """Return category and kind of an operator by its recorded name; ``UNKNOWN`` if the name is in no table.

    Accepts XNNPACK's event names (``Convolution (NHWC, F32) IGEMM #3``), ExecuTorch's kernel events
    (``native_call_add.out``), ATen's own (``aten::add.Tensor``, ``aten.add.Tensor``, ``aten_add_default``), QNN
    (``aten_add_tensor:OpId_61 (cycles)``), operators of Core ML (``op_12:ios17.conv``), shaders of Vulkan
    (``conv2d_dw_half_12``, or the text in JSON that later releases record), the phases that delegates record, nodes
    of ONNX Runtime and OpenVINO after their type (``Conv: /stem/Conv``), and LiteRT's operators (``CONV_2D``).
    """
    return _class_of_first_kind(_find_kind(names, name) for names in _iterate_tables())


_CPU_PROVIDER = "CPUExecutionProvider"
_FUSED_NODE = re.compile(r"(?P<operator>[^:]*_\d+): |(?P<type>[^:]+): \w+ExecutionProvider_(?P=type)_\d+\Z")
_DELEGATE_NODE = re.compile(r"\w*delegate\w*\Z", re.IGNORECASE)


def classify_run(name: str, backend: str | None) -> OperatorClass:
    """Return the class of an operator, by its recorded name and by what ran it.

    A node that stands for what a delegate of LiteRT or an execution provider of ONNX Runtime compiled is a compiled
    region: the provider names such nodes with a number after its own name (``GetCapability`` of providers).
    """
    known = classify(name)
    provider = backend is not None and backend.endswith("ExecutionProvider") and backend != _CPU_PROVIDER
    fused = known == UNKNOWN and provider and _FUSED_NODE.match(name)
    return COMPILED_REGION if fused or _DELEGATE_NODE.match(name) else known


def _class_of_first_kind(kinds: Iterator[Kind | None]) -> OperatorClass:
    kind = next(filter(None, kinds), None)
    return OperatorClass(kind.category, kind.name) if kind else UNKNOWN


def _find_kind(names: _Names, name: str) -> Kind | None:
    node = _ONNX_FORM.match(name)
    if node:
        return names.onnx.get(node["operator"]) or names.openvino.get(node["operator"])
    return _delegate_kind(names, name) or _aten_kind(names, name) or _other_kind(names, name)


def classify_node(kind: str) -> OperatorClass:
    """Return category and kind of a node of an XNNPACK payload; ``UNKNOWN`` for one that is in no table."""
    return _class_of_first_kind(names.nodes.get(kind) for names in _iterate_tables())


def _delegate_kind(names: _Names, name: str) -> Kind | None:
    form = _DELEGATE_FORM.match(name)
    if not form:
        return None
    with_algorithm = f"{form['operator']} {form['algorithm']}"
    return names.xnnpack.get(with_algorithm) or names.xnnpack.get(form["operator"])


def _aten_kind(names: _Names, name: str) -> Kind | None:
    return names.aten.get(name) or names.aten.get(aten_operator(name))


def aten_operator(name: str) -> str:
    """Return the operator in a name of ATen, without kernel prefix, namespace, overload and ``_copy``."""
    text = name.removeprefix("native_call_").rpartition("::")[2]
    for namespace in _NAMESPACES:
        text = text.removeprefix(namespace)
    text, default, _ = text.partition(".")[0].partition("_default")
    text = _NUMBER_TYPES.sub("", text)
    return text.strip("_").removesuffix("_copy").strip("_") if text or default else ""


def _other_kind(names: _Names, name: str) -> Kind | None:
    """Return the kind of an event of delegates other than XNNPACK, or of LiteRT's own operators."""
    if name in names.tflite:
        return names.tflite[name]
    event = _UNIT.sub("", name)
    if event in names.events:
        return names.events[event]
    if node := _NODE.match(name):
        return names.events.get(node["node"]) or _exported_kind(names, node["node"])
    if operator := _MIL.match(name):
        return names.coreml.get(operator["operator"])
    if name.startswith("{"):
        return _dispatched_kind(names, name)
    shader = _PLAIN_SHADER.match(name)
    return _shader_kind(names, shader["shader"]) if shader else _exported_kind(names, name)


def _exported_kind(names: _Names, node: str) -> Kind | None:
    """Return the kind of a node as the exporter names it: ``aten_add_tensor_3`` is the fourth ``aten.add.Tensor``."""
    if not node.startswith("aten_"):
        return None
    words = node.rstrip("0123456789").strip("_").split("_")
    for _ in range(3):
        kind = names.aten.get(aten_operator("_".join(words)))
        if kind or words[-1] not in _OVERLOADS:
            return kind
        words = words[:-1]
    return None


def _dispatched_kind(names: _Names, name: str) -> Kind | None:
    """Return the kind of a shader that is recorded with the operator it was called for; the shader counts first."""
    shader, requested_operator = _SHADER.search(name), _CALLED.search(name)
    kind = _shader_kind(names, shader["shader"]) if shader else None
    return kind or (_aten_kind(names, requested_operator["operator"]) if requested_operator else None)


def _shader_kind(names: _Names, shader: str) -> Kind | None:
    """Return the kind of a shader, by the longest sequence of its first words that is in the table."""
    words = shader.split("_")[:_SHADER_WORDS]
    tried = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    return next((names.vulkan[name] for name in tried if name in names.vulkan), None)
