"""The subset of the schema of TFLite files, version 3, in use: tables, operators, their options, element types.

The source is tensorflow/lite/schema/schema.fbs; tests/importers/test_tflite_peers.py holds it against the `tflite`
package, which is generated from it.
"""

from __future__ import annotations

from pelton.ir.types import DType

from .flatbuffer import parsed

IDENTIFIER = b"TFL3"

SCHEMA = parsed("""
Model: version u32, codes [OperatorCode], subgraphs [SubGraph], -, buffers [Buffer], -, -, signatures [SignatureDef]
OperatorCode: old_code i8, custom_code string, version i32 = 1, code i32
SubGraph: tensors [Tensor], inputs [i32], outputs [i32], operators [Operator], name string
Tensor: shape [i32], type i8, buffer u32, name string, quantization Quantization, is_variable bool, sparsity
    Sparsity, shape_signature [i32]
Quantization: -, -, scale [f32], zero_point [i64], details_type u8, details union, axis i32
BlockwiseQuantization: scales i32, zero_points i32 = -1, block_size i32
Sparsity: order [i32], blocks [i32], axes [SparseAxis]
SparseAxis: format i8, size i32, segments_type u8, segments union, indices_type u8, indices union
Int32Vector: values [i32]
Uint16Vector: values [u16]
Uint8Vector: values [u8]
Buffer: data [u8], offset u64, size u64
Operator: code u32, inputs [i32], outputs [i32], options_type u8, options union, custom_options [u8], -, -, -,
    large_offset u64, large_size u64, options2_type u8, options2 union
SignatureDef: inputs [TensorMap], outputs [TensorMap], key string, -, subgraph u32
TensorMap: name string, tensor u32

Conv2DOptions: padding i8, stride_w i32, stride_h i32, activation i8, dilation_w i32 = 1, dilation_h i32 = 1
DepthwiseConv2DOptions: padding i8, stride_w i32, stride_h i32, multiplier i32, activation i8, dilation_w i32 = 1,
    dilation_h i32 = 1
Conv3DOptions: padding i8, stride_d i32, stride_w i32, stride_h i32, activation i8, dilation_d i32 = 1, dilation_w
    i32 = 1, dilation_h i32 = 1
TransposeConvOptions: padding i8, stride_w i32, stride_h i32, activation i8
Pool2DOptions: padding i8, stride_w i32, stride_h i32, filter_w i32, filter_h i32, activation i8
FullyConnectedOptions: activation i8, weights_format i8, keep_num_dims bool
BatchMatMulOptions: adj_x bool, adj_y bool
AddOptions: activation i8
SubOptions: activation i8
MulOptions: activation i8
DivOptions: activation i8
L2NormOptions: activation i8
SoftmaxOptions: beta f32
LeakyReluOptions: alpha f32
GeluOptions: approximate bool
LocalResponseNormalizationOptions: radius i32, bias f32, alpha f32, beta f32
ConcatenationOptions: axis i32, activation i8
ReshapeOptions: new_shape [i32]
SqueezeOptions: axes [i32]
SpaceToDepthOptions: block i32
DepthToSpaceOptions: block i32
ResizeBilinearOptions: -, -, align_corners bool, half_pixel bool
ResizeNearestNeighborOptions: align_corners bool, half_pixel bool
StridedSliceOptions: begin_mask i32, end_mask i32, ellipsis_mask i32, new_axis_mask i32, shrink_axis_mask i32,
    offset bool
GatherOptions: axis i32, batch_dims i32
SplitOptions: splits i32
SplitVOptions: splits i32
PackOptions: count i32, axis i32
UnpackOptions: count i32, axis i32
MirrorPadOptions: mode i8
ReducerOptions: keep_dims bool
CumsumOptions: exclusive bool, reverse bool
ArgMaxOptions: output_type i8
ArgMinOptions: output_type i8
OneHotOptions: axis i32
ShapeOptions: out_type i8
CastOptions: in_type i8, out_type i8
FakeQuantOptions: min f32, max f32, bits i32, narrow_range bool
ReverseSequenceOptions: seq_dim i32, batch_dim i32
UniqueOptions: idx_out_type i8 = 2
UnidirectionalSequenceLSTMOptions: activation i8, cell_clip f32, proj_clip f32, time_major bool
SVDFOptions: rank i32, activation i8
CallOptions: subgraph u32
CallOnceOptions: subgraph i32
IfOptions: then i32, other i32
WhileOptions: condition i32, body i32
VarHandleOptions: container string, shared_name string
StableHLOCompositeOptions: name string, decomposition i32
""")

# Kinds of options by their number in the union; kinds without fields are missing.
OPTIONS = {
    1: "Conv2DOptions",
    2: "DepthwiseConv2DOptions",
    5: "Pool2DOptions",
    6: "SVDFOptions",
    8: "FullyConnectedOptions",
    9: "SoftmaxOptions",
    10: "ConcatenationOptions",
    11: "AddOptions",
    12: "L2NormOptions",
    13: "LocalResponseNormalizationOptions",
    15: "ResizeBilinearOptions",
    16: "CallOptions",
    17: "ReshapeOptions",
    19: "SpaceToDepthOptions",
    21: "MulOptions",
    23: "GatherOptions",
    27: "ReducerOptions",
    28: "SubOptions",
    29: "DivOptions",
    30: "SqueezeOptions",
    32: "StridedSliceOptions",
    35: "SplitOptions",
    37: "CastOptions",
    40: "ArgMaxOptions",
    49: "TransposeConvOptions",
    55: "ShapeOptions",
    57: "ArgMinOptions",
    58: "FakeQuantOptions",
    59: "PackOptions",
    61: "OneHotOptions",
    64: "UnpackOptions",
    71: "UnidirectionalSequenceLSTMOptions",
    74: "ResizeNearestNeighborOptions",
    75: "LeakyReluOptions",
    77: "MirrorPadOptions",
    79: "SplitVOptions",
    80: "UniqueOptions",
    87: "ReverseSequenceOptions",
    92: "IfOptions",
    93: "WhileOptions",
    94: "DepthToSpaceOptions",
    101: "BatchMatMulOptions",
    102: "CumsumOptions",
    103: "CallOnceOptions",
    106: "Conv3DOptions",
    111: "VarHandleOptions",
    116: "GeluOptions",
}
# The same for the second union, of newer operators.
OPTIONS2 = {21: "StableHLOCompositeOptions"}

# Quantization other than one scale per tensor or axis element, by its number in the union.
DETAILS = {1: "CustomQuantization", 2: "BlockwiseQuantization", 3: "MultiAxisQuantization"}

# Element types by number; None for non-numbers.
DTYPES: dict[int, DType | None] = {
    0: DType.F32,
    1: DType.F16,
    2: DType.I32,
    3: DType.U8,
    4: DType.I64,
    5: None,
    6: DType.BOOL,
    7: DType.I16,
    9: DType.I8,
    10: DType.F64,
    12: DType.U64,
    13: None,
    15: DType.U32,
    16: DType.U16,
    17: DType.I4,
    18: DType.BF16,
    19: DType.I2,
    20: DType.U4,
}
TYPE_NAMES = {5: "STRING", 8: "COMPLEX64", 11: "COMPLEX128", 13: "RESOURCE", 14: "VARIANT"}
RESOURCE = 13

# fused activations by their number
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
PADDINGS = ("same", "valid")
CUSTOM = 32

# The names of builtin operators in the order of their numbers.
OPERATORS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2
GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT
UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE
MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5
SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO
RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD
STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE
STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH
STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE
STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE
STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT
""".split()
