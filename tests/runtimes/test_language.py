"""Language models of three exporters: what is called, what is known of it, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

import opscope
from installed import needs_executorch, needs_litert, needs_onnxruntime
from opscope.api import Settings, profile
from opscope.bundle.manifest import PlannedInput
from opscope.core.errors import TraceFormatError, UsageError
from opscope.experiment.inputs import make_inputs, parse_input
from opscope.experiment.protocol import AS_IT_IS, OUTPUTS, Job
from opscope.experiment.target_names import parse_target
from opscope.program.phases import Phase, PhaseKind
from opscope.program.structure.dtypes import program_type
from opscope.program.structure.plan import Dynamism, PlannedTensor
from opscope.runtimes.language import LanguageModel, declared_phases, is_cache, language_model, phase_fill
from opscope.runtimes.litert.composites import ATTENTION, decomposed
from opscope.runtimes.litert.signatures import caches_in_place
from opscope.runtimes.litert.tflite import read_tflite
from opscope.runtimes.onnxruntime.language import onnx_language_model, program_in
from opscope.runtimes.onnxruntime.target import onnxruntime_here
from opscope.runtimes.registry import EXPORTER, runtime_of
from opscope.runtimes.runtime import AskedCalls

MODELS = Path(__file__).parents[1] / "data" / "language"
GENAI = MODELS / "genai-fp32" / "model.onnx"
WEIGHTS = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128) + 64 * 64
"""Of the products of a token: two layers and the head."""
QUICK = Settings(rounds=1, runs=2, warmup=1, ceilings=False, untraced=False)


def _genai_model() -> LanguageModel:
    return onnx_language_model(GENAI)


def test_other_programs_are_no_language_models() -> None:
    """An image model with one input, and one with a mask alone."""
    images = MODELS.parent / "onnx" / "cnn.onnx"
    assert onnx_language_model(images) is None
    assert runtime_of(images).calls(images, []) == []
    assert language_model([], vocabulary=None, context=None, shared=False) is None
    assert declared_phases({}) == {}


def test_a_generative_folder_is_called_as_its_library_does() -> None:
    """With the cache that the configuration allocates, which the graph fills in place."""
    model = _genai_model()
    assert (model.shared, model.context, model.vocabulary, model.width) == (True, 64, 64, 16)
    calls = model.usual()
    assert calls[:2] == ["prefill_32_of_64", "decode_at_10_of_64"]
    assert len(calls) == 1 + 3 * 16
    sizes = {name: value.sizes for name, value in model.named("decode_at_10_of_64")}
    assert sizes["input_ids"] == (1, 1)
    assert sizes["attention_mask"] == (1, 11)
    assert sizes["past_key_values.0.key"] == (1, 2, 64, 16)
    assert model.words("decode_at_10_of_64")[:2] == ["random(0,64)", "ones"]
    assert program_in(GENAI.parent) == GENAI


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The graph of a generative folder and its weights, without the configuration."""
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copyfile(GENAI.with_name(name), tmp_path / name)
    return tmp_path / "model.onnx"


def test_without_its_configuration_a_call_is_given_what_came_before(alone: Path) -> None:
    """As other callers of such a graph do."""
    model = onnx_language_model(alone)
    assert not model.shared
    assert dict(model.named("decode_at_10"))["past_key_values.0.key"].sizes[2] == 10
    assert program_in(alone.parent) is None
    with pytest.raises(UsageError, match="allocates no cache"):
        model.asked(["decode_at_10_of_64"])


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"model": {"vocab_size": -1}}', '{"model": {"decoder": {"head_size": 0, "filename": ""}}}']
)
def test_a_damaged_configuration_is_refused(alone: Path, text: str) -> None:
    """It says how the cache is given: without it another way of calling would be measured, and nobody told."""
    alone.with_name("genai_config.json").write_text(text)
    for ask in (lambda: onnx_language_model(alone), lambda: program_in(alone.parent)):
        with pytest.raises(TraceFormatError, match="not a configuration") as refused:
            ask()
        assert str(refused.value.where).endswith("genai_config.json")
        assert refused.value.hint


PTE = MODELS / "executorch-fp32.pte"


@pytest.mark.parametrize(
    ("program", "text", "problem"),
    [
        (GENAI, "decode", "no phase 'decode'"),
        (GENAI, "prefill", "no phase 'prefill'"),
        (GENAI, "generate_10", "no phase 'generate_10'"),
        (GENAI, "decode_at_64_of_64", "too few places"),
        (GENAI, "prefill_100_of_64", "too few places"),
        (GENAI, "decode_at_10:0", "not a number of calls"),
        (PTE, "decode_at_64", "too few places"),
        (PTE, "prefill_64", "take the tokens"),
        (PTE, "decode_at_1_of_128", "allocates 64"),
    ],
    ids=lambda value: value.suffix if isinstance(value, Path) else value,
)
def test_what_is_no_phase_is_refused(program: Path, text: str, problem: str) -> None:
    """With what to write instead; a program says how many places and tokens it has room for."""
    with pytest.raises(UsageError, match=problem) as refused:
        runtime_of(program).calls(program, [text])
    assert refused.value.hint


def test_signatures_tell_their_phases() -> None:
    """Of LiteRT's converter: how many tokens they take, and how large their cache is."""
    program = MODELS / "litert-fp32.tflite"
    runtime = runtime_of(program)
    assert runtime.phases(program) == {
        "prefill_16": Phase(PhaseKind.PREFILL, 16, 0, 64),
        "decode": Phase(PhaseKind.DECODE, 1, 16, 64),
    }
    assert runtime.calls(program, []) == ["prefill_16", *["decode"] * 16]
    fills = runtime.fills(program, ["prefill_16", "decode"])
    assert {"random(0,64)", "range", "16"} <= set(fills)


def test_composites_are_taken_apart_where_the_delegate_does() -> None:
    """Norms always, attention without it; nothing runs twice."""
    model = read_tflite(MODELS / "litert-fp32.tflite")
    (signature,) = (one for one in model.signatures if one.key == "decode")
    graph, names = model.subgraphs[signature.subgraph], {}
    for delegated in (True, False):
        whole, order = decomposed(model, graph, delegated=delegated)
        names[delegated] = [whole.operators[number].name for number in order]
    assert (names[True].count(ATTENTION), names[False].count(ATTENTION)) == (2, 0)
    assert "STABLEHLO_COMPOSITE" not in names[True]
    assert names[False].count("BATCH_MATMUL") == 4
    assert len(set(order)) == len(order)
    assert whole.operators[: len(graph.operators)] == graph.operators


def tokens(directory: Path) -> dict[str, dict[str, object]]:
    """The ledgers of the analysed variant, by method, as they are written."""
    written = json.loads((directory / "analysis.json").read_text())
    assert written["coverage"][0]["attribution"] == "exact"
    assert len(written["coverage"]) == 1
    return {one["method"]: one for one in written["tokens"]}


def _bytes_by_use(ledger: dict[str, object]) -> dict[tuple[str, str | None], int]:
    return {(one["use"], one["dtype"]): one["bytes"] for one in ledger["bytes"]}


@pytest.mark.parametrize(
    ("program", "dtype", "bits"),
    [
        pytest.param(
            "genai-fp32/model.onnx", "float32", 32, id="onnx-fp32", marks=[needs_onnxruntime, pytest.mark.nightly]
        ),
        pytest.param(
            "genai-int4/model.onnx", "int4", 4, id="onnx-int4", marks=[needs_onnxruntime, pytest.mark.nightly]
        ),
        pytest.param("executorch-fp32.pte", "float32", 32, id="executorch-fp32", marks=needs_executorch),
        pytest.param("executorch-int4.pte", "int4", 4, id="executorch-int4", marks=needs_executorch),
    ],
)
def test_phases_have_ledgers(tmp_path: Path, program: str, dtype: str, bits: int) -> None:
    """Every node is known, weights are those of the products, the cache those of the tokens so far.

    Shapes and the position are those of each call. ExecuTorch's graph writes the token's place beside what it reads.
    """
    settings = msgspec.structs.replace(QUICK, methods=("prefill_8", "decode_at_10", "decode_at_40"))
    profile(str(MODELS / program), settings=settings, out=tmp_path / "out")
    found = tokens(tmp_path / "out")
    assert list(found) == ["prefill_8_of_64", "decode_at_10_of_64", "decode_at_40_of_64"]
    for position in (10, 40):
        one = found[f"decode_at_{position}_of_64"]
        bytes_of = _bytes_by_use(one)
        assert bytes_of["weights", dtype] == pytest.approx(WEIGHTS * bits // 8, rel=0.02)
        places = position + (2 if program.endswith(".pte") else 1)
        assert bytes_of["cache", "float32"] == 2 * places * 2 * 2 * 16 * 4
        assert one["unknown"] == 0
        assert sum(row["share"] for row in one["rows"]) == pytest.approx(1)
        assert {row["layer"] for row in one["rows"]} == {None, 0, 1}
    assert found["prefill_8_of_64"]["macs"] > 7 * found["decode_at_10_of_64"]["macs"]
    assert opscope.validate(tmp_path / "out").failed() == []


@needs_onnxruntime
def test_a_cache_is_written_in_place(tmp_path: Path) -> None:
    """A call leaves as many places as it was given, with its own token's behind those before it."""
    name = "decode_at_10_of_64"
    inputs = [(one, value.sizes, value.dtype.name) for one, value in _genai_model().named(name)]
    arrays = [np.zeros(sizes, dtype) if is_cache(one) else np.ones(sizes, dtype) for one, sizes, dtype in inputs]
    np.savez(tmp_path / "inputs.npz", *arrays)
    planned = tuple(PlannedInput(list(sizes), dtype) for _, sizes, dtype in inputs)
    job = Job(
        str(GENAI),
        AS_IT_IS,
        2,
        7,
        120.0,
        traced=False,
        calls=(name,),
        inputs=planned,
        values=str(tmp_path / "inputs.npz"),
    )
    outcome = onnxruntime_here().execute(job, tmp_path)
    assert outcome.measurement is not None, outcome.failure
    with np.load(tmp_path / OUTPUTS) as file:
        kept = [file[one] for one in file.files if file[one].ndim == 4]
    assert len(kept) == 4
    for one in kept:
        assert one.shape == (1, 2, 64, 16)
        assert one[:, :, 10].any()
        assert not one[:, :, :10].any()
        assert not one[:, :, 11:].any()


@needs_litert
@pytest.mark.parametrize(("name", "dtype", "bits"), [("fp32", "float32", 32), ("int8", "int8", 8), ("int4", "int4", 4)])
def test_litert_phases_have_ledgers(tmp_path: Path, name: str, dtype: str, bits: int) -> None:
    """Every event of the delegate is known, in a signature of any subgraph."""
    profile(str(MODELS / f"litert-{name}.tflite"), settings=QUICK, out=tmp_path / "out")
    found = tokens(tmp_path / "out")
    assert list(found) == ["prefill_16", "decode"]
    assert _bytes_by_use(found["decode"])["weights", dtype] == pytest.approx(WEIGHTS * bits // 8, rel=0.02)
    if name == "int4":  # a scale of 16 bits for each 32 weights
        assert _bytes_by_use(found["decode"])["scales", None] == WEIGHTS // 32 * 2
    for one in found.values():
        assert one["unknown"] == 0
        assert sum(row["share"] for row in one["rows"]) == pytest.approx(1)


@needs_litert
def test_litert_updates_its_cache_where_it_is(tmp_path: Path) -> None:
    """As its generative library binds it: one buffer for what a call is given and leaves, in both runners alike."""
    from opscope.runtimes.litert.c_api import DELEGATE, CompiledModel
    from opscope.runtimes.litert.installed import installed_litert

    program = str(MODELS / "litert-fp32.tflite")
    model = CompiledModel(installed_litert().library, program, DELEGATE, 1, profiled=False)
    call = model.calls()["decode"]
    given = dict(zip(call.inputs, list(call.input_buffers), strict=True))
    same = {name for name, own in zip(call.outputs, list(call.output_buffers), strict=True) if given.get(name) == own}
    assert same == {name for name in call.outputs if is_cache(name)}
    assert len(same) == 4
    hashes = set()
    for target in ("native", "local"):
        done = profile(program, settings=msgspec.structs.replace(QUICK, target=target), out=tmp_path / target)
        hashes |= {one.measurement.output_sha256 for one in done.content.manifest.repetitions if one.measurement}
    assert len(hashes) <= 2  # with acceleration and without
    assert caches_in_place(["tokens", "kv_cache_k_0"], ["logits", "kv_cache_k_0"]) == ["kv_cache_k_0"]
    assert caches_in_place(["h"], ["h"]) == []
    assert caches_in_place(["kv_cache_k_0"], ["kv_cache_k_0"], resized=True) == []


@needs_onnxruntime
def test_a_preflight_reads_a_prompt() -> None:
    """Without a cache, so that it needs no memory for one."""
    (found,) = opscope.preflight(GENAI).methods
    assert "past_key_values.0.key=float32[1,2,0,16]" in opscope.preflight(GENAI.parent).ran
    assert found.name == "main"


def test_a_program_with_a_position_is_called_for_phases() -> None:
    """As export_llm writes it: tokens, and the position of the first; its cache is its own, its kernels Python's."""
    program, runtime = PTE, runtime_of(PTE)
    assert list(dict.fromkeys(runtime.calls(program, []))) == [
        "prefill_32_of_64",
        "decode_at_10_of_64",
        "decode_at_32_of_64",
        "decode_at_63_of_64",
    ]
    calls = runtime.calls(program, ["prefill_8_at_20", "decode_at_40:2"])
    assert calls == ["prefill_8_at_20_of_64", "decode_at_40_of_64", "decode_at_40_of_64"]
    inputs = runtime.inputs(program, calls)
    assert [value.sizes for _, value in inputs["prefill_8_at_20_of_64"]] == [(1, 8), (1,)]
    assert runtime.fills(program, calls) == ["random(0,64)", "20", "random(0,64)", "40"]
    assert runtime.calls(program, ["forward"]) == ["forward"]
    assert [name for name, _ in runtime.inputs(program, ["forward"])["forward"]] == ["", ""]
    with pytest.raises(UsageError, match="only the Python bindings"):
        runtime.target_for(parse_target("native"), [program], lambda _: AskedCalls(calls, ()))


@needs_executorch
def test_a_python_elsewhere_and_a_build_are_left_as_they_are(tmp_path: Path) -> None:
    """Both may have the kernels: what they lack is told when they are asked."""
    program, build = MODELS / "executorch-fp32.pte", tmp_path / "executor_runner"
    build.write_bytes(b"#!/bin/sh\n")
    build.chmod(0o755)
    for name in ("ssh:board?python=python3", f"runner:{build}"):
        found = EXPORTER.target_for(parse_target(name), [program], lambda _: AskedCalls(("decode_at_1_of_64",), ()))
        assert found.describe().kind == name.partition(":")[0]


@needs_executorch
def test_a_model_that_is_yet_to_be_exported_gets_the_usual_target(tmp_path: Path) -> None:
    """It is a file, and no program."""
    (tmp_path / "mine.py").write_text("def build():\n    return None\n")
    for name in ("local", "auto"):
        assert EXPORTER.target_for(parse_target(name), [tmp_path / "mine.py"], lambda _: AskedCalls((), ()))


def test_positions_of_a_prompt_begin_behind_the_tokens_before_it() -> None:
    """As a range that is written so, unless the position of the first token alone is asked for."""
    several = PlannedTensor(program_type(4), (1, 4), (0, 1), Dynamism.STATIC, 0, planned=False, name="", external=False)
    alone = msgspec.structs.replace(several, sizes=(1,))
    phase = Phase(PhaseKind.PREFILL, 4, 20)
    assert phase_fill("position_ids", several, phase) == "range(20)"
    assert phase_fill("position_ids", several, msgspec.structs.replace(phase, position=0)) == "range"
    assert phase_fill("input_pos", alone, phase) == "20"
    made = make_inputs([several], [parse_input("range(20)")], 0)
    assert made.arrays[0].tolist() == [[20, 21, 22, 23]]
    small = msgspec.structs.replace(several, dtype=program_type(1))
    with pytest.raises(UsageError, match="not of type int8"):
        make_inputs([small], [parse_input("range(125)")], 0)
