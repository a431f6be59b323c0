"""Fourier transforms, and functions of their complex results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.importers.fourier import fit_axis, is_supported_length, transform
from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.op import get
from pelton.ir.types import DType
from pelton.network import Network, NetworkTensor

from ..held import Held
from ..node import Given, TFLiteReading, reads


@dataclass
class _NetworkWriter:
    """Writes ops of a transform into a network."""

    net: Network

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        (tensor,) = self.net.apply(get(op), [self.net.wrap(v) for v in inputs], attrs)
        return self.net.value(tensor)

    def constant(self, array: Any, dtype: DType) -> Value:
        return self.net.builder.shared_constant(np.asarray(array, dtype.numpy))


@reads("RFFT2D")
def rfft2d(n: TFLiteReading) -> Given:
    """Computes the first half of the transform along the last axis, then the transform along the one before, of real
    numbers that are cropped or zero-padded to two lengths."""
    net, x, lengths = n.net, n.input(0), n.known(1, "lengths")
    if x.rank < 2 or len(lengths) != 2 or not is_known(*x.shape[-2:]):
        raise n.refuse(f"needs two lengths, and images of known sizes, got {x!r} and {list(lengths)}")
    if not all(d > 0 and is_supported_length(d) for d in lengths):
        raise n.refuse(f"has the lengths {list(lengths)}")
    (rows, columns), rank, writer = lengths, x.rank, _NetworkWriter(net)
    whole = fit_axis(writer, fit_axis(writer, net.value(x), rank - 2, rows), rank - 1, columns)
    y = net.wrap(transform(writer, net.value(net.unsqueeze(net.wrap(whole), -1)), columns // 2 + 1, -1.0))
    if rows > 1:
        swapped = (*range(rank - 2), rank - 1, rank - 2, rank)
        y = net.transpose(net.wrap(transform(writer, net.value(net.transpose(y, swapped)), rows, -1.0)), swapped)
    real, imaginary = (net.gather(y, np.asarray(i, np.int64), axis=-1) for i in (0, 1))
    return Held(net, n.outputs[0], real, imaginary=Held(net, n.outputs[0], imaginary))


@reads("REAL")
def real(n: TFLiteReading) -> Given:
    return _parts(n)[0]


@reads("IMAG")
def imaginary(n: TFLiteReading) -> Given:
    return _parts(n)[1]


@reads("COMPLEX_ABS")
def complex_abs(n: TFLiteReading) -> Given:
    a, b = _parts(n)
    return n.net.sqrt(n.net.add(n.net.mul(a, a), n.net.mul(b, b)))


def _parts(n: TFLiteReading) -> tuple[NetworkTensor, NetworkTensor]:
    x = n.given(0)
    if x.imaginary is None:
        raise n.refuse(f"needs complex numbers, got {x.spec}")
    return x.raw(), x.imaginary.raw()
