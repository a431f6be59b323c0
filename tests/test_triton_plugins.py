"""Plugin kernels in Triton: interpreted beside their reference, and compiled as steps of GPU engines."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from kernel_harness import program  # noqa: E402
from triton_harness import Case, check  # noqa: E402

import pelton  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES  # noqa: E402
from pelton.compiler.plugin_kernels import declare_kernels  # noqa: E402
from pelton.plugins import TritonKernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_plugins")

SOURCE = '''"""Sums of the rows of a matrix, scaled; a program has one row."""

import triton
import triton.language as tl

# <region>
# </region>
# <tactic>
# </tactic>


@triton.jit
def KERNEL(a):
    r, k = tl.program_id(0), tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, X_1, BLOCK):
        sums += tl.load(a[X] + r * X_S0 + (start + k) * X_S1, mask=start + k < X_1, other=0)
    tl.store(a[Y0] + r * Y0_S0, tl.sum(sums) * SCALE)
'''


def scaled_row_sums():
    @pelton.register
    class ScaledRowSums(pelton.Plugin):
        """scale · the sums of the rows of a matrix."""

        scale: float = 1.0
        kernels = (
            TritonKernel(
                SOURCE,
                lambda inputs, outputs, BLOCK: inputs[0].shape[0],
                tactics=({"BLOCK": 16, "WARPS": 2}, {"BLOCK": 64}),
                strided=True,
                dynamic=True,
            ),
        )

        def infer(self, x):
            if x.rank != 2:
                raise ValueError("needs a matrix")
            return x.with_shape(x.shape[:1])

        def reference(self, x):
            return x.sum(1) * self.scale


@pytest.mark.parametrize("shape", [(5, 19), (3, 130), (1, 1)])
def test_against_the_reference(shape):
    scaled_row_sums()
    declare_kernels()
    graph = program(("y", "scaled_row_sums", "x", dict(scale=-1.5)), x=f"f32{list(shape)}")
    arrays = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    check(GPU_TEMPLATES["scaled_row_sums"], Case("rows", graph, arrays=arrays))


def test_an_engine_for_gpus_has_the_kernel(tmp_path):
    scaled_row_sums()
    net = pelton.Network()
    x = net.input("x", "f32[n, 33]")
    net.output(net.scaled_row_sums(net.relu(x), scale=2.0), "y")
    engine = pelton.build(net, target="cuda:sm_90", level=0, cache_dir=tmp_path)
    assert [s.host for s in engine.plain.steps] == [""] * len(engine.plain.steps)
    assert any("scaled_row_sums" in s.name for s in engine.plain.steps)


def test_the_source_begins_with_a_docstring():
    class Bare(pelton.Plugin):
        kernels = (TritonKernel(SOURCE.partition('"""\n')[2], lambda i, o: 1),)

        def infer(self, x):
            return x

        def reference(self, x):
            return x

    with pytest.raises(pelton.InputError, match="begins with a docstring"):
        pelton.register(Bare)
