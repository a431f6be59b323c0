"""Matrix products and embedding tables."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import DType

from ..activations import activated
from ..config import NO_QUANTIZATION, LayerConfig
from ..held import HeldTensor
from ..reading import KerasReading, reads
from .convolution import kernel_and_bias


@reads("Dense", variables=kernel_and_bias)
def dense(r: KerasReading) -> HeldTensor:
    x, units = r.floats(casts=True), r.layer.integer("units")
    r.layer.expect(**NO_QUANTIZATION, lora_rank=None)
    if x.rank < 2:
        raise r.refuse(f"needs a tensor of two axes and more, got {list(x.shape)}")
    kernel = r.variable("kernel", r.number(x.shape[-1], "the size of its input"), units)
    y = r.net.matmul(x.tensor(), kernel)
    y = y + r.variable("bias", units) if r.layer.flag("use_bias", True) else y
    return activated(r, r.of(y))


def _einsum_variables(layer: LayerConfig) -> list[str]:
    return ["kernel", *["bias"] * (layer.option("bias_axes", None) is not None)]


@reads("EinsumDense", variables=_einsum_variables)
def einsum_dense(r: KerasReading) -> HeldTensor:
    x, equation = r.floats(casts=True), r.layer.option("equation")
    r.layer.ignore("output_shape")
    r.layer.expect(**NO_QUANTIZATION, lora_rank=None)
    kernel = r.weights.array(r.layer, "kernel").astype(np.float32)
    y = r.net.einsum(explicit_equation(r, equation, x.rank), x.tensor(), kernel)
    if r.layer.option("bias_axes", None) is not None:
        y = y + r.weights.array(r.layer, "bias").astype(np.float32)
    return activated(r, r.of(y))


def explicit_equation(r: KerasReading, equation: object, rank: int) -> str:
    """Replaces the ellipsis of an equation's first operand by as many letters as it has axes."""
    if not isinstance(equation, str):
        raise r.refuse(f"has no equation, but {equation!r:.60}")
    text = equation.replace(" ", "")
    first = text.partition(",")[0]
    letters = [c for c in "ABCDEFGHIJKLMNOP" if c not in text]
    return text.replace("...", "".join(letters[: max(rank - len(first.replace("...", "")), 0)]))


@reads("Embedding", variables=("embeddings",))
def embedding(r: KerasReading) -> HeldTensor:
    x, rows, features = r.input(), r.layer.integer("input_dim"), r.layer.integer("output_dim")
    r.layer.expect(**NO_QUANTIZATION, lora_rank=None, sparse=False)
    r.layer.ignore("input_length")
    indices = x.tensor() if x.dtype in (DType.I32, DType.I64) else r.net.cast(x.tensor(), to="i32")
    y = r.of(r.net.embedding(r.variable("embeddings", rows, features), indices))
    y.masked = r.layer.flag("mask_zero", False)
    return y
