"""TFLite models that transform real numbers, and numpy's outputs."""

from __future__ import annotations

import numpy as np
from tflite_models import ModelWriter

CASES = {"frames": ((2, 3, 1, 16), (1, 16)), "images": ((2, 8, 16), (8, 16)), "long": ((3, 1, 1024), (1, 1024))}


def spectrum(case: str):
    """A model whose outputs are the parts of a transform, without its axes of size 1; its input; and these parts."""
    shape, lengths = CASES[case]
    x = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    found = np.fft.rfft2(x.astype(np.float64), lengths)
    w = ModelWriter()
    given, whole = w.main.input(shape, name="x"), w.main.tensor(found.shape, "c64", name="whole")
    w.main.op("RFFT2D", [given, w.main.constant(np.asarray(lengths, np.int32))], [whole])
    found = found.squeeze()
    moved = w.main.tensor(found.shape, "c64", name="moved")
    w.main.op("SQUEEZE", [whole], [moved], "SqueezeOptions")
    want = dict(REAL=found.real, IMAG=found.imag, COMPLEX_ABS=np.abs(found), CAST=found.real)
    for op in want:
        options = ("CastOptions", dict(in_type=8, out_type=0)) if op == "CAST" else ("", {})
        w.main.op(op, [moved], [w.main.output(found.shape, name=op)], options[0], **options[1])
    return w, x, want
