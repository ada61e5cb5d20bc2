"""What the program says about a trace: a real export, and traces of it written by hand."""

import msgspec
import pytest

from opscope.analysis.analysis import ProgramInfo, ProgramKnowledge, TraceSource, analyse
from opscope.analysis.operators.attribution import attribute, method_names
from opscope.program.model import ProgramModel
from opscope.program.operators.kinds import Attribution, Category
from opscope.runtimes.registry import read_model
from traces import table as table_of

TOY = """
Method::execute 1000000
  DELEGATE_CALL @0 410000
    Transpose (ND, X32) #1 10000
    Convolution (NHWC, F32) IGEMM #1 100000
    Convolution (NHWC, F32) IGEMM #2 200000
    Transpose (ND, X32) #2 40000
    Transpose (ND, X32) #3 50000
  OPERATOR_CALL @1 200000
    native_call_native_layer_norm.out 190000
  DELEGATE_CALL @2 60000
    Transpose (ND, X32) #1 30000
    Clamp (NC) #1 20000
  OPERATOR_CALL @3 100000
    native_call_mean.out 100000
  DELEGATE_CALL @4 10000
    Fully Connected (NC, F32) GEMM #1 9000
"""


@pytest.fixture
def model(toy_program):
    """The toy network with its record."""
    return read_model(toy_program, toy_program.with_suffix(".etrecord"))


def analysis_of(text, model):
    """The analysis of a trace with its program."""
    table = table_of(text)
    named = table.with_method_names(method_names(table, model))
    known = ProgramKnowledge(ProgramInfo("m.pte", "0", "m.etrecord", "0", verified=False), attribute(named, model))
    return analyse(named, TraceSource("t", "etdump", [("t", "0")]), None, known)


def test_the_method_is_named_by_the_program(model):
    """The trace does not record it; what it calls fits one method only."""
    assert method_names(table_of(TOY), model) == {None: "forward"}


def test_events_lead_to_layers_lines_and_work(model):
    """The second convolution: 64 filters of 3x3x32 at 32x32 positions."""
    row = analysis_of(TOY, model).operators[2]
    assert (row.aten, row.module, row.computes) == ("aten.convolution.default", "body", ("Conv2d",))
    assert (row.attribution, row.macs) == (Attribution.EXACT, 64 * 3 * 3 * 32 * 32 * 32)
    assert row.source.endswith("toy_cnn.py:30")
    assert row.gmacs == pytest.approx((row.macs / 200_999, row.macs / 200_000))


def test_what_the_exporter_fused_is_shown_with_its_producer(model):
    """Batch norm and ReLU of the stem."""
    row = analysis_of(TOY, model).operators[1]
    assert row.fused == ("aten._native_batch_norm_legit_no_training.default", "aten.relu.default")


def test_portable_operators_have_a_layer_and_a_cost_too(model):
    """The layer norm reads and writes 64 channels of 32x32, and reads its two parameters."""
    row = next(row for row in analysis_of(TOY, model).operators if row.kind == "normalisation")
    assert (row.module, row.macs) == ("norm", 0)
    assert row.bytes >= 2 * 64 * 32 * 32 * 4


def test_the_layout_tax_names_the_pair_of_layers(model):
    """The model asks for two permutes itself; two more are added at the borders of the first delegate."""
    tax = analysis_of(TOY, model).layout
    assert [(row.cause, row.time_ns) for row in tax] == [("partitioner", 50_000), ("partitioner", 10_000)]
    assert (tax[1].before, tax[1].after) == (["input of the model"], ["stem.0 (Conv2d)"])
    assert tax[0].after == ["aten::native_layer_norm.out at instruction 1"]


def test_the_module_tree_adds_up(model):
    """What belongs to no module is the framework's; all the rest is below the model itself."""
    found = analysis_of(TOY, model)
    root = found.modules[0]
    framework = sum(row.time_ns for row in found.operators if row.kind == "framework")
    assert (root.path, root.depth) == ("", 0)
    assert root.total_ns + framework == pytest.approx(found.latency.mean_ns)
    assert sum(row.self_ns for row in found.modules) == pytest.approx(root.total_ns)
    stem = next(row for row in found.modules if row.path == "stem")
    assert (stem.self_ns, stem.total_ns, stem.type) == (0, 110_000, "torch.nn.modules.container.Sequential")


def test_lines_of_code_add_up_likewise(model):
    """Every operator of this network has a line."""
    found = analysis_of(TOY, model)
    assert sum(row.time_ns for row in found.sources) == pytest.approx(found.modules[0].total_ns)


def test_delegates_have_a_border(model):
    """DELEGATE_CALL without its operators: 410 - 400, 60 - 50 and 10 - 9 microseconds."""
    rows = analysis_of(TOY, model).delegates
    assert [(row.instruction, row.delegate, row.boundary_ns) for row in rows] == [
        (0, 0, 10_000),
        (2, 1, 10_000),
        (4, 2, 1_000),
    ]
    assert {row.profile for row in rows} == {"native"}


def test_a_pointwise_convolution_is_a_convolution_by_the_program_only(model):
    """Known by name it is a matrix product; here the linear layer is one either way."""
    found = analysis_of(TOY, model)
    assert found.operators[-3].category is Category.GEMM
    assert {row.attribution for row in found.coverage} == {Attribution.EXACT}


def test_events_that_no_replay_foretells_stay_with_the_delegate_or_are_marked(model):
    """An inserted conversion that no instruction set explains: the others are not called exact any more."""
    strange = TOY.replace("    Transpose (ND, X32) #1 30000\n", "    Convert (NC) #1 30000\n")
    found = analysis_of(strange, model)
    rows = [row for row in found.operators if row.instruction == 2 and row.position is not None]
    assert Attribution.EXACT not in {row.attribution for row in rows}
    assert found.delegates[1].problem is not None
    assert found.delegates[0].problem is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("native_call_mean.out", "native_call_add.out"),
        ("OPERATOR_CALL @3", "OPERATOR_CALL @9"),
        ("    Convolution (NHWC, F32) IGEMM #2 200000\n", ""),
        ("Clamp (NC) #1", "Softmax (NC, F32) #1"),
    ],
)
def test_a_trace_of_another_program_is_recognised(old, new, model):
    """By a kernel, an instruction, a number of convolutions, or an operator that no node can be."""
    table = table_of(TOY.replace(old, new)).with_method_names({None: "forward"})
    assert attribute(table, model).conflict is not None


def test_without_a_record_operators_have_shapes_and_costs(toy_program):
    """Modules and lines are not known."""
    row = analysis_of(TOY, read_model(toy_program)).operators[2]
    assert (row.module, row.source, row.computes) == (None, None, ("Conv2d",))
    assert row.macs == 64 * 3 * 3 * 32 * 32 * 32
    assert row.shape == (1, 32, 32, 64)


def test_a_record_of_another_model_is_left_out(model):
    """The sizes of its tensors are not those of the program's layers."""
    record = model.record
    twice = {name: tuple(size * 2 for size in sizes) for name, sizes in record.graphs[0].sizes.items()}
    other = msgspec.structs.replace(record, graphs=(msgspec.structs.replace(record.graphs[0], sizes=twice),))
    found = ProgramModel(model.executable, model.graphs, other)
    assert "different sizes" in found.conflict
    assert found.record is None


def test_a_record_of_other_calls_is_left_out(model):
    """It records a delegate at instruction 1, where the program calls a kernel."""
    call = next(iter(model.record.delegates.values()))
    other = msgspec.structs.replace(model.record, delegates={("forward", 1): call})
    assert "which has none" in ProgramModel(model.executable, model.graphs, other).conflict
