"""What an operator is, by its name: XNNPACK's own names, the runtime's kernels, ATen's forms, and traps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.program.taxonomy import FRAMEWORK, KINDS, UNKNOWN, Category, classify

# The texts that xnn_operator_type_to_string and its relatives can return in the library of ExecuTorch 1.5.1
# (x86-64 wheel): every string that they refer to.
OPERATORS = (Path(__file__).parent / "data" / "xnnpack_operators.txt").read_text("utf-8").splitlines()
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
    """Padding is no addition, an address neither: names are looked up whole."""
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


@pytest.mark.parametrize("name", ["Method::execute", "Method::init", "DELEGATE_CALL", "OPERATOR_CALL", "MOVE_CALL"])
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


@pytest.mark.timeout(5)
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
    """And known to be so at once: a damaged or hostile trace does not stop the analysis."""
    assert classify(name) == UNKNOWN


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
        [name for each in KINDS for name in each.aten.split()],
    ):
        assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("name", ["Squared Difference (ND)", "Bitwise And (ND)", "Bankers Rounding (NC)"])
def test_names_that_span_lines_of_the_table_are_found(name):
    """How the table is wrapped is of no importance."""
    assert classify(name).category is Category.ELEMENTWISE
