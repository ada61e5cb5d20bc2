"""Predict from an .onnx, before measuring, which nodes a session runs, their work, and what SME can run.

A session on this machine runs the model once, unmeasured, since only that tells all shapes. Without the package
the nodes are those of the file, and their work is unknown.

Which of MLAS's kernels for products a CPU gets is chosen by its features when ONNX Runtime is loaded. Source:
``onnxruntime/core/mlas/lib/platform.cpp``, 1.23 to 1.32. On x86-64 the instructions that ran were compared with
this table on CPUs with and without each group of features.
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
"""Kernels of matrix products by architecture and number types of data and weights, the strongest first."""
_CONVOLUTION_KERNELS: Mapping[str, Mapping[tuple[str, str], Sequence[KernelRule]]] = {
    "x86_64": {("float", "float"): _FLOAT, _U8S8: _MIXED, ("uint8", "uint8"): _UNSIGNED},
    "aarch64": {},
}
_UNSIGNED_DATA = "quantise data as uint8 and weights as int8 (activation_type=QuantType.QUInt8)"


def mlas_kernels(types: tuple[str, str], cpu: Cpu, *, convolution: bool) -> KernelChoice | None:
    """Return the kernels that MLAS gives a processor for a product; None if that is unknown.

    ``types`` are those of data and weights, as ONNX Runtime's profile names them.
    """
    tables = (_CONVOLUTION_KERNELS if convolution else _PRODUCT_KERNELS)[cpu.arch]
    strongest = tables.get(_U8S8, ()) if types[0].endswith("int8") else ()
    return choose_kernels(tables.get(types, ()), cpu, strongest, _UNSIGNED_DATA)


TABLE = "ONNX Runtime 1.23 to 1.32, KleidiAI in MLAS"
"""Releases whose sources the table was read from."""
_SECONDS = 300.0
_BITS = {"float16": 16, "bfloat16": 16, "int8": 8, "uint8": 8, "float": 32}
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})
_PRODUCTS = frozenset({"Gemm", "MatMul", "FusedMatMul", "FusedGemm"})
_INTEGERS = frozenset({"QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "QGemm"})
_FACTORS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3)}
"""Positions of data and weights among the inputs, where they are not the first two."""
_DYNAMIC = "DynamicQuantizeMatMul"
_LOOPS = frozenset({"Loop", "Scan"})
_CONVERTS = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_LEAST_TAPS = 3
_IMAGE = 4
_PACKED = "convolve_kleidiai.cpp, ArmKleidiAI::MlasConv"
_GEMM = "sgemm_kleidiai.cpp, ArmKleidiAI::MlasGemmBatch"


def onnx_preflight(path: Path, *, installed: bool, cpu: Cpu | None) -> Preflight:
    """Predict what a processor will accelerate of the model in a file.

    ``installed``: whether the package can run the model once for its shapes. ``cpu``: None if the processor is
    unknown.
    """
    model = read_onnx(path)
    signature, model_graph = signature_of(model, path), model.graph
    if installed:
        here, limits, run_signature = onnxruntime_here(), index_limits(path), signature
        language = onnx_language_model(path)
        if language is not None:  # a prompt, with nothing before it
            prompt = language.without_cache()
            run_signature = Signature(METHOD, tuple(tensor for _, tensor in prompt), signature.outputs)
            limits = {**limits, **({language.tokens: language.vocabulary} if language.vocabulary else {})}
        session, words = run_once(
            here,
            "ONNX Runtime",
            path,
            run_signature,
            limits,
            lambda run_directory: read_session_graph(run_directory / GRAPH),
        )
        ran = f"one unmeasured inference ran to get tensor shapes, with {words}"
        operators = [_plan_operator(node, cpu) for node in node_facts(model_graph, session) if node.node.written]
        loop_runs = _loop_runs(session.nodes)
    else:
        loop_runs = None
        ran = "nothing ran: install onnxruntime for work and shapes"
        operators = [
            PlannedOperator(node.op, 1, classify(f"{node.op}: ").category, None, None) for node in model_graph.nodes
        ]
    preflight = method_preflight(
        METHOD,
        [Tensor(list(tensor.sizes), tensor.dtype.name) for tensor in signature.inputs],
        [Tensor(list(output.sizes), output.dtype.name) for output in signature.outputs],
        operators,
        cpu,
        branches=any(node.graphs for node in model_graph.nodes),
        loop_runs=loop_runs,
        partition=Partition(0, 0, len(operators), 0, 0, 0, []),
        borders=DelegateBoundaries(0, 0, 0, 0, 0),
    )
    return Preflight(str(path), sha256_of(path), describe_cpu(cpu), TABLE, "", [preflight], ran)


def _loop_runs(nodes: Sequence[SessionNode]) -> int | None:
    """Return how often the graph of a loop ran, of several loops the largest number; None without a loop."""
    loops = [node for node in every_node(nodes) if node.op in _LOOPS]
    inner = (inner_node.runs for node in loops for graph in node.graphs.values() for inner_node in graph)
    return max(inner, default=0) if loops else None


def _plan_operator(node: NodeFacts, cpu: Cpu | None) -> PlannedOperator:
    facts, main = node.facts, node.main
    op = main.op if main is not None else node.node.op
    known = facts.operator_class or classify(f"{node.node.op}: ")
    return PlannedOperator(
        name=node.node.op,
        calls=max(node.node.runs, 1),
        category=known.category,
        cost=facts.cost,
        bits=_BITS.get(facts.dtype or ""),
        eligibility=_sme_eligibility(node, op) if facts.cost is None or facts.cost.macs else None,
        added=facts.change is not None and known.category is Category.DATA_MOVEMENT,
        kernels=_choose_kernels(node, op, cpu) if cpu else None,
        converts=node.node.op in _CONVERTS,
    )


def _choose_kernels(node: NodeFacts, op: str, cpu: Cpu) -> KernelChoice | None:
    """Return the kernels that MLAS gives a processor for a node; None for other nodes and where no rule is known."""
    is_convolution = op in _CONVOLUTIONS or op == "QLinearConv"
    data, weights = _FACTORS.get(node.node.op, (0, 1))
    inputs = node.node.read
    if not (is_convolution or op in _PRODUCTS or op in _INTEGERS) or len(inputs) <= weights:
        return None
    is_grouped = node.main is not None and node.main.attributes.get("group", 1) != 1
    if is_grouped and inputs[data].dtype != "float":
        return None
    return mlas_kernels((inputs[data].dtype, inputs[weights].dtype), cpu, convolution=is_convolution)


def _sme_eligibility(node: NodeFacts, op: str) -> Eligibility | None:
    """Return whether MLAS runs a product with an SME kernel, with the reason; None if the node is no product."""
    types = node.facts.dtype or "unknown"
    if node.node.op == _DYNAMIC:
        reason = "needs SME2 and constant, symmetric weights"
        return Eligibility(SmeSupport.UNKNOWN, Form.PRODUCT, types, reason, "qgemm_kleidiai.cpp", tried=False)
    if op in _INTEGERS:
        form = Form.CONVOLUTION if "Conv" in op else Form.PRODUCT
        reason = "MLAS multiplies integers with NEON kernels"
        return Eligibility(SmeSupport.NOT_ELIGIBLE, form, types, reason, "qgemm.cpp, MlasGemmBatch", tried=False)
    if op in _CONVOLUTIONS and node.main is not None:
        return _convolution_eligibility(node, node.main, types)
    if op in _PRODUCTS and types == "float":
        reason = "MLAS runs fp32 matrix products with KleidiAI"
        return Eligibility(SmeSupport.ELIGIBLE, Form.PRODUCT, types, reason, _GEMM, tried=False)
    if node.facts.cost is None or not node.facts.cost.macs:
        return None
    return Eligibility(SmeSupport.UNKNOWN, Form.PRODUCT, f"{op}, {types}", "no known rule", None, tried=False)


def _convolution_eligibility(node_facts: NodeFacts, node: OnnxNode, types: str) -> Eligibility:
    form = Form.CONVOLUTION if node.attributes.get("group", 1) == 1 else Form.DEPTHWISE
    shape, taps = node_facts.facts.shape or (), node_facts.filter[2:]
    if form is Form.DEPTHWISE or types != "float":
        reason = "grouped" if form is Form.DEPTHWISE else f"in {types}"
        text = f"MLAS runs fp32 convolutions without groups with KleidiAI; this one is {reason}"
        return Eligibility(SmeSupport.NOT_ELIGIBLE, form, types, text, _PACKED, tried=False)
    if len(shape) == _IMAGE and shape[0] == 1 and taps and min(taps) >= _LEAST_TAPS:
        text = "MLAS runs fp32 convolutions with batch 1 and filters of at least 3 x 3 with KleidiAI"
        return Eligibility(SmeSupport.ELIGIBLE, form, types, text, _PACKED, tried=False)
    text = "batch 1 and filters of at least 3 x 3 are supported; others depend on the release"
    return Eligibility(SmeSupport.UNKNOWN, form, types, text, _PACKED, tried=False)
