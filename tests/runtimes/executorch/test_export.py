"""Exports with the real exporter: what they write, how they are checked, and what is said when they fail."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import jsonschema
import msgspec
import numpy as np
import pytest
from rich.console import Console

from etrecords import GRAPH
from exports import record_of, served
from opscope.analysis.preflight.exported import ExportRecord
from opscope.api import Settings, export, profile
from opscope.core.errors import ExportError, MissingDependencyError, NotFoundError, OpscopeError, UsageError
from opscope.core.files import sha256_of
from opscope.reports.document.terminal import terminal_document
from opscope.reports.exporting import export_document
from opscope.runtimes.executorch.etrecord import read_etrecord, slim_etrecord
from opscope.runtimes.executorch.export.checked import checked
from opscope.runtimes.executorch.export.lower import record_written
from opscope.runtimes.executorch.export.protocol import CHECKS, outputs_file
from opscope.runtimes.executorch.export.sources import load
from opscope.runtimes.executorch.program_files import LOOP_CALLS, planned_calls
from opscope.runtimes.exports import Choice, record_of_export
from opscope.runtimes.registry import EXPORTER

pytestmark = [pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]  # torch warns of itself
SUPPORT = Path(__file__).parents[2] / "support"
MODELS = SUPPORT / "failing_models.py"
ATTENTION = SUPPORT / "attention_models.py"


@pytest.mark.parametrize(
    ("model", "dtype", "error", "told", "hint"),
    [
        ("branching", "fp32", ExportError, "if x.sum() > 0", "torch.where"),
        ("ordered", "fp32", ExportError, "self.encoder(x, self.mask)", "is_causal=False"),
        ("unsupported", "fp32", ExportError, "torch.linalg.svdvals(y)", "wrapper"),
        ("mixed", "fp16", ExportError, "aten.mm", "the input's type"),
        ("misfit", "fp32", UsageError, "forward(float32 [1, 5])", "number, shapes and types"),
        ("alone", "fp32", UsageError, "Sequential has no example inputs", "return Sequential(...)"),
        ("Wide", "fp32", UsageError, "Wide needs arguments: width", "def build(): return Wide(width=...)"),
        ("MODULE", "fp32", UsageError, "Linear has no example inputs", "def build(): return MODULE"),
        ("listed", "fp32", UsageError, "must be a tuple, got Tensor", "(x,)"),
        ("function", "fp32", UsageError, "must be a torch.nn.Module", "give a module"),
        ("checkpoint", "fp32", NotFoundError, "weights/missing.pt", "checkpoint"),
        ("needs_more", "fp32", MissingDependencyError, "a_package_that_nobody_has", "pip install"),
        ("raising", "fp32", ExportError, "the configuration has no depth", "Python shell"),
        ("activation", "dynamic-int8", ExportError, "quantised dynamically", "--dtype int8"),
        ("skipping", "int8", UsageError, "no submodule '2x'", "did you mean 2"),
        ("uncalibrated", "int8", UsageError, "tuple of 1 input ", "generate inputs like the examples"),
        ("shapes", "fp32", ExportError, "dynamic_shapes", "one by one"),
        ("NUMBER", "fp32", UsageError, "must be callable, got int", "function without arguments"),
        ("linaer", "fp32", NotFoundError, "has no 'linaer'", "did you mean linear"),
    ],
)
def test_a_failure_names_its_place_and_what_to_try(
    tmp_path: Path, model: str, dtype: str, error: type[OpscopeError], told: str, hint: str
) -> None:
    """The step, the operator and the line where they can be told, the user's own words else."""
    with pytest.raises(error) as raised:
        served(tmp_path, f"{MODELS}:{model}", dtype)
    assert told in str(raised.value)
    assert hint in (raised.value.hint or "")
    assert not list(tmp_path.glob("*.pte"))


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("import torch\nimport a_package_that_nobody_has\n", MissingDependencyError, "is needed and not installed"),
        ("def build(:\n", UsageError, "syntax error in line 1"),
        ("LAYERS = {}['depth']\n", UsageError, "KeyError"),
    ],
)
def test_a_file_that_does_not_import_is_the_users_to_correct(
    tmp_path: Path, text: str, error: type[OpscopeError], told: str
) -> None:
    """The error names the file and the line."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(error, match=told) as raised:
        served(tmp_path / "out", str(file))
    assert "mine.py" in str(raised.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [("no_such_module:build", "no module 'no_such_module'"), ("executorch:resnet1001", "no model 'resnet1001'")],
)
def test_a_module_that_is_not_there(tmp_path: Path, source: str, told: str) -> None:
    """It is told from one whose own import is missing."""
    with pytest.raises(NotFoundError, match=told):
        served(tmp_path, source)


@pytest.mark.parametrize(
    ("model", "dtype", "backend", "share"),
    [
        ("linear", "fp32", "xnnpack", 1.0),
        ("linear", "fp16", "xnnpack", 1.0),
        ("rows", "fp32", "portable", 0.0),
        ("linear", "dynamic-int8", "xnnpack", 1.0),
    ],
)
def test_an_export_agrees_with_pytorch_and_says_what_was_delegated(
    tmp_path: Path, model: str, dtype: str, backend: str, share: float
) -> None:
    """In every number type, on either backend."""
    record = record_of(tmp_path, f"{MODELS}:{model}", dtype, backend)
    (method,) = record.methods
    assert method.agrees
    rows = 5 if model == "rows" else 1  # of sizes that differ, the upper bound counts
    assert method.delegation.macs == rows * (8 * 8 + 8 * 4)
    assert method.delegation.share == share
    assert (method.graph is None) == (dtype != "dynamic-int8")
    assert (method.method.quantised > 0) == (dtype == "dynamic-int8")
    assert record_of_export(tmp_path / record.program.name) == record
    assert not (tmp_path / ".checks").exists()


def test_sizes_that_differ_are_named_in_the_graph(tmp_path: Path) -> None:
    """graph.json has a text where a size is not fixed, and the module and the line that a node came from."""
    served(tmp_path, f"{MODELS}:rows", backend="portable")
    graph = json.loads((tmp_path / "graph.json").read_text())
    (nodes,) = [method["nodes"] for method in graph["methods"]]
    first = next(node for node in nodes if node["op"] == "call_function")
    assert first["target"] == "aten.linear.default"
    assert isinstance(first["outputs"][0]["shape"][0], str)
    assert first["outputs"][0]["shape"][1] == 8
    assert first["module_type"].endswith("Linear")
    assert any("weight" in name for name in first["inputs"])


def test_executorchs_own_interface_is_taken() -> None:
    """A class with get_eager_model and get_example_inputs, in evaluation mode."""
    model = load(f"{MODELS}:Example")
    assert tuple(model.inputs[0].shape) == (1, 8)
    assert not model.module.training


@pytest.mark.nightly  # exports
def test_a_submodule_can_stay_in_fp32(tmp_path: Path) -> None:
    """Of two layers one is quantised; calibration inputs are the author's."""
    record = record_of(tmp_path, f"{MODELS}:partly", "int8")
    method = record.methods[0].method
    assert (method.calibration, method.calibration_made) == (3, False)
    graph = json.loads((tmp_path / "graph.json").read_text())
    weights = [
        node
        for node in graph["methods"][0]["nodes"]
        if "dequantize_per_channel" in node["target"] and node["outputs"][0]["shape"] in ([8, 8], [4, 8])
    ]
    assert [node["outputs"][0]["shape"] for node in weights] == [[8, 8]]


def test_a_program_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    """The error says by how much, and nothing claims that the export is done."""
    done = served(tmp_path, f"{MODELS}:wrong")
    with pytest.raises(ExportError, match="disagrees with the model in PyTorch") as raised:
        checked(EXPORTER, done, "wrong", Choice("fp32"))
    assert "--tolerance" in (raised.value.hint or "")
    assert not (tmp_path / "export.json").exists()


@pytest.mark.nightly  # exports
@pytest.mark.parametrize("model", ["attention", "masked", "keywords"])
def test_models_with_attention_and_with_sizes_without_end_export(tmp_path: Path, model: str) -> None:
    """Their records hold -Infinity and Infinity; layers are known all the same."""
    record = record_of(tmp_path, f"{ATTENTION}:{model}")
    assert record.methods[0].agrees
    assert record.etrecord_problem is None
    nodes = read_etrecord(tmp_path / "m_xnnpack_fp32.etrecord").graphs[0].nodes
    assert all(node.handles for node in nodes if node.target.startswith("aten."))
    assert re.search(rb"[ \[:]-?Infinity", zipfile.ZipFile(tmp_path / "m_xnnpack_fp32.etrecord").read(GRAPH))


@pytest.mark.nightly  # exports
def test_attention_that_is_written_out_leaves_no_masking_to_portable_kernels(tmp_path: Path) -> None:
    """What the finding on masking advises, done: the same numbers, and products, mask and softmax are delegated."""
    stayed, outputs = [], []
    for name in ("masked", "written_out"):
        done = served(tmp_path / name, f"{ATTENTION}:{name}")
        with np.load(tmp_path / name / CHECKS / outputs_file("program", 0)) as found:
            outputs.append(found["arr_0"])
        portable = checked(EXPORTER, done, name, Choice("fp32")).methods[0].delegation.portable
        stayed.append({group.operator.removeprefix("aten::") for group in portable})
    assert stayed[0] > {"eq.Scalar_out", "logical_not.out", "any.out", "full_like.out", "where.self_out"}
    assert stayed[1] == {"expand_copy.out"}
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)


def test_a_record_that_does_not_read_back_costs_no_export(tmp_path: Path) -> None:
    """The program is there and checked; that layers will not be known is said, with the reason."""
    done = served(tmp_path, f"{ATTENTION}:masked")
    assert done.etrecord
    done.etrecord.write_bytes(done.etrecord.read_bytes()[:-200])
    record = checked(EXPORTER, done, "masked", Choice("fp32"))
    assert record.etrecord_problem == "not an ETRecord: the member ETRECORD_V0 is missing"
    assert record_of_export(done.program) == record
    printed = Console(file=io.StringIO(), width=200)
    printed.print(terminal_document(export_document(record, "out")))
    told = printed.file.getvalue()
    assert "layers and source lines will be unknown" in told
    assert "reads back" not in told


def test_a_record_that_torch_cannot_write_costs_no_export(tmp_path: Path) -> None:
    """The reason stands in the export; half a file does not."""

    def fail_as_torch_does(path: str) -> None:
        Path(path).write_bytes(b"PK")
        raise RuntimeError("no serializer for class Enum\nmore")

    unwritable = mock.Mock()
    unwritable.get_etrecord.return_value.save.side_effect = fail_as_torch_does
    problem = record_written(unwritable, tmp_path / "m.etrecord")
    assert problem == "ExecuTorch could not write the .etrecord: RuntimeError: no serializer for class Enum"
    assert not list(tmp_path.iterdir())


def test_the_template_exports_as_it_is_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Init --model, then export: names, schema, summary; a second export needs leave to replace the first."""
    opscope = [sys.executable, "-m", "opscope"]
    subprocess.run([*opscope, "init", "--model", "my_net"], cwd=tmp_path, check=True, capture_output=True)
    command = [*opscope, "export", "my_net", "--backend", "portable", "--out", "out", "--json", "record.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stem = "my_net_portable_fp32"
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["export.json", "export.log", "graph.json", f"{stem}.etrecord", f"{stem}.pte"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opscope-models", "out", "record.json"]
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    jsonschema.validate(record, msgspec.json.schema(ExportRecord))
    assert json.loads((tmp_path / "record.json").read_text()) == record
    assert set(record["versions"]) >= {"torch", "executorch"}
    assert "delegated: nothing" in done.stdout
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 8
    assert "--overwrite" in again.stderr
    program = tmp_path / "out" / f"{stem}.pte"
    assert record_of_export(program) is not None
    program.write_bytes(program.read_bytes() + b"\0")
    assert record_of_export(program) is None, "files are matched by hash, not by name"


def test_the_weights_stay_out_of_the_record_where_that_is_asked(tmp_path: Path) -> None:
    """The record of the export tells the file that is there, which reads like the full one and needs no more room."""
    source = f"{MODELS}:linear"
    full = served(tmp_path / "full", source)
    slim = export(source, out=tmp_path / "slim", slim_record=True).record
    etrecord = tmp_path / "slim" / slim.etrecord.name
    assert (slim.etrecord.sha256, slim.etrecord.size) == (sha256_of(etrecord), etrecord.stat().st_size)
    assert record_of_export(tmp_path / "slim" / slim.program.name) == slim
    assert etrecord.read_bytes() == slim_etrecord(etrecord)
    assert [graph.nodes for graph in read_etrecord(etrecord).graphs] == [
        graph.nodes for graph in read_etrecord(full.etrecord).graphs
    ]


def test_a_process_that_is_ended_leaves_nothing_but_its_log(tmp_path: Path) -> None:
    """The error says by which signal and at which step; the log lies beside the directory that does not appear."""
    (tmp_path / "killed.py").write_text("import os\n\ndef build():\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(ExportError, match="killed by signal 9 while building the model"):
        export(str(tmp_path / "killed.py"), out=tmp_path / "out")
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}  # of the user's own module
    assert left == {"killed.py", "out-export.log"}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of one layer with its record, exported once."""
    directory = tmp_path_factory.mktemp("decoder")
    (directory / "one_layer.py").write_text(
        "from opscope.runtimes.executorch.export.models import decoder\n\n"
        "def build():\n    return decoder.build(layers=1)\n"
    )
    record = record_of(directory, str(directory / "one_layer.py"))
    return directory / record.program.name


@pytest.mark.nightly  # exports
def test_the_decode_loop_generates_what_pytorch_generates(decoder: Path) -> None:
    """Prefill, then ten tokens, each from the keys and values that the call before it gave."""
    import torch
    from executorch.extension.pybindings import _C as runtime  # noqa: N811

    from opscope.runtimes.executorch.export.models.decoder import PROMPT, build

    model = build(layers=1)
    program = runtime._load_for_executorch(str(decoder))
    calls = {name: method.module for name, method in model.methods.items()}
    tokens: dict[str, list[int]] = {"program": [], "eager": []}
    for who, found in tokens.items():

        def call(method: str, *inputs: torch.Tensor, who: str = who) -> list[torch.Tensor]:
            return program.run_method(method, inputs) if who == "program" else list(calls[method](*inputs))

        with torch.no_grad():
            scores, keys, values = call("prefill", *model.inputs)
            for place in range(PROMPT, PROMPT + 10):
                found.append(int(scores.argmax()))
                scores, keys, values = call("decode", torch.tensor([[found[-1]]]), torch.tensor([place]), keys, values)
    assert tokens["program"] == tokens["eager"]
    assert len(set(tokens["eager"])) > 1


def test_both_methods_run_and_are_reported(decoder: Path, tmp_path: Path) -> None:
    """One prefill and a loop of decodes in every round; each method has latency, operators and tokens per second."""
    assert planned_calls(decoder, ()) == ["prefill", *["decode"] * LOOP_CALLS]
    settings = Settings(rounds=1, runs=2, warmup=1, ceilings=False)
    done = profile(str(decoder), settings=settings, out=tmp_path / "out")
    analysis = done.content.shown
    prefill, decode = analysis.methods
    assert (prefill.calls, decode.calls) == (2, 2 * LOOP_CALLS)
    assert [one.phase and one.phase.tokens for one in (prefill, decode)] == [16, 1]
    assert decode.latency.source == "untraced"
    assert decode.traced is not None
    assert decode.tokens_per_second == pytest.approx(1e9 / decode.latency.median_ns)
    assert {operator.method for operator in analysis.operators} == {"prefill", "decode"}
    assert (done.content.manifest.model.dtype, done.content.manifest.model.name) == ("fp32", decoder.stem)
    assert (tmp_path / "out" / "model" / "export.json").exists()


def test_half_precision_norms_of_wide_rows_need_single_precision(tmp_path: Path) -> None:
    """The runtime's kernel is wrong from 256 numbers on; the export notices, and names the wrapper that helps."""
    (tmp_path / "norms.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def plain():\n    return nn.Sequential(nn.LayerNorm(256)), (torch.randn(1, 8, 256),)\n"
    )
    with pytest.raises(ExportError) as raised:
        record_of(tmp_path / "plain", f"{tmp_path / 'norms.py'}:plain", "fp16")
    assert "NormInFp32" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("segmenter", [(1, 1, 256, 256)]),
        ("style_transfer", [(1, 3, 256, 256)]),
        ("style_transfer_delegated", [(1, 3, 256, 256)]),
        ("bert_mini", [(1, 128, 256), (1, 256)]),
    ],
)
def test_registered_models_have_the_outputs_of_what_they_are_built_after(
    name: str, shapes: list[tuple[int, ...]]
) -> None:
    """A mask or an image as large as the input; states and a pooled state of a text."""
    import torch

    from opscope.runtimes.executorch.export.registry import build

    model = build(name)
    outputs = model.module(*model.inputs)
    assert [tuple(output.shape) for output in ([outputs] if len(shapes) == 1 else outputs)] == shapes
    if name == "segmenter":
        kinds = {type(module).__name__ for module in model.module.modules()}
        assert {"Conv2d", "ConvTranspose2d", "ChannelNorm", "LeakyReLU", "SpatialAttention"} <= kinds
    if name == "style_transfer_delegated":
        published = build("style_transfer")
        assert torch.equal(published.inputs[0], model.inputs[0])
        assert torch.allclose(outputs, published.module(*model.inputs), atol=1e-4), "written otherwise, and the same"


@pytest.mark.nightly  # transformers is not in the everyday environment
def test_an_architecture_of_transformers_is_made_small() -> None:
    """Two layers of width 64 with random weights, tensors in and out; unknown names get near ones."""
    pytest.importorskip("transformers", reason="needs pip install 'opscope[transformers]'")
    model = load("transformers:GPT2Config")
    assert sum(weights.numel() for weights in model.module.parameters()) < 200_000
    assert tuple(model.module(*model.inputs)[0].shape) == (1, 32, 64)
    with pytest.raises(NotFoundError) as raised:
        load("transformers:BertConfi")
    assert "did you mean BertConfig" in (raised.value.hint or "")


@pytest.mark.nightly  # exports
@pytest.mark.parametrize(
    ("name", "inputs", "largest"),
    [
        ("SegformerConfig", [(1, 3, 64, 64)], 4_000_000),  # heads and widths differ from stage to stage
        ("SwinConfig", [(1, 3, 64, 64)], 21_000_000),  # likewise, and windows must fit into the image
        ("YolosConfig", [(1, 3, 64, 64)], 200_000),  # both sides of the image are given
        ("ResNetConfig", [(1, 3, 64, 64)], 15_000_000),  # has no size of an image
        ("DetrConfig", [(1, 3, 64, 64)], 1_000_000),  # its backbone would be timm's
        ("CLIPConfig", [(1, 32), (1, 3, 64, 64)], 500_000),  # two configurations inside, two inputs
        ("SiglipTextConfig", [(1, 32)], 300_000),  # AutoModel does not know it
        ("PatchTSTConfig", [(1, 32, 1)], 500_000),  # a series of numbers
        ("MobileViTConfig", [(1, 3, 64, 64)], 30_000_000),  # batch norms are scaled, or it ends at 1e-40
    ],
)
def test_architectures_of_every_kind_are_made_small(name: str, inputs: list[tuple[int, ...]], largest: int) -> None:
    """They build, and run on inputs that fit; numbers do not vanish where kernels would round to zero."""
    pytest.importorskip("transformers", reason="needs pip install 'opscope[transformers]'")
    model = load(f"transformers:{name}")
    assert [tuple(value.shape) for value in model.inputs] == inputs
    assert sum(weights.numel() for weights in model.module.parameters()) < largest
    outputs = model.module(*model.inputs)
    assert all(bool(value.isfinite().all()) for value in outputs)
    assert name != "MobileViTConfig" or all(float(value.abs().max()) > 1e-2 for value in outputs)


def test_patterns_compute_the_same() -> None:
    """Enlarging by a transposed convolution, a norm in single precision, values recorded once."""
    import torch
    from torch import nn

    from opscope.runtimes.executorch.export.patterns import NearestTwice, NormInFp32, recorded_values

    image = torch.randn(1, 3, 4, 5)
    np.testing.assert_array_equal(
        NearestTwice(3)(image).numpy(), nn.functional.interpolate(image, scale_factor=2.0, mode="nearest").numpy()
    )
    norm, x = nn.LayerNorm(7), torch.randn(2, 7)
    nn.init.normal_(norm.weight)
    half = NormInFp32(norm).half()(x.half()).float()
    torch.testing.assert_close(half, norm.float()(x), atol=5e-3, rtol=5e-3)
    double = nn.Upsample(scale_factor=2)
    recorded = recorded_values(double, lambda: double(image))
    torch.testing.assert_close(recorded(torch.zeros(1, 3, 4, 5)), double(image))
