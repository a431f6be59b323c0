"""Writers of conversions between numbers and stored integers."""

from __future__ import annotations

from pelton.ir.types import F32, I8

from ..fusion import scaling_of
from ..tensors import NoForm
from ..writing import TFLiteWriting, writes


@writes("quantize")
def quantize(w: TFLiteWriting) -> None:
    for name in w.node.attrs:
        w.attrs[name]  # `scaling_of` reads them
    scaling = scaling_of(w.model, w.node)
    if scaling is None or len(scaling.scale) > 1 or w.type(0).dtype is not F32:
        raise NoForm("TFLite quantizes f32 to bytes by one constant scale and zero point")
    perm = w.native(0)
    x = w.model.integers(w.input(0), perm)
    x = w.model.get(w.input(0), perm) if x is None or w.known(0) is not None else x
    w.put(0, w.model.rescaled(x, scaling, I8), perm)


@writes("dequantize")
def dequantize(w: TFLiteWriting) -> None:
    """Constants may have a scale per element of an axis; others one scale, which their producer has as well."""
    for name in w.node.attrs:
        w.attrs[name]
    model, x, scaling = w.model, w.input(0), scaling_of(w.model, w.node)
    if scaling is None or w.output.dtype is not F32:
        raise NoForm("TFLite dequantizes bytes to f32 by constant scales and one zero point")
    if (codes := model.known(x)) is not None:
        shift = 128 if codes.dtype.kind == "u" else 0
        held = type(x)(x.type.with_dtype(I8), x.name)
        model.put_codes(held, (codes.astype("int16") - shift).astype("int8"), scaling)
        model.put_stored(w.node.output, held, scaling)
    elif model.scaling(x) != scaling:
        raise NoForm("it dequantizes integers by another scale than they were quantized by")
    else:
        model.put_stored(w.node.output, x, scaling)
