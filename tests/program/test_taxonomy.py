"""What an operator is, by its name: XNNPACK's own names, the runtime's kernels, ATen's forms, and traps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.program.operators.kinds import KINDS, Category
from opscope.program.operators.taxonomy import FRAMEWORK, UNKNOWN, classify, classify_node

# The texts that xnn_operator_type_to_string and its relatives can return in the library of ExecuTorch 1.5.1
# (x86-64 wheel): every string that they refer to.
OPERATORS = (Path(__file__).parents[1] / "data" / "xnnpack_operators.txt").read_text("utf-8").splitlines()
# Operators of ExecuTorch's portable, optimised, quantised, Llama, Cadence and Cortex-M kernels and of its runtime, from
# the lists in its repository (functions.yaml, optimized.yaml, quantized.yaml, operators.yaml and others) at cff6f4dd.
KERNELS = (Path(__file__).parents[1] / "data" / "executorch_operators.txt").read_text("utf-8").splitlines()
# ATen's operators that torch 2.13.0 marks as core; what is exported is lowered to these.
CORE = (Path(__file__).parents[1] / "data" / "core_aten_operators.txt").read_text("utf-8").splitlines()
# Shaders that the Vulkan delegate can run: every NAME in backends/vulkan/runtime/graph/ops/glsl/*.yaml at cff6f4dd.
SHADERS = (Path(__file__).parents[1] / "data" / "vulkan_shaders.txt").read_text("utf-8").splitlines()
# The algorithms that may stand behind an operator.
ALGORITHMS = ["GEMM", "IGEMM", "DWConv", "SPMM", "VMulCAddC", "Conv2D HWC2CHW", "Subconv2D", "Reduce", "Reduce2"]
BELONGS = {
    Category.CONVOLUTION: "Convolution, Deconvolution",
    Category.GEMM: "Fully Connected, Dynamic Fully Connected, Batch Matrix Multiply",
    Category.DATA_MOVEMENT: """Transpose, Depth To Space, Space To Depth, Pack LH, Static Reshape, Static Expand Dims,
        Fuse Dims, Split Dims, Copy, Slice, Constant Pad, Convert""",
    Category.ELEMENTWISE: """Add, Subtract, Multiply, Divide, Maximum, Minimum, Modulus, Power, ATan2, Copy Sign,
        Squared Difference, Binary Elementwise, Shift Left, Shift Right Arithmetic, Shift Right Logical, Bitwise And,
        Bitwise Or, Bitwise Xor, Clamp, Sigmoid, TanH, HardSwish, LeakyReLU, GELU, ApproxGELU, ELU, PReLU, Abs, Negate,
        Square, Square Root, Reciprocal Square Root, Exp, Log, Floor, Ceiling, Bankders Rounding, Sine, Cosine, Sign,
        Cube Root, Bitwise Not, Count Leading Zeros, Population Count, Unary Elementwise, Invalid Unary Op,
        Invalid Binary Op""",
    Category.OTHER: """Average Pooling, Max Pooling, ArgMax Pooling, Unpooling, Normalize, Softmax, Mean, Sum,
        Reduce Max, Reduce Min, Mean Squared, Resize Bilinear, RoPE""",
}


def plain(name: str) -> str:
    """An XNNPACK name without layout and types."""
    return name.partition(" (")[0]


def kind(name: str) -> str:
    """The lower level of a name."""
    return classify(name).kind


def test_the_list_of_operators_is_complete():
    """The fixture has every operator of the library, each once."""
    assert len(OPERATORS) == len(set(OPERATORS)) == 172


@pytest.mark.parametrize("ending", ["", " #1", " #12"])
def test_every_xnnpack_operator_is_classified(ending):
    """With and without the number that tells operators of one name apart."""
    assert [name for name in OPERATORS if classify(name + ending) == UNKNOWN] == []


@pytest.mark.parametrize("category", Category, ids=lambda category: category.name.lower())
def test_every_xnnpack_operator_is_in_its_category(category):
    """The names of a category are those that belong there, no more and no fewer."""
    expected = {" ".join(name.split()) for name in BELONGS[category].split(",")}
    known = [name for name in OPERATORS if classify(name) != UNKNOWN]
    found = {plain(name) for name in known if classify(name).category is category}
    assert found == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_does_not_change_the_category(algorithm):
    """Only a depthwise convolution is of another kind than its operator, and even that is a convolution."""
    changed = [
        name
        for name in OPERATORS
        if classify(f"{name} {algorithm} #1").category is not classify(f"{name} #1").category and "(" in name
    ]
    assert changed == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Convolution (NHWC, F32) IGEMM #3", "convolution"),
        ("Convolution (NHWC, PF32) IGEMM #3", "convolution"),
        ("Convolution (NHWC, F32) DWConv #1", "depthwise"),
        ("Convolution (NHWC, QC8) DWConv #11", "depthwise"),
        ("Deconvolution (NHWC, F32) Subconv2D #1", "deconvolution"),
        ("Deconvolution (NC, QS8, QC8W) #1", "deconvolution"),
        ("Batch Matrix Multiply (NC, F32) GEMM #1", "matmul"),
        ("Softmax (NC, F32) #1", "softmax"),
        ("Transpose (ND, X32) #2", "layout"),
        ("Static Reshape (NC) #1", "reshape"),
        ("Copy (NC, X32) #1", "copy"),
        ("Constant Pad (ND, X8) #1", "pad"),
        ("Convert (NC, F32, QDU8) #1", "quantisation"),
        ("Mean (ND) Reduce2 #1", "reduction"),
        ("Average Pooling (NHWC, F32) Pixelwise Average Pooling #1", "pooling"),
        ("ArgMax Pooling (NHWC, F32) #1", "pooling"),
        ("RoPE (NTHC, F32) #1", "rotary"),
    ],
)
def test_kinds_of_xnnpack_operators(name, expected):
    """The lower level."""
    assert kind(name) == expected


def test_a_pointwise_convolution_runs_as_a_matrix_multiplication():
    """XNNPACK records a 1x1 convolution as Fully Connected, and that is what ran."""
    assert classify("Fully Connected (NC, F32) GEMM #1") == (Category.GEMM, "linear")


def test_fused_int8_unaries_are_elementwise():
    """A chain of unary operators that became one lookup table has a name that sounds like an error."""
    assert classify("Invalid Unary Op #1") == (Category.ELEMENTWISE, "unary")


@pytest.mark.parametrize(
    "name",
    ["padding", "address", "native_call_address.out", "aten::padding", "Padding (NC) #1", "Address (ND) #1"],
)
def test_a_name_inside_another_word_means_nothing(name):
    """Padding is not an addition, an address neither: names are looked up whole."""
    assert classify(name) == UNKNOWN


@pytest.mark.parametrize(
    ("name", "inside", "expected"),
    [
        ("Deconvolution (NHWC, F32) #1", "convolution", "deconvolution"),
        ("Softmax (NC, F32) #1", "max", "softmax"),
        ("Squared Difference (ND) #1", "square", "arithmetic"),
        ("native_call_addmm.out", "add", "linear"),
        ("native_call_log_softmax.out", "log", "softmax"),
        ("native_call_max_pool2d_with_indices.out", "max", "pooling"),
        ("native_call_constant_pad_nd.out", "pad", "pad"),
        ("native_call_argmax.out", "max", "reduction"),
        ("native_call_masked_fill.Scalar_out", "fill", "gather"),
        ("native_call_logical_and.out", "log", "arithmetic"),
    ],
)
def test_a_longer_name_wins_over_a_name_inside_it(name, inside, expected):
    """The kind is that of the whole name, also where a part of it has one."""
    assert inside in name.lower()
    assert kind(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "add.out",
        "add_",
        "native_call_add.out",
        "native_call_add.Scalar_out",
        "aten::add",
        "aten::add.Tensor",
        "aten::add_.Tensor",
        "aten.add.Tensor",
        "aten_add_default",
    ],
)
def test_forms_of_one_aten_operator(name):
    """With or without namespace, overload, native_call_ and the underscore of in-place operators."""
    assert classify(name) == (Category.ELEMENTWISE, "arithmetic")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::permute_copy", "layout"),
        ("native_call_permute_copy.out", "layout"),
        ("aten_view_copy_default", "reshape"),
        ("native_call_squeeze_copy.dims_out", "reshape"),
        ("native_call_slice_copy.Tensor_out", "slice"),
        ("native_call_split_with_sizes_copy.out", "slice"),
        ("native_call_copy.out", "copy"),
        ("aten::copy_", "copy"),
        ("native_call_clone.out", "copy"),
        ("native_call_alias_copy.out", "copy"),
    ],
)
def test_copying_variants_are_what_they_copy(name, expected):
    """The ending _copy says only that the result has memory of its own; copy itself keeps its name."""
    assert classify(name) == (Category.DATA_MOVEMENT, expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("native_call__softmax.out", "softmax"),
        ("aten::_log_softmax", "softmax"),
        ("native_call__to_dim_order_copy.out", "layout"),
        ("native_call__empty_dim_order.out", "copy"),
        ("native_call_native_layer_norm.out", "normalisation"),
        ("aten::_native_batch_norm_legit_no_training", "normalisation"),
        ("quantized_decomposed::dequantize_per_tensor.out", "quantisation"),
        ("native_call_quantized_decomposed::quantize_per_channel.out", "quantisation"),
        ("native_call_llama::custom_sdpa.out", "attention"),
        ("native_call_convolution.out", "convolution"),
        ("native_call_bmm.out", "matmul"),
        ("native_call_mm.out", "linear"),
        ("aten::t", "layout"),
    ],
)
def test_kinds_of_kernels(name, expected):
    """Private names, other namespaces, and names that a kernel library adds."""
    assert kind(name) == expected


@pytest.mark.parametrize("name", ["Method::execute", "Method::init", "OPERATOR_CALL", "MOVE_CALL"])
def test_the_runtime_itself_is_no_operator(name):
    """Its time is a kind of its own."""
    assert classify(name) == FRAMEWORK


@pytest.mark.parametrize(
    "name",
    ["", " ", "#1", " #1", "(NC, F32) #1", "((((", "Convolution(", "aten::", "native_call_", ".out", "\0", "卷积", "_"],
)
def test_what_is_no_name_is_unknown(name):
    """Remains of names, other scripts and control characters."""
    assert classify(name) == UNKNOWN


@pytest.mark.parametrize(
    "name",
    [
        "a" * 10_000,
        "_" * 10_000 + "!",
        "_" * 5_000 + "." + "a" * 5_000 + "!",
        "aten::" * 1_600 + "!",
        "add" + "_copy" * 2_000 + "!",
        "x (" * 3_333,
        "#1 " * 3_333,
        "x (y) " + " " * 10_000 + "#",
        "\0" * 10_000,
    ],
    ids=["letters", "underscores", "overload", "namespaces", "copies", "brackets", "numbers", "blanks", "zeros"],
)
def test_a_name_of_ten_thousand_characters_is_unknown(name):
    """And known to be so at once, by CPU time: a damaged or hostile trace does not stop the analysis."""
    before = time.process_time()
    assert classify(name) == UNKNOWN
    assert time.process_time() - before < 5


def test_types_may_be_long_without_changing_the_operator():
    """What stands in brackets is not looked at."""
    assert kind(f"Convolution ({'F32, ' * 2_000}) IGEMM #1") == "convolution"


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_has_a_class(name):
    """Some category, some kind; never an exception."""
    found = classify(name)
    assert found == UNKNOWN or found.kind in {each.name for each in KINDS}


def test_no_name_stands_in_two_kinds():
    """The tables contradict each other nowhere."""
    for names in (
        [name.strip() for each in KINDS for name in each.xnnpack.split(",") if name.strip()],
        [name.strip() for each in KINDS for name in each.events.split(",") if name.strip()],
        [name for each in KINDS for name in each.aten.split()],
        [name for each in KINDS for name in each.coreml.split()],
        [name for each in KINDS for name in each.vulkan.split()],
    ):
        assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("name", ["Squared Difference (ND)", "Bitwise And (ND)", "Bankers Rounding (NC)"])
def test_names_that_span_lines_of_the_table_are_found(name):
    """How the table is wrapped is of no importance."""
    assert classify(name).category is Category.ELEMENTWISE


@pytest.mark.parametrize("prefix", ["", "native_call_"], ids=["program", "trace"])
def test_every_kernel_of_executorch_is_classified(prefix):
    """As the program names them, and as traces do, without namespace."""
    assert len(KERNELS) > 350
    shown = {name: prefix + name.rpartition("::")[2] if prefix else name for name in KERNELS}
    assert [name for name, text in shown.items() if classify(text) == UNKNOWN] == []


def test_every_operator_of_the_core_opset_is_classified():
    """In the forms of the program, of the exporter's graph and of its nodes."""
    assert len(CORE) == len(set(CORE)) > 150
    forms = (str, lambda name: name.replace("::", "."), _node_name)
    assert [form(name) for name in CORE for form in forms if classify(form(name)) == UNKNOWN] == []


def _node_name(name):
    """How the exporter calls the third node of an operator: ``aten_add_tensor_2``."""
    operator, _, overload = name.partition(".")
    return f"{operator.replace('::', '_')}_{overload or 'default'}_2".lower()


@pytest.mark.parametrize(
    "form",
    [
        '{{"kernel_name": "{}", "operator_id": 3, "dispatch_id": 7}}',
        '{{"operator": {{"name": "nobody.knows", "args": []}}, "kernel_name": "{}_half", "operator_id": 3}}',
        "{}_texture3d_half",
        "{}_float_12",
    ],
    ids=["plain", "with operator", "first releases", "numbered"],
)
def test_every_shader_of_vulkan_is_classified(form):
    """As the delegate records them, with what stands behind the operator: storage, number type, number of the call."""
    assert len(SHADERS) == len(set(SHADERS)) == 356
    assert [name for name in SHADERS if classify(form.format(name)) == UNKNOWN] == []


@pytest.mark.parametrize(
    ("shader", "expected"),
    [
        ("conv2d_pw_tiled", "convolution"),
        ("conv2d_dw_output_tile_3x3_clamp", "depthwise"),
        ("conv2d_dw_prepack_weights", "layout"),
        ("conv2d_im2col", "layout"),
        ("conv2d_q8csw_linear_tiled_texture3d_buffer_buffer", "convolution"),
        ("q8ta_conv2d_transposed", "deconvolution"),
        ("clone_image_to_buffer", "layout"),
        ("clone", "copy"),
        ("sdpa_kv_cache_update", "copy"),
        ("sdpa_attn_weights_softmax", "softmax"),
        ("linear_dW", "training"),
        ("binary_floor_divide_texture3d", "arithmetic"),
        ("pow_scalar_buffer", "arithmetic"),
        ("view_convert_buffer", "quantisation"),
    ],
)
def test_the_longest_beginning_of_a_shader_decides(shader, expected):
    """Whole words only: a convolution's weights that are packed are not convolution."""
    assert kind(f'{{"kernel_name": "{shader}", "operator_id": 1}}') == expected


def test_a_shader_that_nobody_knows_is_what_it_was_called_for():
    """The operator that the delegate records beside it; without one it is unknown."""
    known = '{"operator": {"name": "aten.where.self", "args": []}, "kernel_name": "brand_new", "operator_id": 1}'
    assert kind(known) == "arithmetic"
    assert classify('{"kernel_name": "brand_new", "operator_id": 1}') == UNKNOWN


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # examples/qualcomm/util_scripts/README.md of ExecuTorch shows these.
        ("aten_relu_default_3:OpId_60 (cycles)", "activation"),
        ("aten_add_tensor:OpId_61 (cycles)", "arithmetic"),
        ("aten_permute_copy_default_4:OpId_63 (cycles)", "layout"),
        ("aten_mean_dim:OpId_65 (cycles)", "reduction"),
        ("aten_view_copy_default:OpId_67 (cycles)", "reshape"),
        ("aten_linear_default:OpId_70 (cycles)", "linear"),
        ("aten_hardtanh_default:OpId_72 (cycles)", "activation"),
        ("aten_pow_tensor_scalar_12:OpId_5", "arithmetic"),
        ("aten_max_pool2d_with_indices_default:OpId_8 (cycles)", "pooling"),
        ("Input OpId_2 (cycles)", "copy"),
        ("Accelerator (execute) time (cycles)", "compiled region"),
        ("RPC (execute) time (us)", "compiled region"),
        ("Number of HVX threads used (count)", "framework"),
    ],
)
def test_events_of_qnn(name, expected):
    """Nodes carry the exporter's names, with overload and number; the others are totals of the whole graph."""
    assert kind(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("op_12_cast_fp16:ios17.cast", "quantisation"),
        ("input_3:ios16.conv", "convolution"),
        ("var_8:conv_transpose", "deconvolution"),
        ("out:ios17.expand_dims", "reshape"),
        ("out:ios18.constexpr_blockwise_shift_scale", "quantisation"),
        ("out:scaled_dot_product_attention", "attention"),
        ("out:real_div", "arithmetic"),
        ("out:reduce_mean", "reduction"),
    ],
)
def test_events_of_core_ml(name, expected):
    """The output and the operator of MIL, with the release that it is of."""
    assert kind(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ETVK_COPY_INPUTS", "copy"),
        ("ETVK_COMPUTE_GRAPH_EXECUTE", "compiled region"),
        ("DELEGATE_CALL", "compiled region"),
        ("ETVK_RESIZE", "framework"),
        ("VGF_DISPATCH_AND_WAIT", "compiled region"),
        ("VGF_COPY_OUTPUTS", "copy"),
        ("+EthosUBackend::execute()NPU", "compiled region"),
        ("+EthosUBackend::execute()handles.input.memcpy()", "copy"),
        ("EthosUBackend::execute()", "framework"),
    ],
)
def test_phases_that_delegates_record(name, expected):
    """Vulkan, Arm's VGF and Ethos-U: what they copy, what they run as one block, what is only bookkeeping."""
    assert kind(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "aten_address_default:OpId_1 (cycles)",
        "aten_padding_tensor",
        "out:padding",
        "out:ios17.address",
        "address_half",
        "padding_texture3d_float_3",
        "convolve_half",
        "ETVK_COPY_INPUTS_AND_MORE",
        "conv2d",
        "reduce_mean",
        "aten_tensor",
        ":OpId_1",
    ],
)
def test_traps_in_names_of_other_delegates(name):
    """A name inside another word means nothing, and a form of one delegate is not a form of another."""
    expected = {"conv2d": "convolution"}
    assert kind(name) == expected.get(name, "unknown")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cadence::quantized_conv2d_nhwc_depthwise_asym8sxsym8s_asym8s.per_tensor_out", "depthwise"),
        ("cadence::quantized_fully_connected_asym8uxasym8u_asym8u.per_tensor_out", "linear"),
        ("cadence::quantized_relu_asym8s_asym8s.per_tensor_out", "activation"),
        ("cortex_m::quantized_transpose_conv2d.out", "deconvolution"),
        ("native_call_quantized_batch_matmul.out", "matmul"),
    ],
)
def test_kernels_for_microcontrollers(name, expected):
    """Those of Cadence and of Cortex-M, whatever number types their names carry."""
    assert kind(name) == expected


def test_nodes_of_payloads_have_a_category() -> None:
    """One that is in no table has none."""
    assert classify_node("Conv2d").category is Category.CONVOLUTION
    assert classify_node("NoSuchNode") == UNKNOWN
