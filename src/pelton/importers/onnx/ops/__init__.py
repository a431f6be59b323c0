"""Readers of ONNX operators, one file per family; importing this package declares all of them."""

from . import (  # noqa: F401
    attention,
    control,
    conv,
    declared,
    fourier,
    image,
    index,
    labels,
    linear,
    math,
    ml,
    norm,
    quant,
    reduce,
    retired,
    rnn,
    shape,
    svm,
    texts,
    train,
    trees,
    unpool,
)

declared.declare()  # after all others
