"""Runs a model's own framework on random inputs, for comparison with Pelton's results of the ONNX model."""

import os

import numpy as np
import onnx

FILE = "reference.npz"  # beside the ONNX model
# Sizes along unknown axes, the first one and the others, and an upper bound of integers: first the most acceptable.
SIZES = ((2, 64), (1, 128), (1, 224), (1, 32), (1, 8), (1, 1))
HIGHEST = (100, 2)


def write_reference(target, version, run):
    """Writes the inputs and outputs of two runs beside the ONNX model at `target`, or the reason why there are none.
    run: a function from arrays by input name to the outputs in order; version: the framework with its version."""
    inputs = onnx.load(target, load_external_data=False).graph.input
    reason = "no run was possible"
    for sizes in SIZES if any(None in shape_of(x) for x in inputs) else SIZES[:1]:
        for highest in HIGHEST:
            arrays = {x.name: drawn(x, sizes, highest, i) for i, x in enumerate(inputs)}
            try:
                runs = [[np.asarray(a) for a in run(arrays)] for _ in range(2)]
            except Exception as e:  # of many classes
                reason = f"its run fails: {type(e).__name__}: {' '.join(str(e).split())[:200]}"
                continue
            save(target, version, arrays, runs)
            return
    save(target, version, reason=reason)


def save(target, version, inputs=None, runs=(), reason=""):
    named = {f"input {name}": plain(a) for name, a in (inputs or {}).items()}
    for number, run in enumerate(runs):
        named |= {f"run {number} output {i}": plain(a) for i, a in enumerate(run)}
    count = len(runs[0]) if runs else 0
    path = os.path.join(os.path.dirname(target), FILE)
    np.savez(path, version=np.array(version), reason=np.array(reason), outputs=np.array(count), **named)


def plain(array):
    """Returns the array, in float32 if files cannot hold its type."""
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def shape_of(value):
    """Returns the sizes of an ONNX input, None for unknown ones."""
    return [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]


def drawn(value, sizes, highest, seed):
    """Draws a random array for an ONNX input."""
    rng = np.random.default_rng(seed)
    drawn_sizes = (sizes[axis > 0] for axis in range(len(shape_of(value))))
    shape = [chosen if size is None else size for size, chosen in zip(shape_of(value), drawn_sizes)]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else highest, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
