"""Operators of random graphs: quantized ones, ONNX Runtime's, and classical estimators."""

from __future__ import annotations

import numpy as np

from .proposals import Graph, Proposed, dtype_of, proposes, shape_of

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
BYTES = ("uint8", "int8")


def _scale(g: Graph, *shape: int) -> str:
    """Scales that leave no result halfway between two integers."""
    return g.constant((g.rng.integers(200, 900, shape) / 10007).astype(np.float32))


def _zero(g: Graph, dtype: str, *shape: int) -> str:
    return g.constant(np.asarray(g.rng.integers(0, 5, shape)).astype(dtype))


def _quantized(g: Graph, x: str) -> list[str]:
    """A value with its scale and zero point."""
    return [x, _scale(g), _zero(g, dtype_of(g, x))]


# --- ONNX


@proposes(2)
def per_axis(g: Graph) -> Proposed:
    dtype = g.either("int8", "uint8", "int16", "uint16")
    if g.rng.random() < 0.5:
        x = g.pick("float32")
    else:
        x = g.pick(dtype if dtype[-1] == "8" else "int32")
    rank = len(shape_of(g, x))
    if not rank:
        raise LookupError
    axis = int(g.rng.integers(-rank, rank))
    size = shape_of(g, x)[axis]
    if dtype_of(g, x) == "float32":
        return "QuantizeLinear", [x, _scale(g, size), _zero(g, dtype, size)], 1, {"axis": axis}
    zero = [] if dtype_of(g, x) == "int32" or g.rng.random() < 0.3 else [_zero(g, dtype_of(g, x), size)]
    return "DequantizeLinear", [x, _scale(g, size), *zero], 1, {"axis": axis}


@proposes()
def dynamic(g: Graph) -> Proposed:
    x = g.pick("float32")
    if not g.array(x).any():  # of a range of nothing everybody makes another scale
        raise LookupError
    return "DynamicQuantizeLinear", [x], 3, {}


@proposes(2)
def integer_product(g: Graph) -> Proposed:
    x = g.pick(*BYTES)
    k = shape_of(g, x)[-1] if shape_of(g, x) else 0
    if not k:
        raise LookupError
    w = g.random(g.either(*BYTES), *g.either((k, 3), (k, 8), (2, k, 4)))
    if g.rng.random() < 0.5:
        zeros = [_zero(g, dtype_of(g, x)), _zero(g, dtype_of(g, w))]
        return "MatMulInteger", [x, w, *zeros[: g.rng.integers(0, 3)]], 1, {}
    return "QLinearMatMul", [*_quantized(g, x), *_quantized(g, w), _scale(g), _zero(g, g.either(*BYTES))], 1, {}


@proposes(2)
def integer_conv(g: Graph) -> Proposed:
    x = g.pick(*BYTES, rank=4)
    c, (h, w) = shape_of(g, x)[1], shape_of(g, x)[2:]
    if not c:
        raise LookupError
    group = g.either(1, 1, c)
    filters = g.random(g.either(*BYTES), 2 * group, c // group, min(2, h), min(3, w))
    attrs = {"group": group, "pads": [1, 0, 0, 1]}
    if g.rng.random() < 0.4:
        return "ConvInteger", [x, filters, _zero(g, dtype_of(g, x)), _zero(g, dtype_of(g, filters))], 1, attrs
    scale = g.either((), (2 * group,))
    bias = [g.random("int32", 2 * group)] if g.rng.random() < 0.5 else []
    weights = [filters, _scale(g, *scale), _zero(g, dtype_of(g, filters), *scale)]
    return "QLinearConv", [*_quantized(g, x), *weights, _scale(g), _zero(g, dtype_of(g, x)), *bias], 1, attrs


# --- com.microsoft


@proposes(2)
def curves(g: Graph) -> Proposed:
    x = g.pick("float32")
    op = g.either("Gelu", "QuickGelu", "FastGelu", "BiasGelu")
    bias = (
        [g.random("float32", *shape_of(g, x)[-1:])]
        if op == "BiasGelu" or op == "FastGelu" and g.rng.random() < 0.5
        else []
    )
    if bias and not shape_of(g, x):
        raise LookupError
    return op, [x, *bias], 1, {"domain": MICROSOFT, **({"alpha": 1.25} if op == "QuickGelu" else {})}


@proposes(2)
def fused_product(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(2, 3))
    over, back = (bool(g.rng.random() < 0.5) for _ in range(2))
    k = shape_of(g, x)[-2 if over else -1]
    w = g.random("float32", *((5, k) if back else (k, 5)))
    if len(shape_of(g, x)) == 2 and g.rng.random() < 0.5:
        attrs = {"activation": g.either("Relu", "Tanh", "Sigmoid"), "alpha": 0.7, "beta": 1.5}
        operands = [x, w, g.random("float32", 5)]
        attrs = {"transA": int(over), "transB": int(back), "domain": MICROSOFT, **attrs}
        return "FusedGemm", operands, 1, attrs
    return "FusedMatMul", [x, w], 1, {"transA": int(over), "transB": int(back), "alpha": 0.7, "domain": MICROSOFT}


@proposes(2)
def skip_norm(g: Graph) -> Proposed:
    x = g.pick("float32", rank=3)
    c = shape_of(g, x)[-1]
    skip = g.random("float32", *shape_of(g, x))
    if g.rng.random() < 0.5:
        operands = [x, skip, g.random("float32", c)]
        attrs = {"domain": MICROSOFT, "epsilon": 1e-3}
        return "SkipSimplifiedLayerNormalization", operands, 1, attrs
    operands = [x, skip, *(g.random("float32", c) for _ in range(g.either(1, 2, 3)))]
    attrs = {"domain": MICROSOFT, "epsilon": 1e-3}
    return "SkipLayerNormalization", operands, 1, attrs


@proposes()
def heads(g: Graph) -> Proposed:
    q = g.pick("float32", rank=3)
    batch, _, width = shape_of(g, q)
    count = g.either(*(k for k in (1, 2, 4) if width % k == 0))
    keys = int(g.rng.integers(1, 6))
    operands = [q, g.random("float32", batch, keys, width), g.random("float32", batch, keys, width)]
    attrs = {"num_heads": count, "domain": MICROSOFT}
    return "MultiHeadAttention", operands, 1, attrs


@proposes(3)
def quantized_parts(g: Graph) -> Proposed:
    x = g.pick(*BYTES)
    dtype, rank = dtype_of(g, x), len(shape_of(g, x))
    op = g.either(
        "QLinearAdd",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearReduceMean",
    )
    end = [_scale(g), _zero(g, dtype)]
    attrs = {"domain": MICROSOFT}
    if op in ("QLinearAdd", "QLinearMul"):
        return op, [*_quantized(g, x), *_quantized(g, g.pick(dtype, like=x)), *end], 1, attrs
    if op == "QLinearConcat" and rank:
        operands = [*end, *_quantized(g, x), *_quantized(g, g.random(dtype, *shape_of(g, x)))]
        attrs = {**attrs, "axis": int(g.rng.integers(0, rank))}
        return op, operands, 1, attrs
    if rank < (4 if op == "QLinearGlobalAveragePool" else 1):
        raise LookupError
    more = {
        "QLinearReduceMean": {"axes": [int(g.rng.integers(0, rank))], "keepdims": g.either(0, 1)},
        "QLinearLeakyRelu": {"alpha": 0.3},
    }
    return op, [*_quantized(g, x), *end], 1, {**attrs, **more.get(op, {})}


@proposes(2)
def quantized_weights(g: Graph) -> Proposed:
    x = g.pick("float32", rank=g.either(2, 3))
    k = shape_of(g, x)[-1]
    if not k:
        raise LookupError
    if g.rng.random() < 0.3:
        operands = [x, g.random("uint8", k, 5), _scale(g), _zero(g, "uint8")]
        attrs = {"domain": MICROSOFT}
        return "DynamicQuantizeMatMul", operands, 1, attrs
    if g.rng.random() < 0.3:
        codes, scales = g.constant(g.rng.integers(0, 256, 3 * k).astype(np.uint8)), _scale(g, -(-6 * k // 16))
        attrs = {"K": k, "N": 6, "block_size": 16, "quant_type": g.either(0, 1), "domain": MICROSOFT}
        return "MatMulBnb4", [x, codes, scales], 1, attrs
    blocks = -(-k // 16)
    packed, scales = g.constant(g.rng.integers(0, 256, (6, blocks, 8)).astype(np.uint8)), _scale(g, 6 * blocks)
    order = [] if g.rng.random() < 0.7 else ["", g.constant(g.rng.permutation(np.arange(k) // 16).astype(np.int32))]
    return (
        "MatMulNBits",
        [x, packed, scales, *order],
        1,
        {"K": k, "N": 6, "bits": 4, "block_size": 16, "domain": MICROSOFT},
    )


# --- ai.onnx.ml


@proposes(3)
def estimators(g: Graph) -> Proposed:
    x = g.pick("float32", rank=2)
    c = shape_of(g, x)[1]
    if not c:
        raise LookupError
    numbers = [round(float(v), 3) for v in g.rng.uniform(0.1, 2, 3 * c + 3)]
    op, attrs = g.either(
        ("Scaler", {"offset": numbers[:c], "scale": numbers[c : 2 * c]}),
        ("Normalizer", {"norm": g.either("MAX", "L1", "L2")}),
        ("Binarizer", {"threshold": 0.3}),
        ("LinearRegressor", {"coefficients": numbers[: 3 * c], "intercepts": numbers[3 * c :], "targets": 3}),
        ("Imputer", {"imputed_value_floats": numbers[:1], "replaced_value_float": 0.5}),
        ("TreeEnsembleRegressor", _trees(c)),
    )
    return op, [x], 1, {**attrs, "domain": ML}


def _trees(columns: int) -> dict:
    """Two trees: one with a single decision, one with two."""
    modes = ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "BRANCH_LT", "LEAF", "LEAF"]
    leaves = [(0, 1), (0, 2), (1, 1), (1, 3), (1, 4)]
    return {
        "n_targets": 2,
        "nodes_treeids": [0] * 3 + [1] * 5,
        "nodes_nodeids": [0, 1, 2, 0, 1, 2, 3, 4],
        "nodes_modes": modes,
        "nodes_featureids": [0, 0, 0, columns - 1, 0, columns // 2, 0, 0],
        "nodes_values": [0.31, 0.0, 0.0, 0.47, 0.0, 1.13, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0, 1, 0, 3, 0, 0],
        "nodes_falsenodeids": [2, 0, 0, 2, 0, 4, 0, 0],
        "target_treeids": [t for t, _ in leaves],
        "target_nodeids": [n for _, n in leaves],
        "target_ids": [0, 1, 0, 1, 1],
        "target_weights": [0.5, -1.0, 2.0, 0.25, 3.0],
    }


@proposes()
def codes(g: Graph) -> Proposed:
    operands = [g.pick("int64")]
    attrs = {"keys_int64s": [0, 1, 2, 5], "values_int64s": [3, 1, 4, 0], "default_int64": 7, "domain": ML}
    return "LabelEncoder", operands, 1, attrs
