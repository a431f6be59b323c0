"""Softmax and the normalisations."""
import numpy as np
import pytest
from kernel_harness import Case, check, declare, program, walk

LAST = (0, 2, 3, 1)


def softmax(type, axis, op="softmax", order=None, tail=(), array=None, **more):
    name = f"{op}-{type}-{axis}" + ("-" + "".join(map(str, order)) if order else "") + ("-tail" if tail else "") + ("-array" if array is not None else "")
    return Case(name, program(("y", op, "x", dict(axis=axis)), *tail, x=type, **more), dict(x=order) if order else {}, dict(x=array) if array is not None else {})


HARD = np.array([[0, -np.inf, 88, -100, 3e38] * 3, [-np.inf] * 14 + [0], [-3e38] * 15, [700] * 15])

declare(
    "softmax",
    *(softmax(type, axis, op, order) for op in ("softmax", "log_softmax") for type, axis, order in (
        ("f32[5, 13]", 1, None), ("f32[3, 1009]", 1, None), ("f32[2, 3, 7, 5]", 1, None), ("f32[2, 35, 7, 5]", 1, LAST), ("f32[2, 3, 7, 75]", 2, None))),
    softmax("f32[7]", 0),
    softmax("f32[4, 1]", 1),
    softmax("f32[4, 15]", 1, array=HARD),
    softmax("f32[4, 15]", 1, "log_softmax", array=np.maximum(HARD, -1e30)),
    softmax("f16[4, 15]", 1),
    softmax("f32[2, 3, 50]", 2, tail=[("s", "mul", "y z"), ("o", "add", "s x")], z="f32[3, 1]"))


@pytest.mark.parametrize("template, case", walk("softmax"))
def test_softmax(template, case):
    check(template, case)
