"""One-node models of ONNX operators for network layers: products, windows, norms, quantization, attention and
recurrence."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from onnx_operands import IMAGE, VECTOR, Draws, f32


def products(draws: Draws) -> list[tuple]:
    """Products of matrices."""
    weights = draws.weights
    return [
        ("MatMul", "f32[2, 3, 4]", "f32[4, 5]", {}),
        ("MatMul", "f32[4]", weights(4, 5), {}),
        ("MatMul", "f32[2, 3, 4]", weights(4), {}),
        ("MatMul", "f32[4]", weights(4), {}),
        ("Gemm", "f32[3, 4]", "f32[4, 5]", "f32[5]", {}),
        ("Gemm", "f32[4, 3]", weights(5, 4), weights(3, 1), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        ("Gemm", "f32[3, 4]", "f32[4, 5]", {}),
        ("Gemm", "f32[3, 4]", "f32[4, 5]", "f32[3, 5]", {"beta": 0.0, "opset": 9}),
        ("MatMulInteger", "u8[3, 4]", "u8[4, 2]", np.uint8(2), np.uint8(3), {}),
        ("MatMulInteger", "u8[3, 4]", "u8[4, 2]", {}),
        *(
            ("Einsum", *operands, {"equation": equation})
            for equation, *operands in (
                ("ij,jk->ik", "f32[3, 4]", "f32[4, 5]"),
                ("bij,bjk->bik", "f32[2, 3, 4]", "f32[2, 4, 5]"),
                ("bhid,bhjd->bhij", "f32[2, 3, 4, 5]", "f32[2, 3, 6, 5]"),
                ("ij->ji", "f32[3, 4]"),
                ("ij->i", "f32[3, 4]"),
                ("ij->", "f32[3, 4]"),
                ("i,j->ij", "f32[3]", "f32[4]"),
                ("i,i->", "f32[3]", "f32[3]"),
                ("ij,ij->ij", "f32[3, 4]", "f32[3, 4]"),
                ("...ij,...jk->...ik", "f32[2, 3, 4]", "f32[2, 4, 5]"),
                ("bij, bjk", "f32[2, 3, 4]", "f32[2, 4, 5]"),
                ("ij,jk,kl->il", "f32[2, 3]", "f32[3, 4]", "f32[4, 2]"),
                ("ijk,jil->kl", "f32[3, 4, 2]", "f32[4, 3, 5]"),
                ("ii->i", "f32[3, 3]"),
                ("ij,k->i", "f32[3, 4]", "f32[2]"),
            )
        ),
    ]


def windows(draws: Draws) -> list[tuple]:
    """Convolutions and pooling."""
    weights = draws.weights
    return [
        ("Conv", IMAGE, weights(4, 6, 3, 3), weights(4), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
        ("Conv", IMAGE, weights(4, 6, 1, 1), {}),
        ("Conv", "f32[2, 0, 5, 4]", weights(3, 0, 2, 1), weights(3), {"strides": [2, 1]}),
        ("Conv", IMAGE, weights(6, 2, 3, 3), {"group": 3, "dilations": [2, 1]}),
        ("Conv", "f32[1, 2, 9]", weights(3, 2, 4), {"auto_pad": "SAME_UPPER", "strides": [2]}),
        ("Conv", "f32[1, 2, 9]", weights(3, 2, 4), {"auto_pad": "SAME_LOWER", "kernel_shape": [4]}),
        ("Conv", IMAGE, weights(4, 6, 3, 3), {"auto_pad": "VALID"}),
        ("Conv", "f32[1, 2, 4, 5, 6]", weights(3, 2, 2, 3, 2), {}),
        (
            "ConvInteger",
            "u8[1, 2, 5, 5]",
            draws.bytes(3, 2, 3, 3),
            np.uint8(2),
            np.uint8(1),
            {"pads": [1, 1, 1, 1]},
        ),
        (
            "ConvTranspose",
            IMAGE,
            weights(6, 4, 3, 3),
            weights(4),
            {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
        ),
        ("ConvTranspose", "f32[1, 2, 3, 3]", weights(2, 2, 3, 3), {"output_shape": [10, 8], "strides": [3, 2]}),
        ("ConvTranspose", "f32[1, 2, 3, 3]", weights(2, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("ConvTranspose", "f32[1, 1, 5, 3]", weights(1, 2, 2, 2), {"dilations": [2, 1]}),
        ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("MaxPool", IMAGE, {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"}),
        ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1, "dilations": [2, 1]}),
        ("MaxPool", IMAGE, {"kernel_shape": [2, 2], "opset": 7}),
        ("AveragePool", IMAGE, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        (
            "AveragePool",
            IMAGE,
            {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1, "strides": [2, 2]},
        ),
        ("AveragePool", "f32[1, 3, 9]", {"kernel_shape": [3], "auto_pad": "SAME_UPPER", "strides": [2], "opset": 9}),
        ("LpPool", IMAGE, {"kernel_shape": [2, 3], "p": 2, "pads": [1, 1, 0, 0]}),
        ("LpPool", IMAGE, {"kernel_shape": [2, 2], "p": 3}),
        ("GlobalAveragePool", IMAGE, {}),
        ("GlobalMaxPool", IMAGE, {}),
    ]


def norms(draws: Draws) -> list[tuple]:
    """Norms and softmax."""
    weights = draws.weights
    return [
        ("BatchNormalization", IMAGE, weights(6), weights(6), weights(6), np.abs(weights(6)), {"epsilon": 1e-3}),
        ("InstanceNormalization", IMAGE, weights(6), weights(6), {"epsilon": 1e-3}),
        ("GroupNormalization", IMAGE, weights(6), weights(6), {"num_groups": 3, "opset": 21}),
        ("LayerNormalization", VECTOR, weights(5), weights(5), {}),
        ("LayerNormalization", VECTOR, weights(3, 5), {"axis": 1, "epsilon": 1e-3}),
        ("LayerNormalization", VECTOR, weights(5), weights(5), {"outputs": 3}),
        ("RMSNormalization", VECTOR, weights(5), {"opset": 23}),
        ("LpNormalization", VECTOR, {"p": 1, "axis": 1}),
        ("LpNormalization", VECTOR, {"p": 2}),
        ("Softmax", IMAGE, {}),
        ("Softmax", IMAGE, {"axis": 1}),
        ("LogSoftmax", IMAGE, {"axis": -2}),
        ("Hardmax", IMAGE, {"axis": 1}),
    ]


def quantization(draws: Draws) -> list[tuple]:
    """Quantization, and products of quantized numbers."""
    weights = draws.weights
    return [
        ("QuantizeLinear", IMAGE, np.float32(0.01), np.uint8(3), {}),
        ("QuantizeLinear", IMAGE, np.abs(weights(6)) + 0.01, np.zeros(6, np.int8), {"axis": 1}),
        ("QuantizeLinear", IMAGE, np.float32(0.01), {}),
        ("QuantizeLinear", "f32[3, 5]", np.float32(0.01), {"output_dtype": TensorProto.FLOAT8E4M3FN, "opset": 21}),
        ("QuantizeLinear", "f32[3, 5]", np.float32(0.1), {"output_dtype": TensorProto.FLOAT4E2M1, "opset": 23}),
        ("QuantizeLinear", "f32[3, 5]", np.float32(0.01), {"precision": TensorProto.FLOAT16, "opset": 23}),
        ("DequantizeLinear", "u8[2, 3]", np.float32(0.1), np.uint8(3), {"opset": 19}),
        ("DequantizeLinear", "i32[3]", np.float32(0.1), {"opset": 19}),
        ("DequantizeLinear", "i8[2, 3]", f32(0.1, 0.2, 0.3), np.array([1, 2, 3], np.int8), {"axis": 1, "opset": 21}),
        ("DequantizeLinear", "u8[4, 3]", np.abs(weights(2, 3)), {"axis": 0, "block_size": 2, "opset": 21}),
        (
            "QLinearMatMul",
            "u8[3, 4]",
            np.float32(0.1),
            np.uint8(2),
            "u8[4, 2]",
            np.float32(0.2),
            np.uint8(1),
            np.float32(0.05),
            np.uint8(9),
            {},
        ),
        (
            "QLinearConv",
            "u8[1, 2, 5, 5]",
            np.float32(0.1),
            np.uint8(2),
            draws.bytes(3, 2, 3, 3),
            np.float32(0.2),
            np.uint8(1),
            np.float32(0.5),
            np.uint8(9),
            np.array([1, 2, 3], np.int32),
            {},
        ),
    ]


def attention_and_recurrence(draws: Draws) -> list[tuple]:
    """Attention, its rotary embedding, and recurrent layers."""
    weights = draws.weights
    return [
        *(
            ("Attention", *operands, {"opset": 23, **attrs})
            for *operands, attrs in (
                ("f32[2, 3, 4, 8]", "f32[2, 3, 6, 8]", "f32[2, 3, 6, 5]", {}),
                ("f32[2, 4, 24]", "f32[2, 6, 24]", "f32[2, 6, 24]", {"q_num_heads": 3, "kv_num_heads": 3}),
                ("f32[2, 4, 5, 8]", "f32[2, 2, 5, 8]", "f32[2, 2, 5, 8]", {"is_causal": 1, "scale": 0.5}),
                ("f32[1, 2, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", "f32[3, 5]", {}),
                ("f32[1, 2, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", np.tri(3, 5, -1, dtype=bool), {}),
                ("f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", {"softcap": 2.0}),
            )
        ),
        *(
            ("RotaryEmbedding", *operands, {"opset": 23, **attrs})
            for *operands, attrs in (
                ("f32[2, 3, 5, 8]", "f32[2, 5, 4]", "f32[2, 5, 4]", {}),
                ("f32[1, 3, 5, 8]", "f32[1, 5, 4]", "f32[1, 5, 4]", {"interleaved": 1}),
                ("f32[1, 2, 3, 9]", weights(7, 2), weights(7, 2), np.array([[5, 0, 2]]), {"rotary_embedding_dim": 4}),
                (
                    "f32[2, 3, 12]",
                    weights(7, 2),
                    weights(7, 2),
                    "i64[2, 3]",
                    {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1},
                ),
            )
        ),
        ("LSTM", "f32[3, 2, 4]", weights(1, 20, 4), weights(1, 20, 5), {"hidden_size": 5, "outputs": 3}),
        (
            "LSTM",
            "f32[3, 2, 4]",
            weights(1, 20, 4),
            weights(1, 20, 5),
            weights(1, 40),
            np.array([3, 3], np.int32),
            weights(1, 2, 5),
            weights(1, 2, 5),
            weights(1, 15),
            {"hidden_size": 5},
        ),
        *(
            (
                op,
                "f32[3, 2, 4]",
                f"f32[1, {5 * gates}, 4]",
                f"f32[1, {5 * gates}, 5]",
                f"f32[1, {10 * gates}]",
                {"hidden_size": 5},
            )
            for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        ),
        (
            "GRU",
            "f32[3, 2, 4]",
            weights(1, 15, 4),
            weights(1, 15, 5),
            weights(1, 30),
            {"hidden_size": 5, "linear_before_reset": 1, "outputs": 2},
        ),
        ("RNN", "f32[3, 2, 4]", weights(1, 5, 4), weights(1, 5, 5), {"hidden_size": 5, "outputs": 2}),
        (
            "BatchNormalization",
            "f32[2, 3, 4]",
            weights(3),
            weights(3),
            weights(3),
            weights(3) + 2,
            {"training_mode": 1, "outputs": 3},
        ),
    ]
