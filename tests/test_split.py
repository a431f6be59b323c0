"""Convolutions whose sums are made in parts: what they become, that it means the same, and when it is worth it."""
from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import program
from test_passes import assert_same

from pelton.kernels.template import Target
from pelton.kernels.triton import library  # noqa: F401  (declares the templates)
from pelton.kernels.triton.conv import parts
from pelton.passes.split import split

RNG = np.random.default_rng(3)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("graph", [
    program(("y", "convolution", "x w b", dict(strides=(2, 1), pads=(1, 0, 1, 2), dilations=(1, 2), group=1)), ("z", "relu", "y"), x="f16[2, 32, 5, 6]",
            w=weights(6, 32, 3, 2), b=weights(6)),
    program(("y", "convolution", "x w b", dict(strides=(1,), pads=(1, 1), dilations=(1,), group=1)), x="f32[1, 32, 9]",
            w=weights(6, 32, 3).astype(np.float32), b=weights(6).astype(np.float32)),
], ids=["windows", "windows in a line"])
def test_sums_in_parts_mean_the_same(graph):
    after = split(graph, lambda node: 4 if node.op.name == "convolution" else 1)
    ops = [n.op.name for n in after.nodes]
    assert "convolution_wide" in ops and "reduce_sum" in ops and "convolution" not in ops
    assert_same(graph, after, 1e-3)                                            # the cast rounds


def test_small_pictures_of_many_channels_are_convolved_in_parts():
    target = Target(isa="sm_90", lanes=32, threads=132)

    def parts_of(batch: int, size: int, c: int, o: int, group: int = 1) -> int:
        graph = program(("y", "convolution", "x w b", dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=group)),
                        x=f"f16[{batch}, {c}, {size}, {size}]", w=weights(o, c // group, 3, 3), b=weights(o))
        return parts(graph, graph.nodes[0], target)
    assert parts_of(1, 13, 1024, 1024) > 1
    assert parts_of(128, 14, 256, 256) == parts_of(1, 56, 64, 64) == parts_of(1, 13, 1024, 1024, 8) == 1
