"""Traces of accelerators by their figures: compiled regions, values in other units, waiting, calls of several kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opscope.api import AnalysisResult, analyze
from opscope.core.table.events import DelegateValue
from opscope.runtimes.executorch.etdump import EtdumpReader
from traces import Node, encode

WILD = Path(__file__).parents[1] / "data" / "wild"
REGION = "compiled region"


def of(name: str, **options: Path) -> AnalysisResult:
    """Analyse one of the files."""
    return analyze(WILD / name, **options)


def kinds_of(analysis: AnalysisResult) -> dict[str, tuple[str, str, float]]:
    """Kind, backend and time in µs of each operator, by its name."""
    return {
        row.name: (row.kind, row.backend, round((row.time_ns or 0) / 1000, 1))
        for row in analysis.operators
        if row.kind != "framework"
    }


def rules_of(analysis: AnalysisResult) -> list[str]:
    """Names of the rules that found something."""
    return [finding.rule for finding in analysis.findings]


@pytest.mark.parametrize(
    ("file", "latency_us", "operators"),
    [
        ("qnn.etdp", 4004, {"DELEGATE_CALL": (REGION, "QNN", 3998.0)}),
        (
            "vulkan_spans.etdp",
            2140,
            {
                "ETVK_COPY_INPUTS": ("copy", "Vulkan", 50.0),
                "ETVK_COMPUTE_GRAPH_EXECUTE": (REGION, "Vulkan", 2000.0),
                "ETVK_COPY_OUTPUTS": ("copy", "Vulkan", 50.0),
            },
        ),
        (
            "ethos.etdp",
            915,
            {
                "+EthosUBackend::execute()handles.input.memcpy()": ("copy", "Ethos-U", 10.0),
                "+EthosUBackend::execute()NPU": (REGION, "Ethos-U", 879.0),
                "+EthosUBackend::execute()handles.output.move()": ("copy", "Ethos-U", 4.0),
            },
        ),
    ],
)
def test_spans_of_a_delegate_lie_in_its_call(
    file: str, latency_us: float, operators: dict[str, tuple[str, str, float]]
) -> None:
    """The call is as long as it was, its spans are in each other, and nothing is called portable."""
    analysis = of(file)
    assert analysis.headline_ns == latency_us * 1000
    assert kinds_of(analysis) == operators
    assert sum(row.time_ns for row in analysis.operators) == pytest.approx(analysis.headline_ns)
    assert rules_of(analysis)[0] == "compiled_regions"
    assert "nothing_delegated" not in rules_of(analysis)


def test_values_that_are_no_nanoseconds_stand_apart() -> None:
    """Microseconds, cycles and counts of QNN, each with its unit and mean; the file tells most units by name."""
    figures = {figure.name: (figure.unit, figure.mean, figure.reported) for figure in of("qnn.etdp").delegate_values}
    assert figures["Number of HVX threads used (count)"] == ("count", 4.0, 12)
    assert figures["RPC (execute) time (us)"] == ("us", 3500.0, 12)
    assert figures["Accelerator (execute) time"] == ("cycles", 2_600_000.0, 12)
    assert figures["aten_linear_default:OpId_21 (cycles)"][0] == "cycles"
    assert len(figures) == 11


def call(*rows: tuple[str, int, int], name: str = "DELEGATE_CALL") -> bytes:
    """Encode an inference of 1,000 ns with a call of 900 ns; rows have a start behind the call's and a duration."""
    children = [Node(text, duration, delegate=True, start=start) for text, start, duration in rows]
    return encode([("Execute", [Node("Method::execute", 1000, children=[Node(name, 900, children=children)])])] * 3)


@pytest.mark.parametrize(
    ("rows", "self_times", "values"),
    [
        # spans in spans, in spans
        ((("c", 20, 10), ("b", 10, 100), ("d", 200, 50), ("a", 0, 800)), {"a": 650, "b": 90, "c": 10, "d": 50}, []),
        # two spans that overlap without lying in each other: the later one is no part of the split
        ((("a", 0, 500), ("b", 400, 400)), {"a": 500}, [("b", 400, "ns")]),
        # one row on another clock beside two on the call's
        ((("a", 0, 500), ("b", 5_000_000, 10), ("c", 500, 100)), {"a": 500, "c": 100}, [("b", 10, "ns")]),
        # all on another clock, and the call is too short for them
        ((("a", 5_000_000, 800), ("b", 6_000_000, 700)), {"DELEGATE_CALL": 900}, [("a", 800, "ns"), ("b", 700, "ns")]),
        # durations alone that fit into the call
        ((("a", 5_000_000, 300), ("b", 6_000_000, 200)), {"a": 300, "b": 200}, []),
        # one odd value among times
        ((("a", 0, 300), ("Spilled (bytes)", 0, 4096)), {"a": 300}, [("Spilled (bytes)", 4096, "bytes")]),
        ((("a", 0, 300), ("b", 400, -7)), {"a": 300}, [("b", -7, "ns")]),
    ],
)
def test_rows_of_a_delegate_are_settled_one_by_one(
    rows: tuple[tuple[str, int, int], ...], self_times: dict[str, int], values: list[tuple[str, int, str]]
) -> None:
    """No odd row costs the file, nor the other rows of its call."""
    table = EtdumpReader().read(call(*rows), Path("trace.etdump"))
    (spent,) = table.self_times
    assert {each.name: each.self_time // 3 for key, each in spent.items() if key.position is not None} == self_times
    (side,) = table.side
    assert [(value.name, value.value, value.unit) for value in side.values] == values * 3
    assert all(isinstance(value, DelegateValue) for value in side.values)


@pytest.mark.parametrize("name", ["conv_lin", "one_of_two"])
def test_methods_are_told_by_what_their_delegates_report(name: str) -> None:
    """Both methods are one call of a delegate each; the operators within it are a convolution, or a linear layer."""
    analysis = of(f"{name}.etdp", program=WILD / f"{name}.pte")
    kinds = {(row.method, row.kind) for row in analysis.operators if row.kind in {"convolution", "linear"}}
    assert kinds == {("text", "linear")} | ({("vision", "convolution")} if name == "conv_lin" else set())
    assert {row.attribution for row in analysis.operators if row.kind != "framework"} == {"exact"}


def test_a_method_that_may_be_either_of_two_costs_the_layers_alone(tmp_path: Path) -> None:
    """Without operators in the trace both methods fit: both are named, and the times are there."""
    node = Node("Method::execute", 1000, children=[Node("DELEGATE_CALL", 900)])
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(encode([("Execute", [node])] * 4))
    analysis = analyze(trace, program=WILD / "conv_lin.pte")
    (warning,) = (one for one in analysis.trace.warnings if one.code == "undecided_method")
    assert "'text' or 'vision'" in warning.message or "'vision' or 'text'" in warning.message
    assert analysis.headline_ns == 1000


def benchmark(node: str) -> str:
    """A report in which one node has another type."""
    return (WILD / "litert25_gpu.txt").read_text().replace("TfLiteGpuDelegateV2", node)


@pytest.mark.parametrize(
    ("node", "backend"),
    [
        ("TfLiteGpuDelegateV2", "GPU"),
        ("TfLiteNnapiDelegate", "NNAPI"),
        ("TfLiteCoreMlDelegate", "Core ML"),
        ("TfLiteQnnDelegate", "QNN"),
        ("TfLiteHexagonDelegate", "Hexagon"),
        ("TfLiteXNNPackDelegate", "XNNPACK"),
        ("DISPATCH_OP", "NPU"),
        ("edgetpu-custom-op", "Edge TPU"),
    ],
)
def test_a_node_of_a_delegate_is_a_compiled_region(node: str, backend: str, tmp_path: Path) -> None:
    """It runs 4.2 of 4.554 ms, and what lies outside is named."""
    (tmp_path / "report.txt").write_text(benchmark(node))
    analysis = analyze(tmp_path / "report.txt")
    assert kinds_of(analysis)[node] == (REGION, backend, 4200.0)
    (finding,) = (one for one in analysis.findings if one.rule == "compiled_regions")
    assert f"{backend} takes 92.2 %" in finding.title
    assert "0.354 of 4.554 ms lie outside" in finding.title
    assert "CUSTOM_OP (0.300 ms)" in finding.evidence
    assert "nothing_delegated" not in rules_of(analysis)


def test_what_nnapi_left_is_named() -> None:
    """4.8 of 105.3 ms."""
    finding = of("nnapi24.txt").findings[0]
    assert finding.title == "NNAPI takes 95.5 % of the latency in compiled regions; 4.753 of 105.310 ms lie outside"
    assert "TRANSPOSE (2.418 ms), STRIDED_SLICE (2.086 ms), RESIZE_NEAREST_NEIGHBOR (0.247 ms)" in finding.evidence


@pytest.mark.parametrize(
    ("operator", "node", "provider"),
    [
        ("QNN_1234_0", "QNNExecutionProvider_QNN_1234_0_0", "QNNExecutionProvider"),
        (
            "TRTKernel_main_5_0",
            "TensorrtExecutionProvider_TRTKernel_main_5_0_0",
            "TensorrtExecutionProvider",
        ),
        ("CoreML_77_1", "CoreMLExecutionProvider_CoreML_77_1_1", "CoreMLExecutionProvider"),
        ("OpenVINO-EP-subgraph_1", "OpenVINOExecutionProvider_OpenVINO-EP-subgraph_1_0", "OpenVINOExecutionProvider"),
        ("DmlFusedNode_0_0", "DmlFusedNode_0_0", "DmlExecutionProvider"),
    ],
)
def test_a_subgraph_of_a_provider_is_a_compiled_region(operator: str, node: str, provider: str, tmp_path: Path) -> None:
    """It stands for what the provider compiled, whatever the provider calls it."""
    text = (WILD / "ort_qnn.json").read_text().replace("QNNExecutionProvider_QNN_1234_0_0", node)
    text = text.replace("QNN_1234_0", operator).replace("QNNExecutionProvider", provider)
    (tmp_path / "profile.json").write_text(text)
    analysis = analyze(tmp_path / "profile.json")
    regions = [row for row in analysis.operators if row.kind == REGION]
    assert [(row.backend, row.time_ns) for row in regions] == [(provider, 2_600_000.0)]
    assert rules_of(analysis)[0] == "compiled_regions"
    assert "QuantizeLinear" in analysis.findings[0].evidence


def test_a_custom_operator_of_the_cpu_is_none(tmp_path: Path) -> None:
    """Its name says nothing about who compiled it."""
    text = (WILD / "ort_qnn.json").read_text().replace("QNNExecutionProvider", "CPUExecutionProvider")
    (tmp_path / "profile.json").write_text(text)
    assert REGION not in {row.kind for row in analyze(tmp_path / "profile.json").operators}


def test_waiting_for_a_device_is_called_so_and_saves_nothing() -> None:
    """The copy back waits for all that was started before: 40 of 40.2 ms."""
    analysis = of("ort_dml.json")
    assert kinds_of(analysis)["MemcpyToHost: Memcpy_token_9"] == (
        "waiting for the device",
        "DmlExecutionProvider",
        40_000.0,
    )
    finding = analysis.findings[0]
    assert (finding.rule, finding.saving_ns) == ("device_wait", None)
    assert "data_movement" not in rules_of(analysis)


def test_kernels_of_a_device_are_the_split() -> None:
    """The run waits for kernels of 9, 60 and 80 ms, which the nodes started in 0.1 ms."""
    analysis = of("ort_cuda_async.json")
    device = {name: row for name, row in kinds_of(analysis).items() if name.endswith("on the device")}
    assert device == {
        "Conv: /unet/conv_in, on the device": ("convolution", "CUDAExecutionProvider", 9_000.0),
        "MatMul: /unet/attn, on the device": ("matmul", "CUDAExecutionProvider", 60_000.0),
        "Conv: /unet/conv_out, on the device": ("convolution", "CUDAExecutionProvider", 80_000.0),
    }
    assert analysis.headline_ns == 200_000_000
    assert sum(row.time_ns for row in analysis.operators) == pytest.approx(analysis.headline_ns)


def test_kernels_lie_in_the_node_that_waits_for_them(tmp_path: Path) -> None:
    """Copying back waits for 39 of its 40 ms for two kernels, and the rest of it is its own."""
    rows = json.loads((WILD / "ort_dml.json").read_text())
    starts = [row["ts"] for row in rows if row["name"] == "model_run"]
    template = {"cat": "Kernel", "pid": 1, "tid": 9, "ph": "X"}
    for start in starts:
        for operator, node, duration in (("Conv", "conv1", 24_000), ("MatMul", "mm", 15_000)):
            arguments = {"op_name": operator, "parent": f"/m/{node}_kernel_time"}
            rows.append({**template, "name": "kernel", "ts": start + 100, "dur": duration, "args": arguments})
    (tmp_path / "profile.json").write_text(json.dumps(rows))
    found = kinds_of(analyze(tmp_path / "profile.json"))
    assert found["Conv: /m/conv1, on the device"] == ("convolution", "DmlExecutionProvider", 24_000.0)
    assert found["MatMul: /m/mm, on the device"] == ("matmul", "DmlExecutionProvider", 15_000.0)
    assert found["MemcpyToHost: Memcpy_token_9"][2] == 1_000.0


def test_runs_of_other_input_shapes_are_other_calls(tmp_path: Path) -> None:
    """Every second run has another batch, and takes hardly longer."""
    rows = json.loads((WILD / "ort_qnn.json").read_text())
    runs = 0
    for row in rows:
        if row["cat"] == "Node" and runs % 2:
            row["args"]["input_type_shape"] = [{"float": [8, 200]}]
        runs += row["name"] == "model_run"
    (tmp_path / "profile.json").write_text(json.dumps(rows))
    analysis = analyze(tmp_path / "profile.json")
    assert {row.method: row.calls for row in analysis.methods} == {"calls · input 1x200": 6, "calls · input 8x200": 6}


def test_operators_of_two_delegates_have_their_own_backends() -> None:
    """XNNPACK's are named as only XNNPACK names them."""
    table = EtdumpReader().read(call(("Clamp (NC) #1", 0, 300), ("ETVK_EXECUTE", 300, 500)), Path("trace.etdump"))
    (spent,) = table.self_times
    backends = {each.name: each.backend for key, each in spent.items() if key.position is not None}
    assert backends == {"Clamp (NC) #1": "XNNPACK", "ETVK_EXECUTE": "Vulkan"}


def test_without_kernels_of_the_device_the_rest_is_waiting(tmp_path: Path) -> None:
    """The profile does not tell what the device did, and that is said."""
    rows = [row for row in json.loads((WILD / "ort_cuda_async.json").read_text()) if row["cat"] != "Kernel"]
    (tmp_path / "profile.json").write_text(json.dumps(rows))
    messages = [one.message for one in analyze(tmp_path / "profile.json").trace.warnings]
    assert any("the rest is waiting for the device" in message for message in messages)


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        ("llm.etdp", {"calls · long": (3, 400_000), "calls · short": (60, 20_095)}),
        ("ort_genai.json", {"calls · long": (3, 6_442), "calls · short": (60, 217)}),
        ("bundled.etdp", {"calls · bundled input 0": (10, 2_000), "calls · bundled input 1": (10, 4_000)}),
    ],
)
def test_calls_of_several_kinds_are_never_averaged(file: str, kinds: dict[str, tuple[int, int]]) -> None:
    """Each kind has its calls and its median, none of them is taken for warm-up, and its operators are its own."""
    analysis = of(file)
    found = {row.method: (row.calls, round(row.latency.median_ns / 1000)) for row in analysis.methods}
    assert found == kinds
    assert analysis.trace.warmup == 0
    assert {row.method for row in analysis.operators if row.kind != "framework"} == set(kinds)


@pytest.mark.parametrize(
    ("durations", "why"),
    [
        ([100] * 30 + [400] * 3, "it became slower, once"),
        ([400] * 3 + [100] * 30, "it was slow at first"),
        (([100] * 9 + [400]) * 2, "two interruptions"),
        (([100, 130] * 15), "two modes of one clock"),
    ],
)
def test_one_kind_of_calls_stays_one(durations: list[int], why: str, tmp_path: Path) -> None:
    """Neither warm-up, nor a slow end, nor a few interruptions make calls of another kind."""
    nodes = [
        Node(
            "Method::execute",
            10 * time,
            children=[
                Node("OPERATOR_CALL", 4 * time, 0, children=[Node("native_call_add.out", 4 * time, 0)]),
                Node("OPERATOR_CALL", 4 * time, 1, children=[Node("native_call_mul.out", 4 * time, 1)]),
            ],
        )
        for time in durations
    ]
    (tmp_path / "trace.etdump").write_bytes(encode([("Execute", [node]) for node in nodes]))
    assert analyze(tmp_path / "trace.etdump").methods == [], why


def test_interrupted_calls_are_no_kind_of_their_own(tmp_path: Path) -> None:
    """Five calls take 4 ms longer, all in one operator each, as the scheduler's turns are."""
    nodes = []
    for number in range(40):
        lost = 4_000_000 if number % 8 == 5 else 0
        kernels = [("native_call_add.out", 400_000 + lost), ("native_call_mul.out", 400_000)]
        calls = [
            Node("OPERATOR_CALL", time, place, children=[Node(name, time, place)])
            for place, (name, time) in enumerate(kernels)
        ]
        nodes.append(Node("Method::execute", 900_000 + lost, children=calls))
    (tmp_path / "trace.etdump").write_bytes(encode([("Execute", [node]) for node in nodes]))
    assert analyze(tmp_path / "trace.etdump").methods == []
