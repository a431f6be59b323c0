"""TFLite models whose weights have a scale for each block of elements."""

from __future__ import annotations

import numpy as np
from tflite_models import ModelWriter

RNG = np.random.default_rng(11)
BITS = {"i4": (4, -8, 8), "u4": (4, 0, 16), "i2": (2, -2, 2), "i8": (8, -128, 128)}


def packed(q, bits):
    """Elements of some bits as bytes, the first in the lowest bits."""
    flat, each = q.reshape(-1).astype(np.int64) & (1 << bits) - 1, 8 // bits
    flat = np.concatenate([flat, np.zeros(-flat.size % each, np.int64)]).reshape(-1, each)
    return (flat << bits * np.arange(each)).sum(1).astype(np.uint8)


def weights(m, shape, block, dtype="i4", axis=1, zeros=False, scales=np.float16):
    """A tensor of random integers in blocks along an axis, and the numbers that it means."""
    bits, low, high = BITS[dtype]
    q = RNG.integers(low, high, shape)
    of = tuple(n // block if a == axis else n for a, n in enumerate(shape))
    scale = RNG.uniform(0.01, 0.1, of).astype(scales)
    zero = RNG.integers(max(low, -4), min(high, 5), of).astype(np.int8) if zeros else np.zeros(of, np.int8)
    details = dict(scales=m.constant(scale), zero_points=m.constant(zero) if zeros else -1, block_size=block)
    more = dict(quantization=dict(details_type=2, details=("BlockwiseQuantization", details)))
    wide = [np.repeat(a.astype(np.float64), block, axis) for a in (scale, zero)]
    return m.tensor(shape, dtype, packed(q, bits), **more), (q - wide[1]) * wide[0]


def fully_connected(batch=3, inputs=64, outputs=8, **given):
    """y = x · wᵀ + b, and w and b."""
    w = ModelWriter()
    x, y = w.main.input((batch, inputs), name="x"), w.main.output((batch, outputs), name="y")
    number, real = weights(w.main, (outputs, inputs), **given)
    bias = RNG.standard_normal(outputs).astype(np.float32)
    w.main.op("FULLY_CONNECTED", [x, number, w.main.constant(bias)], [y], "FullyConnectedOptions", version=6)
    return w.bytes(), real, bias
