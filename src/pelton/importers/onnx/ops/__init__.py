"""How each operator of ONNX reads in ops of ours, one file per family; importing this declares all readers."""

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
    rnn,
    shape,
    svm,
    texts,
    train,
    trees,
)

declared.declare()  # when all the others are there
