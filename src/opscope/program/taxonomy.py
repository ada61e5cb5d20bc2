"""What an operator is: five categories, and finer kinds below them, from its name or from the program's node.

Names are looked up whole, never searched for parts, so ``address`` is no addition and ``padding`` no normalisation.
XNNPACK's names are those of ``xnn_operator_type_to_string`` in the library of ExecuTorch 1.5.1; ATen's are those of
the core ATen opset with ExecuTorch's ``dim_order`` variants.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import NamedTuple


class Category(str, enum.Enum):
    """The upper level: what a report splits end-to-end latency into."""

    CONVOLUTION = "Convolution"
    GEMM = "GEMM"
    DATA_MOVEMENT = "Data Movement"
    ELEMENTWISE = "Elementwise"
    OTHER = "Other"


class OperatorClass(NamedTuple):
    """Category and kind of an operator."""

    category: Category
    kind: str


class Kind(NamedTuple):
    """One kind of the lower level, and the names that are of this kind.

    Attributes:
        name: of the kind.
        category: of the upper level.
        xnnpack: XNNPACK's names without types, separated by commas; an algorithm behind the name is more specific.
        aten: ATen's names without namespace, overload and ``_copy``, separated by blanks.
        nodes: kinds of nodes of an XNNPACK payload, separated by blanks.
    """

    name: str
    category: Category
    xnnpack: str = ""
    aten: str = ""
    nodes: str = ""


KINDS: tuple[Kind, ...] = (
    Kind(
        "convolution",
        Category.CONVOLUTION,
        xnnpack="Convolution",
        aten="convolution conv1d conv2d conv3d",
        nodes="Conv2d",
    ),
    Kind(
        "depthwise",
        Category.CONVOLUTION,
        xnnpack="Convolution DWConv",
        nodes="DepthwiseConv2d",
    ),
    Kind(
        "deconvolution",
        Category.CONVOLUTION,
        xnnpack="Deconvolution",
        aten="conv_transpose1d conv_transpose2d conv_transpose3d",
        nodes="ConvTranspose2d",
    ),
    Kind(
        "linear",
        Category.GEMM,
        xnnpack="Fully Connected, Dynamic Fully Connected",
        aten="linear addmm mm addmv",
        nodes="FullyConnected",
    ),
    Kind(
        "matmul",
        Category.GEMM,
        xnnpack="Batch Matrix Multiply",
        aten="bmm matmul baddbmm",
        nodes="BatchMatrixMultiply",
    ),
    Kind(
        "attention",
        Category.GEMM,
        aten="scaled_dot_product_attention sdpa_with_kv_cache custom_sdpa",
        nodes="ScaledDotProductAttention",
    ),
    Kind(
        "layout",
        Category.DATA_MOVEMENT,
        xnnpack="Transpose, Depth To Space, Space To Depth, Pack LH",
        aten="permute transpose t pixel_shuffle pixel_unshuffle channel_shuffle to_dim_order",
        nodes="StaticTranspose",
    ),
    Kind(
        "reshape",
        Category.DATA_MOVEMENT,
        xnnpack="Static Reshape, Static Expand Dims, Fuse Dims, Split Dims",
        aten="view reshape squeeze unsqueeze flatten expand as_strided unfold",
        nodes="StaticReshape",
    ),
    Kind(
        "copy",
        Category.DATA_MOVEMENT,
        xnnpack="Copy",
        aten="""
        copy clone alias detach lift_fresh clone_dim_order contiguous fill full full_like zeros ones empty
        zeros_like ones_like empty_like empty_dim_order full_dim_order arange scalar_tensor
        """,
        nodes="Copy",
    ),
    Kind(
        "slice",
        Category.DATA_MOVEMENT,
        xnnpack="Slice",
        aten="slice select narrow split split_with_sizes chunk unbind diagonal",
        nodes="StaticSlice",
    ),
    Kind(
        "concatenate",
        Category.DATA_MOVEMENT,
        xnnpack="Concatenate",
        aten="cat stack repeat repeat_interleave tile roll flip",
        nodes="Concatenate2 Concatenate3 Concatenate4 Concatenate5",
    ),
    Kind(
        "pad",
        Category.DATA_MOVEMENT,
        xnnpack="Constant Pad",
        aten="""
        pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d
        """,
        nodes="StaticConstantPad",
    ),
    Kind(
        "gather",
        Category.DATA_MOVEMENT,
        aten="""
        gather index index_select index_put scatter scatter_add select_scatter slice_scatter embedding
        masked_fill masked_select masked_scatter
        """,
    ),
    Kind(
        "quantisation",
        Category.DATA_MOVEMENT,
        xnnpack="Convert",
        aten="""
        quantize_per_tensor dequantize_per_tensor quantize_per_channel dequantize_per_channel
        quantize_per_token dequantize_per_token choose_qparams choose_qparams_per_token_asymmetric to
        """,
        nodes="Convert",
    ),
    Kind(
        "activation",
        Category.ELEMENTWISE,
        xnnpack="Clamp, Sigmoid, TanH, HardSwish, LeakyReLU, GELU, ApproxGELU, ELU, PReLU",
        aten="""
        relu relu6 clamp clip sigmoid tanh hardswish hardsigmoid hardtanh leaky_relu gelu elu prelu silu
        mish softplus threshold glu logit
        """,
        nodes="Clamp Sigmoid Tanh Hardswish LeakyReLU Gelu ELU PReLU",
    ),
    Kind(
        "arithmetic",
        Category.ELEMENTWISE,
        xnnpack="""
        Add, Subtract, Multiply, Divide, Maximum, Minimum, Modulus, Power, ATan2, Copy Sign,
        Squared Difference, Binary Elementwise, Invalid Binary Op, Shift Left, Shift Right Arithmetic,
        Shift Right Logical, Bitwise And, Bitwise Or, Bitwise Xor
        """,
        aten="""
        add sub rsub mul div maximum minimum fmod remainder pow floor_divide where eq ne lt le gt ge
        logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 addcmul addcdiv lerp
        bitwise_left_shift bitwise_right_shift
        """,
        nodes="Add Subtract Multiply Div Minimum Maximum",
    ),
    Kind(
        "unary",
        Category.ELEMENTWISE,
        xnnpack="""
        Abs, Negate, Square, Square Root, Reciprocal Square Root, Exp, Log, Floor, Ceiling, Bankers
        Rounding, Bankders Rounding, Sine, Cosine, Sign, Cube Root, Bitwise Not, Count Leading Zeros,
        Population Count, Unary Elementwise, Invalid Unary Op
        """,
        aten="""
        abs neg square sqrt rsqrt exp expm1 log log2 log10 log1p floor ceil round trunc sin cos tan asin
        acos atan sinh cosh asinh acosh atanh erf sign reciprocal logical_not bitwise_not isnan isinf
        """,
        nodes="Abs Negate Square SquareRoot ReciprocalSquareRoot Exp Log Floor Ceiling Sin Cos",
    ),
    Kind(
        "pooling",
        Category.OTHER,
        xnnpack="Average Pooling, Max Pooling, ArgMax Pooling, Global Average Pooling, Unpooling",
        aten="""
        avg_pool1d avg_pool2d avg_pool3d max_pool2d max_pool2d_with_indices max_pool3d_with_indices
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
        """,
        nodes="AvgPooling2d MaxPooling2d ArgMaxPooling2d GlobalAvgPooling2d",
    ),
    Kind(
        "normalisation",
        Category.OTHER,
        xnnpack="Normalize",
        aten="""
        native_layer_norm layer_norm native_group_norm group_norm native_batch_norm batch_norm rms_norm
        native_batch_norm_legit native_batch_norm_legit_no_training instance_norm
        """,
    ),
    Kind(
        "softmax",
        Category.OTHER,
        xnnpack="Softmax",
        aten="softmax log_softmax safe_softmax",
        nodes="Softmax",
    ),
    Kind(
        "reduction",
        Category.OTHER,
        xnnpack="Mean, Sum, Reduce Max, Reduce Min, Mean Squared",
        aten="""
        mean sum amax amin max min argmax argmin prod any all var std cumsum topk sort norm
        linalg_vector_norm
        """,
    ),
    Kind(
        "resize",
        Category.OTHER,
        xnnpack="Resize Bilinear",
        aten="upsample_bilinear2d upsample_nearest2d upsample_bicubic2d grid_sampler_2d",
        nodes="StaticResizeBilinear2D",
    ),
    Kind(
        "rotary",
        Category.OTHER,
        xnnpack="RoPE",
    ),
    Kind(
        "framework",
        Category.OTHER,
        aten="""
        Method::execute Method::init Program::load_method DELEGATE_CALL OPERATOR_CALL MOVE_CALL JF_CALL
        FREE_CALL
        """,
    ),
)

UNKNOWN = OperatorClass(Category.OTHER, "unknown")
FRAMEWORK = OperatorClass(Category.OTHER, "framework")

_XNNPACK = {" ".join(name.split()): kind for kind in KINDS for name in kind.xnnpack.split(",")}
_ATEN = {name: kind for kind in KINDS for name in kind.aten.split()}
_NODES = {name: kind for kind in KINDS for name in kind.nodes.split()}

_DELEGATE_FORM = re.compile(r"^(?P<operator>[^(#]+?)(?: \([^)#]*\)(?: (?P<algorithm>[^#]+?))?)?(?: #\d+)?\Z")
_NAMESPACES = ("aten.", "aten_", "dim_order_ops.", "dim_order_ops_", "quantized_decomposed.", "quantized_decomposed_")


@lru_cache(maxsize=4096)
def classify(name: str) -> OperatorClass:
    """Category and kind of an operator by its recorded name; ``UNKNOWN`` when the name is in no table.

    Accepts XNNPACK's event names (``Convolution (NHWC, F32) IGEMM #3``), ExecuTorch's kernel events
    (``native_call_add.out``) and ATen's own (``aten::add.Tensor``, ``aten.add.Tensor``, ``aten_add_default``).
    """
    kind = _delegate_kind(name) or _aten_kind(name)
    return OperatorClass(kind.category, kind.name) if kind else UNKNOWN


def classify_node(kind: str) -> OperatorClass:
    """Category and kind of a node of an XNNPACK payload; ``UNKNOWN`` for one that is in no table."""
    found = _NODES.get(kind)
    return OperatorClass(found.category, found.name) if found else UNKNOWN


def _delegate_kind(name: str) -> Kind | None:
    form = _DELEGATE_FORM.match(name)
    if not form:
        return None
    with_algorithm = f"{form['operator']} {form['algorithm']}"
    return _XNNPACK.get(with_algorithm) or _XNNPACK.get(form["operator"])


def _aten_kind(name: str) -> Kind | None:
    return _ATEN.get(name) or _ATEN.get(aten_operator(name))


def aten_operator(name: str) -> str:
    """The operator in a name of ATen, without kernel prefix, namespace, overload and ``_copy``."""
    text = name.removeprefix("native_call_").rpartition("::")[2]
    for namespace in _NAMESPACES:
        text = text.removeprefix(namespace)
    text, default, _ = text.partition(".")[0].partition("_default")
    return text.strip("_").removesuffix("_copy").strip("_") if text or default else ""
