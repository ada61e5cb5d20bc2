"""The table of operators: five categories, finer kinds below them, and the names that are of each kind.

Where the names are from:

- XNNPACK: ``xnn_operator_type_to_string`` in the library of ExecuTorch 1.5.1;
- ATen and the runtime: the core ATen opset with ExecuTorch's ``dim_order`` variants, and the operator lists of
  ExecuTorch's portable, optimised, quantised, Llama, Cadence and Cortex-M kernels (``functions.yaml`` and others);
- Core ML: operators of MIL, see the coremltools reference; the delegate records ``OUTPUT:OPERATOR``
  (``backends/apple/coreml/runtime/sdk/model_event_logger_impl.mm``);
- Vulkan: shaders (``backends/vulkan/runtime/graph/ops/glsl/*.yaml``), recorded by ``VulkanBackend.cpp``;
- events: what else delegates record: Vulkan and VGF phases, Ethos-U (``EthosUBackend.cpp``), and the totals of QNN
  (``QnnProfiler.cpp``), whose nodes carry ATen's names;
- LiteRT: ``BuiltinOperator`` of ``tflite/converter/schema/schema.fbs``, LiteRT 2.3.0;
- OpenVINO: operators of opsets 1 to 16 and types of nodes of its CPU plugin (``cpu_types.cpp``), 2026.4; a ``Subgraph``
  is of elementwise operators, which are compiled together;
- ONNX: operators of opsets up to 28 and the schemas that ONNX Runtime 1.31.1 registers, its NCHWc and NHWC domains
  included; control flow is the framework's, since what it runs are separate nodes.

All of ExecuTorch at commit cff6f4dd. Its delegates for MPS, MediaTek, OpenVINO and Samsung record no events there, that
of NXP numbers without names.

How it is known what an operator is.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Category(str, enum.Enum):
    """Upper level of the classification: what a report splits end-to-end latency into."""

    CONVOLUTION = "Convolution"
    GEMM = "GEMM"
    DATA_MOVEMENT = "Data Movement"
    ELEMENTWISE = "Elementwise"
    OTHER = "Other"


class Kind(NamedTuple):
    """One kind of the lower level, and the names that belong to it."""

    name: str  # of the kind
    category: Category  # of the upper level
    # XNNPACK's names without types, separated by commas; an algorithm behind the name is more specific
    xnnpack: str = ""
    aten: str = ""  # ATen's names without namespace, overload and `_copy`, separated by blanks
    nodes: str = ""  # kinds of nodes of an XNNPACK payload, separated by blanks
    coreml: str = ""  # operators of Core ML's MIL, likewise
    vulkan: str = ""  # shaders of Vulkan, without what stands behind the operator, likewise; the longest name counts
    events: str = ""  # other events of delegates, without units, separated by commas
    onnx: str = ""  # types of ONNX nodes, of the standard and of ONNX Runtime's own domains, separated by blanks
    tflite: str = ""  # built-in operators of LiteRT, separated by blanks
    openvino: str = ""  # types of OpenVINO's operators and of its CPU's nodes that ONNX has no such name for, likewise


KINDS: tuple[Kind, ...] = (
    Kind(
        "convolution",
        Category.CONVOLUTION,
        xnnpack="Convolution",
        aten="""
        convolution conv1d conv2d conv3d quantized_conv quantized_conv1d_ncl quantized_conv1d_nlc
        quantized_conv2d quantized_conv2d_nchw quantized_conv2d_nhwc quantized_conv2d_nchw_dilated
        quantized_conv2d_nhwc_dilated
        """,
        nodes="Conv2d",
        coreml="conv conv_quantized",
        vulkan="conv1d conv2d q8ta_conv2d",
        onnx="""
        Conv ConvInteger QLinearConv FusedConv NhwcConv NhwcFusedConv DeformConv CausalConvWithState
        VarlenCausalConvWithState WordConvEmbedding
        """,
        tflite="CONV_2D CONV_3D STABLEHLO_CONVOLUTION",
        openvino="BinaryConvolution Convolution DeformableConvolution GroupConvolution",
    ),
    Kind(
        "depthwise",
        Category.CONVOLUTION,
        xnnpack="Convolution DWConv",
        nodes="DepthwiseConv2d",
        aten="""
        quantized_depthwise_conv2d quantized_conv2d_depthwise_nhwc quantized_depthwise_conv1d_ncl
        quantized_depthwise_conv1d_nlc quantized_conv2d_nchw_depthwise quantized_conv2d_nhwc_depthwise
        """,
        vulkan="conv1d_dw conv2d_dw q8ta_conv2d_dw",
        tflite="DEPTHWISE_CONV_2D",
    ),
    Kind(
        "deconvolution",
        Category.CONVOLUTION,
        xnnpack="Deconvolution",
        aten="conv_transpose1d conv_transpose2d conv_transpose3d quantized_transpose_conv2d",
        nodes="ConvTranspose2d",
        coreml="conv_transpose",
        vulkan="conv_transpose2d q8ta_conv2d_transposed",
        onnx="ConvTranspose ConvTransposeWithDynamicPads QLinearConvTranspose",
        tflite="TRANSPOSE_CONV CONV_3D_TRANSPOSE",
        openvino="ConvolutionBackpropData Deconvolution GroupConvolutionBackpropData",
    ),
    Kind(
        "linear",
        Category.GEMM,
        xnnpack="Fully Connected, Dynamic Fully Connected",
        aten="linear addmm mm addmv mixed_linear mixed_mm quantized_linear quantized_fully_connected quantized_moe_ffn",
        nodes="FullyConnected",
        coreml="linear",
        vulkan="linear q8ta_linear q4gsw_linear",
        onnx="""
        Gemm FusedGemm GemmFastGelu GemmFloat8 QGemm MatMulNBits MatMulNBitsMlp MatMulNBitsQkv MatMulBnb4
        MatMulFpQ4 MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MoE QMoE
        """,
        tflite="FULLY_CONNECTED",
        openvino="""
        FullyConnected FullyConnectedCompressed FullyConnectedQuantized FullyConnectedQuantizedLegacy LLMMLP
        MOE3GemmFusedCompressed QKVProjection
        """,
    ),
    Kind(
        "matmul",
        Category.GEMM,
        xnnpack="Batch Matrix Multiply",
        aten="bmm matmul baddbmm quantized_matmul quantized_batch_matmul",
        nodes="BatchMatrixMultiply",
        coreml="matmul einsum",
        vulkan="matmul",
        onnx="""
        MatMul MatMulInteger MatMulInteger16 MatMulIntegerToFloat QLinearMatMul FusedMatMul
        FusedMatMulActivation TransposeMatMul DynamicQuantizeMatMul QOrderedMatMul SparseToDenseMatMul Einsum
        """,
        tflite="BATCH_MATMUL STABLEHLO_DOT_GENERAL",
    ),
    Kind(
        "attention",
        Category.GEMM,
        aten="scaled_dot_product_attention sdpa_with_kv_cache custom_sdpa custom_quantized_sdpa",
        nodes="ScaledDotProductAttention",
        coreml="scaled_dot_product_attention",
        vulkan="sdpa_compute fused_sdpa",
        onnx="""
        Attention MultiHeadAttention GroupQueryAttention QAttention DecoderAttention
        DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention PackedAttention PackedMultiHeadAttention
        PagedAttention SparseAttention SparsePagedAttention DynamicSparseAttention LongformerAttention
        QOrderedAttention QOrderedLongformerAttention LinearAttention LinearAttentionGate FlexAttention
        GatedDeltaNet
        """,
        openvino="SDPA ScaledDotProductAttention ScaledDotProductAttentionWithKVCache",
    ),
    Kind(
        "layout",
        Category.DATA_MOVEMENT,
        xnnpack="Transpose, Depth To Space, Space To Depth, Pack LH",
        aten="""
        permute transpose t pixel_shuffle pixel_unshuffle channel_shuffle to_dim_order im2row im2col col2im
        tile_crop
        """,
        nodes="StaticTranspose DepthToSpace2D SpaceToDepth2D",
        coreml="transpose depth_to_space space_to_depth pixel_shuffle pixel_unshuffle batch_to_space space_to_batch",
        vulkan="""
        permute pixel_shuffle q8ta_pixel_shuffle transpose_cast_contig_to_vectorized nchw_to_buffer
        nchw_to_image nchw_to_int8x4_buffer nchw_to_bitw8_image image_to_nchw buffer_to_nchw
        int8x4_buffer_to_nchw bitw8_image_to_nchw clone_buffer_to_image clone_image_to_buffer im2col
        q8ta_im2col conv2d_im2col col2im pack_conv2d_gemm_weight pack_fp_linear_weight
        pack_int4_linear_weight_transposed_interleaved pack_q4_linear_weight pack_q8_conv2d_weights
        pack_q8_conv2d_dw_weights pack_q8_linear_weight conv2d_prepack_weights conv2d_dw_prepack_weights
        conv_transpose2d_prepack_weights
        """,
        onnx="Transpose DepthToSpace SpaceToDepth ReorderInput ReorderOutput Col2Im",
        tflite="""
        TRANSPOSE DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND STABLEHLO_TRANSPOSE
        """,
        openvino="Reorder ReorgYolo ShuffleChannels",
    ),
    Kind(
        "reshape",
        Category.DATA_MOVEMENT,
        xnnpack="Static Reshape, Static Expand Dims, Fuse Dims, Split Dims",
        aten="view reshape squeeze unsqueeze flatten expand as_strided unfold et_view view_as_real reshape_alias",
        nodes="StaticReshape",
        coreml="reshape reshape_like expand_dims squeeze flatten2d sliding_windows",
        vulkan="view expand unfold_copy",
        onnx="Reshape Squeeze Unsqueeze Flatten Expand ExpandDims",
        tflite="RESHAPE SQUEEZE EXPAND_DIMS BROADCAST_TO STABLEHLO_RESHAPE STABLEHLO_BROADCAST_IN_DIM",
        openvino="Broadcast",
    ),
    Kind(
        "copy",
        Category.DATA_MOVEMENT,
        xnnpack="Copy",
        aten="""
        copy clone alias detach lift_fresh clone_dim_order contiguous fill full full_like zeros ones empty
        zeros_like ones_like empty_like empty_dim_order full_dim_order arange scalar_tensor h2d d2h
        native_dropout tril triu eye rand randn randperm update_cache update_cache_with_indices resize
        empty_strided
        """,
        nodes="Copy",
        coreml="identity fill fill_like range_1d read_state write_state coreml_update_state one_hot band_part shape",
        vulkan="""
        clone q8ta_clone full arange scalar_tensor set_zero no_op buffer_to_buffer sdpa_kv_cache_update
        update_concat_offset grid_priors
        """,
        events="""
        ETVK_COPY_INPUTS, ETVK_COPY_OUTPUTS, VGF_COPY_INPUTS, VGF_COPY_OUTPUTS,
        +EthosUBackend::execute()handles.input.memcpy(), +EthosUBackend::execute()handles.output.memcpy(),
        +EthosUBackend::execute()handles.output.move(), Input, Output
        """,
        onnx="""
        Identity MemcpyFromHost Constant ConstantOfShape Dropout Range EyeLike Trilu OneHot Shape
        Size Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike TensorScatter
        """,
        tflite="""
        FILL ZEROS_LIKE RANGE SHAPE RANK ONE_HOT READ_VARIABLE ASSIGN_VARIABLE RANDOM_STANDARD_NORMAL
        RANDOM_UNIFORM MULTINOMIAL BROADCAST_ARGS MATRIX_DIAG MATRIX_SET_DIAG STABLEHLO_IOTA
        """,
        openvino="Assign Input Memory MemoryInput MemoryOutput ReadValue ShapeOf",
    ),
    Kind(
        "slice",
        Category.DATA_MOVEMENT,
        xnnpack="Slice",
        aten="slice select narrow split split_with_sizes chunk unbind diagonal unsafe_split",
        nodes="StaticSlice EvenSplit",
        coreml="slice_by_index slice_by_size split crop",
        vulkan="slice select split",
        onnx="Slice Split SplitToSequence CenterCropPad UnfoldTensor",
        tflite="""
        SLICE STRIDED_SLICE SPLIT SPLIT_V UNPACK DYNAMIC_UPDATE_SLICE STABLEHLO_SLICE STABLEHLO_DYNAMIC_SLICE
        STABLEHLO_DYNAMIC_UPDATE_SLICE
        """,
        openvino="Crop ExtractImagePatches StridedSlice VariadicSplit",
    ),
    Kind(
        "concatenate",
        Category.DATA_MOVEMENT,
        xnnpack="Concatenate",
        aten="cat stack repeat repeat_interleave tile roll flip",
        nodes="Concatenate2 Concatenate3 Concatenate4 Concatenate5",
        coreml="concat stack tile reverse reverse_sequence slice_update",
        vulkan="concat repeat flip",
        onnx="""
        Concat QLinearConcat ConcatFromSequence Tile ReverseSequence SequenceConstruct SequenceInsert
        """,
        tflite="CONCATENATION PACK TILE REVERSE_V2 REVERSE_SEQUENCE STABLEHLO_CONCATENATE",
        openvino="Concatenation",
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
        coreml="pad",
        vulkan="pad",
        onnx="Pad RemovePadding RestorePadding",
        tflite="PAD PADV2 MIRROR_PAD DILATE STABLEHLO_PAD",
    ),
    Kind(
        "gather",
        Category.DATA_MOVEMENT,
        aten="""
        gather index index_select index_put scatter scatter_add select_scatter slice_scatter embedding
        masked_fill masked_select masked_scatter embedding_byte embedding_4bit embedding_2bit embedding_bag
        nonzero et_copy_index scatter_reduce
        """,
        coreml="gather gather_along_axis gather_nd scatter scatter_along_axis scatter_nd non_zero",
        vulkan="gather index_select index_tensor embedding",
        onnx="""
        Gather GatherElements GatherND GatherBlockQuantized Scatter ScatterElements ScatterND NonZero Compress
        ArrayFeatureExtractor
        """,
        tflite="""
        GATHER GATHER_ND SCATTER_ND EMBEDDING_LOOKUP EMBEDDING_LOOKUP_SPARSE HASHTABLE_LOOKUP HASHTABLE_FIND
        SPARSE_TO_DENSE WHERE STABLEHLO_GATHER STABLEHLO_SCATTER
        """,
        openvino="""
        EmbeddingBagOffsetsSum EmbeddingBagPackedSum EmbeddingSegmentsSum GatherTree ScatterElementsUpdate
        ScatterNDUpdate ScatterUpdate
        """,
    ),
    Kind(
        "quantisation",
        Category.DATA_MOVEMENT,
        xnnpack="Convert",
        aten="""
        quantize_per_tensor dequantize_per_tensor quantize_per_channel dequantize_per_channel
        quantize_per_token dequantize_per_token choose_qparams choose_qparams_per_token_asymmetric to
        requantize quantize dequantize fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        """,
        nodes="Convert",
        coreml="""
        quantize dequantize cast constexpr_affine_dequantize constexpr_blockwise_shift_scale
        constexpr_lut_to_dense constexpr_sparse_to_dense constexpr_cast constexpr_lut_to_sparse
        constexpr_sparse_blockwise_shift_scale
        """,
        vulkan="""
        q8ta_quantize q8ta_dequantize quantize_and_pack unpack_4w4c_and_dequantize choose_qparams
        q4gsw_requant view_convert
        """,
        onnx="""
        QuantizeLinear DequantizeLinear DynamicQuantizeLinear Cast CastLike BitCast QuantizeBFP DequantizeBFP
        QuantizeWithOrder DequantizeWithOrder
        """,
        tflite="QUANTIZE DEQUANTIZE CAST BITCAST FAKE_QUANT DENSIFY STABLEHLO_CONVERT",
        openvino="Convert ConvertFormat ConvertLike FakeConvert FakeQuantize",
    ),
    Kind(
        "activation",
        Category.ELEMENTWISE,
        xnnpack="Clamp, Sigmoid, TanH, HardSwish, LeakyReLU, GELU, ApproxGELU, ELU, PReLU",
        aten="""
        relu relu6 clamp clip sigmoid tanh hardswish hardsigmoid hardtanh leaky_relu gelu elu prelu silu mish
        softplus threshold glu logit quantized_relu quantized_relu_per_tensor quantized_activation clamp_min
        clamp_max
        """,
        nodes="Clamp Sigmoid Tanh Hardswish LeakyReLU Gelu ELU PReLU",
        coreml="""
        relu relu6 prelu leaky_relu elu gelu sigmoid sigmoid_hard silu softplus softplus_parametric softsign
        thresholded_relu clamped_relu linear_activation scaled_tanh tanh clip
        """,
        vulkan="clamp gelu hardshrink hardsigmoid hardswish leaky_relu sigmoid tanh q8ta_relu",
        onnx="""
        Relu Clip Sigmoid Tanh HardSwish HardSigmoid LeakyRelu Gelu FastGelu QuickGelu BiasGelu BiasSplitGelu
        QOrderedGelu Elu Celu Selu PRelu Mish Softplus Softsign ThresholdedRelu Shrink Swish SwiGLU ScaledSiLU
        QLinearSigmoid QLinearLeakyRelu
        """,
        tflite="""
        RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 LOGISTIC TANH HARD_SWISH LEAKY_RELU PRELU ELU GELU
        STABLEHLO_LOGISTIC STABLEHLO_TANH STABLEHLO_CLAMP
        """,
        openvino="Clamp GLU HSigmoid HSwish SoftPlus SoftSign",
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
        bitwise_left_shift bitwise_right_shift quantized_add quantized_mul quantized_div
        """,
        nodes="Add Subtract Multiply Div Minimum Maximum SquaredDifference",
        coreml="""
        add sub mul real_div floor_div mod pow maximum minimum equal not_equal greater greater_equal less
        less_equal logical_and logical_or logical_xor select
        """,
        vulkan="binary q8ta_add where eq_scalar ne_scalar ge_scalar gt_scalar le_scalar lt_scalar pow_scalar",
        onnx="""
        Add Sub Mul Div Mod Pow Max Min Sum Mean And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual
        Where BitShift BitwiseAnd BitwiseOr BitwiseXor QLinearAdd QLinearMul QLinearWhere MulInteger BiasAdd
        GatedAdd ComplexMul ComplexMulConj
        """,
        tflite="""
        ADD SUB MUL DIV MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE ADD_N ATAN2 EQUAL NOT_EQUAL
        LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR SELECT SELECT_V2 BITWISE_XOR RIGHT_SHIFT
        STABLEHLO_ADD STABLEHLO_SUBTRACT STABLEHLO_MULTIPLY STABLEHLO_DIVIDE STABLEHLO_MAXIMUM STABLEHLO_MINIMUM
        STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_AND STABLEHLO_OR STABLEHLO_SELECT STABLEHLO_COMPARE
        STABLEHLO_SHIFT_LEFT
        """,
        openvino="""
        Divide Eltwise FloorMod GreaterEqual LessEqual LogicalAnd LogicalNot LogicalOr LogicalXor Maximum
        Minimum Multiply NotEqual Power Select SquaredDifference Subgraph Subtract
        """,
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
        abs neg square sqrt rsqrt exp expm1 log log2 log10 log1p floor ceil round trunc sin cos tan asin acos
        atan sinh cosh asinh acosh atanh erf sign reciprocal logical_not bitwise_not isnan isinf conj_physical
        """,
        nodes="Abs Negate Square SquareRoot ReciprocalSquareRoot Exp Log Floor Ceiling Sin Cos BankersRounding",
        coreml="""
        abs acos asin atan atanh ceil cos cosh erf exp exp2 floor inverse log logical_not round rsqrt sign sin
        sinh sqrt square tan threshold
        """,
        vulkan="abs cos exp log10 neg round rsqrt sin sqrt tan bitwise_not",
        onnx="""
        Abs Neg Sqrt Reciprocal Exp Log Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh
        Erf Sign IsNaN IsInf IsAllFinite BitwiseNot
        """,
        tflite="""
        ABS NEG EXP LOG SQRT RSQRT SQUARE SIN COS CEIL FLOOR ROUND SIGN LOGICAL_NOT COMPLEX_ABS REAL IMAG
        STABLEHLO_ABS STABLEHLO_NEGATE STABLEHLO_EXPONENTIAL STABLEHLO_LOG STABLEHLO_RSQRT STABLEHLO_FLOOR
        STABLEHLO_COSINE STABLEHLO_CBRT
        """,
        openvino="Ceiling Math Negative",
    ),
    Kind(
        "pooling",
        Category.OTHER,
        xnnpack="Average Pooling, Max Pooling, ArgMax Pooling, Global Average Pooling, Unpooling",
        aten="""
        avg_pool1d avg_pool2d avg_pool3d max_pool2d max_pool2d_with_indices max_pool3d_with_indices
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d quantized_max_pool2d
        quantized_max_pool2d_nchw quantized_max_pool2d_nhwc quantized_avg_pool2d
        """,
        nodes="AvgPooling2d MaxPooling2d ArgMaxPooling2d Unpooling2d GlobalAvgPooling2d",
        coreml="avg_pool max_pool l2_pool",
        vulkan="avg_pool2d max_pool2d",
        onnx="""
        AveragePool MaxPool GlobalAveragePool GlobalMaxPool GlobalLpPool LpPool MaxUnpool MaxRoiPool RoiAlign
        NhwcMaxPool MaxpoolWithMask QLinearAveragePool QLinearGlobalAveragePool
        """,
        tflite="AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D",
        openvino="""
        AdaptiveAvgPool AdaptiveMaxPool AdaptivePooling AvgPool PSROIPooling Pooling ROIAlign ROIPooling
        """,
    ),
    Kind(
        "normalisation",
        Category.OTHER,
        aten="""
        native_layer_norm layer_norm native_group_norm group_norm native_batch_norm batch_norm rms_norm
        native_batch_norm_legit native_batch_norm_legit_no_training instance_norm quantized_layer_norm
        """,
        coreml="batch_norm instance_norm layer_norm l2_norm local_response_norm",
        vulkan="batchnorm native_layer_norm rms_norm group_norm",
        onnx="""
        BatchNormalization LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization EmbedLayerNormalization QEmbedLayerNormalization
        QOrderedLayerNormalization InstanceNormalization GroupNormalization GroupNorm SkipGroupNorm
        RMSNormalization GatedRMSNorm BranchwiseRMSNorm LRN LpNormalization MeanVarianceNormalization
        """,
        tflite="L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION",
        openvino="BatchNormInference MVN NormalizeL2 RMS RMSNorm",
    ),
    Kind(
        "softmax",
        Category.OTHER,
        xnnpack="Softmax",
        aten="softmax log_softmax safe_softmax",
        nodes="Softmax",
        coreml="softmax",
        vulkan="softmax log_softmax sdpa_attn_weights_softmax fused_sdpa_softmax",
        onnx="Softmax LogSoftmax Hardmax BiasSoftmax QLinearSoftmax",
        tflite="SOFTMAX LOG_SOFTMAX",
        openvino="SoftMax",
    ),
    Kind(
        "reduction",
        Category.OTHER,
        xnnpack="Mean, Sum, Reduce Max, Reduce Min, Mean Squared, Normalize",
        aten="""
        mean sum amax amin max min argmax argmin prod any all var std cumsum topk sort norm linalg_vector_norm
        var_mean allclose cdist_forward pdist_forward unique2
        """,
        nodes="StaticSum StaticReduceMax StaticReduceMin",
        coreml="""
        reduce_argmax reduce_argmin reduce_l1_norm reduce_l2_norm reduce_log_sum reduce_log_sum_exp reduce_max
        reduce_mean reduce_min reduce_prod reduce_sum reduce_sum_square cumsum argsort topk
        """,
        vulkan="amax amax2d amin amin2d argmax argmin mean mean2d sum sum2d var",
        onnx="""
        ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare ReduceSumInteger QLinearReduceMean ArgMax ArgMin CumSum CumProd TopK Unique
        """,
        tflite="""
        MEAN SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM TOPK_V2 UNIQUE
        SEGMENT_SUM UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD
        STABLEHLO_REDUCE STABLEHLO_REDUCE_WINDOW REDUCE_WINDOW STABLEHLO_SORT
        """,
        openvino="Reduce ReduceLogicalAnd ReduceLogicalOr",
    ),
    Kind(
        "resize",
        Category.OTHER,
        xnnpack="Resize Bilinear",
        aten="upsample_bilinear2d upsample_nearest2d upsample_bicubic2d grid_sampler_2d upsample_bilinear2d_aa",
        nodes="StaticResizeBilinear2D",
        coreml="""
        affine crop_resize resample resize resize_bilinear resize_nearest_neighbor upsample_bilinear
        upsample_nearest_neighbor
        """,
        vulkan="upsample_bilinear2d upsample_nearest2d grid_sampler_2d",
        onnx="Resize Upsample GridSample AffineGrid CropAndResize",
        tflite="RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
        openvino="Interpolate",
    ),
    Kind(
        "rotary",
        Category.OTHER,
        xnnpack="RoPE",
        vulkan="rotary_embedding apply_rotary_emb",
        aten="rope apply_rotary_emb",
        onnx="RotaryEmbedding GemmaRotaryEmbedding MRotaryEmbedding",
        openvino="RoPE",
    ),
    Kind(
        "fft",
        Category.OTHER,
        aten="fft_r2c fft_c2r fft_c2c fast_hadamard_transform",
        onnx="DFT STFT Rfft Irfft MelWeightMatrix HannWindow HammingWindow BlackmanWindow",
        tflite="RFFT2D",
        openvino="IDFT IRDFT RDFT",
    ),
    Kind(
        "recurrent",
        Category.OTHER,
        aten="lstm gru rnn_tanh rnn_relu quantized_gru quantized_lstm",
        coreml="gru lstm rnn",
        onnx="LSTM GRU RNN AttnLSTM DynamicQuantizeLSTM",
        tflite="""
        LSTM RNN SVDF UNIDIRECTIONAL_SEQUENCE_LSTM UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_LSTM
        BIDIRECTIONAL_SEQUENCE_RNN
        """,
        openvino="""
        AUGRUCell AUGRUSequence GRUCell GRUSequence LSTMCell LSTMSequence RNNCell RNNSeq RNNSequence
        """,
    ),
    Kind(
        "detection",
        Category.OTHER,
        aten="nms",
        coreml="non_maximum_suppression",
        onnx="NonMaxSuppression",
        tflite="NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5",
        openvino="""
        DetectionOutput ExperimentalDetectronDetectionOutput
        ExperimentalDetectronGenerateProposalsSingleImage ExperimentalDetectronPriorGridGenerator
        ExperimentalDetectronROIFeatureExtractor ExperimentalDetectronTopKROIs MatrixNms MulticlassNms
        PriorBox PriorBoxClustered Proposal RegionYolo
        """,
    ),
    Kind(
        "linear algebra",
        Category.OTHER,
        aten="linalg_inv_ex linalg_det linalg_svd linalg_solve linalg_cholesky_ex",
        onnx="Det Inverse CDist",
    ),
    Kind(
        "training",
        Category.OTHER,
        aten="""
        convolution_backward max_pool2d_with_indices_backward adaptive_avg_pool2d_backward avg_pool2d_backward
        embedding_dense_backward native_group_norm_backward native_layer_norm_backward
        """,
        vulkan="adamw_step fused_ce q4gsw_backward linear_dW",
        onnx="Adagrad Adam Gradient Momentum NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    ),
    Kind(
        "sizes",
        Category.OTHER,
        aten="""
        sym_size sym_numel sym_stride sym_storage_offset sym_is_contiguous sym_float sym_int sym_ite sym_max
        sym_min sym_not local_scalar_dense floordiv truediv mod
        """,
    ),
    Kind(
        "compiled region",
        Category.OTHER,
        tflite="DISPATCH_OP edgetpu-custom-op ethos-u",
        events="""
        DELEGATE_CALL, +EthosUBackend::execute()NPU, VGF_DISPATCH_AND_WAIT, VGF_QUEUE_SUBMIT_AND_WAIT_FENCE,
        ETVK_COMPUTE_GRAPH_EXECUTE, Accelerator (execute) time, Accelerator (execute excluding wait) time, QNN
        accelerator (execute) time, QNN (execute) time, RPC (execute) time
        """,
    ),
    Kind(
        "waiting for the device",
        Category.OTHER,
        onnx="MemcpyToHost",
    ),
    Kind(
        "framework",
        Category.OTHER,
        aten="""
        Method::execute Method::init Program::load_method OPERATOR_CALL MOVE_CALL JF_CALL FREE_CALL
        """,
        events="""
        ETVK_EXECUTE, ETVK_RESIZE, VGF_EXECUTE, VGF_NEURAL_STATISTICS, VGF_TIMESTAMP_QUERY_READBACK,
        VGF_INIT_TOTAL, VGF_INIT_ENSURE_INITIALIZED, VGF_INIT_ALLOCATE_REPR, VGF_INIT_PROCESS_VGF,
        VGF_INIT_PROCESS_VGF_BACKEND, VGF_INIT_DECODE_TABLES, VGF_INIT_ALLOCATE_COMMAND_BUFFER,
        VGF_INIT_TIMESTAMP_QUERIES, VGF_INIT_RECORD_COMMAND_BUFFER, VGF_INIT_MAP_IO_MEMORY,
        EthosUBackend::execute(), +EthosUBackend::init()processed_data, +EthosUBackend::init()vela_bin_read(),
        Number of HVX threads used, Num times yield occured, Time for initial VTCM acquire, Time for HVX + HMX
        power on and acquire
        """,
        onnx="Loop If Scan SequenceMap",
        tflite="IF WHILE CALL CALL_ONCE VAR_HANDLE STABLEHLO_WHILE STABLEHLO_CASE STABLEHLO_COMPOSITE",
        openvino="TensorIterator",
    ),
)


class Attribution(str, enum.Enum):
    """Source of the knowledge what an operator is.

    ``exact``: a replay of XNNPACK's rewrites foretold every event of the call. ``aligned``: events and nodes fit
    together in one way by kind and order. ``ambiguous``: they fit in several ways. ``name``: the recorded name is all
    there is.
    """

    EXACT = "exact"
    ALIGNED = "aligned"
    AMBIGUOUS = "ambiguous"
    NAME = "name"


class AttentionPart(enum.Enum):
    """Role of a kernel outside of delegates in an attention."""

    MASKING = "masking"
    """It makes or applies a mask, or guards the softmax."""
    PREPARING = "preparing"
    """It scales, copies or moves what is multiplied."""
    PROJECTING = "projecting"
    """It makes queries, keys or values with weights that are cut out in every call, which no delegate takes."""
