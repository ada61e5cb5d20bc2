"""What an .onnx tells before it is measured: the nodes that a session makes of it, their work, and what SME can run.

A session on this machine runs the model once, unmeasured, since only that tells all shapes. Without the package nodes
are those of the file, and their work is not known.

Which of MLAS's kernels of products a CPU gets is chosen by its features when ONNX Runtime is loaded. Source:
``onnxruntime/core/mlas/lib/platform.cpp``, 1.23 to 1.32. On x86-64 the instructions that ran were held against this
table on CPUs with and without each group of features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.preflight.operators import PlannedOperator
from opscope.analysis.preflight.parts import DelegateBoundaries
from opscope.analysis.preflight.preflight import Partition, Preflight, describe_cpu, method_preflight
from opscope.core.files import sha256_of
from opscope.program.kernels.cpu import KernelRule, choose_kernels
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify
from opscope.program.partition.verdicts import Eligibility, Form, SmeSupport
from opscope.program.structure.exported import Signature, Tensor
from opscope.runtimes.onnxruntime.attribution import node_facts
from opscope.runtimes.onnxruntime.graph import GRAPH, METHOD, every_node, read_session_graph
from opscope.runtimes.onnxruntime.language import onnx_language_model
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.signatures import index_limits, signature_of
from opscope.runtimes.onnxruntime.target import onnxruntime_here
from opscope.runtimes.package_target import run_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.program.kernels.cpu import Cpu, KernelChoice
    from opscope.runtimes.onnxruntime.attribution import NodeFacts
    from opscope.runtimes.onnxruntime.graph import SessionNode
    from opscope.runtimes.onnxruntime.onnx_file import OnnxNode


_FMA3 = ("avx2", "fma3")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_FMA3)
_VNNI = ("avx512vnni", *_AVX512)
_SSE = [KernelRule((), "SSE2")]
_VNNI_INT8 = KernelRule(("avx_vnni_int8", *_FMA3), "AVX-VNNI-INT8")
_SIGNED = [_VNNI_INT8, *_SSE]
_UNSIGNED = [_VNNI_INT8, KernelRule(_AVX512, "AVX-512"), KernelRule(_FMA3, "AVX2"), *_SSE]
_MIXED = [
    KernelRule(_VNNI, "AVX-512 VNNI"),
    KernelRule(_AVX512, "AVX-512"),
    KernelRule(("avxvnni", *_FMA3), "AVX-VNNI"),
    KernelRule(_FMA3, "AVX2"),
    *_SSE,
]
_FLOAT = [
    KernelRule(("avx512f", *_FMA3), "AVX-512"),
    KernelRule(_FMA3, "FMA3"),
    KernelRule(("avx",), "AVX"),
    *_SSE,
]
_AMX = KernelRule(("amx_tile", "amx_int8", *_FMA3), "AMX")
_NEON = [KernelRule((), "NEON")]
_DOT = [KernelRule(("i8mm",), "NEON i8mm"), KernelRule(("dot",), "NEON dotprod"), *_NEON]
_U8S8 = ("uint8", "int8")

_PRODUCT_KERNELS: Mapping[str, Mapping[tuple[str, str], Sequence[KernelRule]]] = {
    "x86_64": {
        ("float", "float"): _FLOAT,
        _U8S8: [_AMX, *_MIXED],
        ("uint8", "uint8"): _UNSIGNED,
        ("int8", "int8"): _SIGNED,
    },
    "aarch64": {
        ("float", "float"): [KernelRule(("sme", "sme2"), "SME2"), KernelRule(("sme",), "SME"), *_NEON],
        _U8S8: _DOT,
        ("uint8", "uint8"): _DOT,
        ("int8", "int8"): _DOT,
    },
}
"""Of matrix products by the number types of data and weights, strongest kernel first."""
_CONVOLUTION_KERNELS: Mapping[str, Mapping[tuple[str, str], Sequence[KernelRule]]] = {
    "x86_64": {("float", "float"): _FLOAT, _U8S8: _MIXED, ("uint8", "uint8"): _UNSIGNED},
    "aarch64": {},
}
_UNSIGNED_DATA = "quantise data as uint8 and weights as int8 (activation_type=QuantType.QUInt8)"


def mlas_kernels(types: tuple[str, str], cpu: Cpu, *, convolution: bool) -> KernelChoice | None:
    """Return the kernels that MLAS gives a processor for a product; None where that is not known.

    ``types`` are those of data and weights, as ONNX Runtime's profile names them.
    """
    tables = (_CONVOLUTION_KERNELS if convolution else _PRODUCT_KERNELS)[cpu.arch]
    strongest = tables.get(_U8S8, ()) if types[0].endswith("int8") else ()
    return choose_kernels(tables.get(types, ()), cpu, strongest, _UNSIGNED_DATA)


TABLE = "ONNX Runtime 1.23 to 1.32, KleidiAI in MLAS"
"""The releases whose sources were read."""
_SECONDS = 300.0
_BITS = {"float16": 16, "bfloat16": 16, "int8": 8, "uint8": 8, "float": 32}
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})
_PRODUCTS = frozenset({"Gemm", "MatMul", "FusedMatMul", "FusedGemm"})
_INTEGERS = frozenset({"QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "QGemm"})
_FACTORS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3)}
"""Places of data and weights among the inputs, where they are not the first two."""
_DYNAMIC = "DynamicQuantizeMatMul"
_LOOPS = frozenset({"Loop", "Scan"})
_CONVERTS = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_LEAST_TAPS = 3
_IMAGE = 4
_PACKED = "convolve_kleidiai.cpp, ArmKleidiAI::MlasConv"
_GEMM = "sgemm_kleidiai.cpp, ArmKleidiAI::MlasGemmBatch"


def onnx_preflight(path: Path, *, installed: bool, cpu: Cpu | None) -> Preflight:
    """What the model of a file tells."""
    model = read_onnx(path)
    signature, given = signature_of(model, path), model.graph
    if installed:
        here, limits, called = onnxruntime_here(), index_limits(path), signature
        language = onnx_language_model(path)
        if language is not None:  # a prompt, with nothing before it
            prompt = language.without_cache()
            called = Signature(METHOD, tuple(tensor for _, tensor in prompt), signature.outputs)
            limits = {**limits, **({language.tokens: language.vocabulary} if language.vocabulary else {})}
        session, words = run_once(
            here, "ONNX Runtime", path, called, limits, lambda left: read_session_graph(left / GRAPH)
        )
        ran = f"one unmeasured inference ran to get tensor shapes, with {words}"
        operators = [_planned(one, cpu) for one in node_facts(given, session) if one.node.written]
        loop_runs = _loop_runs(session.nodes)
    else:
        loop_runs = None
        ran = "nothing ran: install onnxruntime for work and shapes"
        operators = [PlannedOperator(node.op, 1, classify(f"{node.op}: ").category, None, None) for node in given.nodes]
    preflight = method_preflight(
        METHOD,
        [Tensor(list(one.sizes), one.dtype.name) for one in signature.inputs],
        [Tensor(list(one.sizes), one.dtype.name) for one in signature.outputs],
        operators,
        cpu,
        branches=any(node.graphs for node in given.nodes),
        loop_runs=loop_runs,
        partition=Partition(0, 0, len(operators), 0, 0, 0, []),
        borders=DelegateBoundaries(0, 0, 0, 0, 0),
    )
    return Preflight(str(path), sha256_of(path), describe_cpu(cpu), TABLE, "", [preflight], ran)


def _loop_runs(nodes: Sequence[SessionNode]) -> int | None:
    """Return how often the graph of a loop ran, of several loops the most; None without a loop."""
    loops = [node for node in every_node(nodes) if node.op in _LOOPS]
    inner = (inner_node.runs for node in loops for graph in node.graphs.values() for inner_node in graph)
    return max(inner, default=0) if loops else None


def _planned(one: NodeFacts, cpu: Cpu | None) -> PlannedOperator:
    facts, main = one.facts, one.main
    op = main.op if main is not None else one.node.op
    known = facts.operator_class or classify(f"{one.node.op}: ")
    return PlannedOperator(
        name=one.node.op,
        calls=max(one.node.runs, 1),
        category=known.category,
        cost=facts.cost,
        bits=_BITS.get(facts.dtype or ""),
        eligibility=_eligibility(one, op) if facts.cost is None or facts.cost.macs else None,
        added=facts.change is not None and known.category is Category.DATA_MOVEMENT,
        kernels=_choose_kernels(one, op, cpu) if cpu else None,
        converts=one.node.op in _CONVERTS,
    )


def _choose_kernels(one: NodeFacts, op: str, cpu: Cpu) -> KernelChoice | None:
    """Return the kernels that MLAS gives a processor for a node; None for other nodes, and where no rule tells."""
    is_convolution = op in _CONVOLUTIONS or op == "QLinearConv"
    data, weights = _FACTORS.get(one.node.op, (0, 1))
    inputs = one.node.read
    if not (is_convolution or op in _PRODUCTS or op in _INTEGERS) or len(inputs) <= weights:
        return None
    is_grouped = one.main is not None and one.main.attributes.get("group", 1) != 1
    if is_grouped and inputs[data].dtype != "float":
        return None
    return mlas_kernels((inputs[data].dtype, inputs[weights].dtype), cpu, convolution=is_convolution)


def _eligibility(one: NodeFacts, op: str) -> Eligibility | None:
    """Whether MLAS gives a product to a kernel of SME; None for what is no product."""
    types = one.facts.dtype or "unknown"
    if one.node.op == _DYNAMIC:
        reason = "needs SME2 and constant, symmetric weights"
        return Eligibility(SmeSupport.UNKNOWN, Form.PRODUCT, types, reason, "qgemm_kleidiai.cpp", tried=False)
    if op in _INTEGERS:
        form = Form.CONVOLUTION if "Conv" in op else Form.PRODUCT
        reason = "MLAS multiplies integers with NEON kernels"
        return Eligibility(SmeSupport.NOT_ELIGIBLE, form, types, reason, "qgemm.cpp, MlasGemmBatch", tried=False)
    if op in _CONVOLUTIONS and one.main is not None:
        return _convolution(one, one.main, types)
    if op in _PRODUCTS and types == "float":
        reason = "MLAS runs fp32 matrix products with KleidiAI"
        return Eligibility(SmeSupport.ELIGIBLE, Form.PRODUCT, types, reason, _GEMM, tried=False)
    if one.facts.cost is None or not one.facts.cost.macs:
        return None
    return Eligibility(SmeSupport.UNKNOWN, Form.PRODUCT, f"{op}, {types}", "no known rule", None, tried=False)


def _convolution(one: NodeFacts, node: OnnxNode, types: str) -> Eligibility:
    form = Form.CONVOLUTION if node.attributes.get("group", 1) == 1 else Form.DEPTHWISE
    shape, taps = one.facts.shape or (), one.filter[2:]
    if form is Form.DEPTHWISE or types != "float":
        reason = "grouped" if form is Form.DEPTHWISE else f"in {types}"
        text = f"MLAS runs fp32 convolutions without groups with KleidiAI; this one is {reason}"
        return Eligibility(SmeSupport.NOT_ELIGIBLE, form, types, text, _PACKED, tried=False)
    if len(shape) == _IMAGE and shape[0] == 1 and taps and min(taps) >= _LEAST_TAPS:
        text = "MLAS runs fp32 convolutions with batch 1 and filters of at least 3 x 3 with KleidiAI"
        return Eligibility(SmeSupport.ELIGIBLE, form, types, text, _PACKED, tried=False)
    text = "batch 1 and filters of at least 3 x 3 are supported; others depend on the release"
    return Eligibility(SmeSupport.UNKNOWN, form, types, text, _PACKED, tried=False)
