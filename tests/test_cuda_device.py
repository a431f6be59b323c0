"""The runtime on a GPU: kernels in PTX, compiled by the driver. Skipped without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import chain, expected
from test_cuda_runtime import branches, dynamic, equal, on_gpu

import pelton
from pelton.backends.cuda import describe
from pelton.engine.cubin import Cubin
from pelton.errors import EngineError

HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
SCALE = (
    HEAD
    + """
.visible .entry scale(.param .u64 x, .param .u64 z, .param .u64 factor, .param .u64 scratch, .param .u64 profile)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %d<4>;
    .reg .f32 %f<2>;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p, %r0, 0;
    @%p ret;
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %d0, %r1, 4;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [z];
    ld.param.u64 %d3, [factor];
    add.s64 %d1, %d1, %d0;
    add.s64 %d2, %d2, %d0;
    ld.global.f32 %f0, [%d1];
    cvt.rn.f32.s64 %f1, %d3;
    mul.f32 %f0, %f0, %f1;
    st.global.f32 [%d2], %f0;
    ret;
}
"""
)
SLOW = (
    SCALE.replace(".entry scale(", ".entry slow(")
    .replace("%r<2>", "%r<3>")
    .replace(
        "    st.global",
        """\
    mov.u32 %r2, 0;
AGAIN:
    ld.volatile.global.f32 %f1, [%d1];
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p, %r2, 300;
    @%p bra AGAIN;
    st.global""",
    )
)
ADD = (
    HEAD
    + """
.visible .entry add(.param .u64 x, .param .u64 y, .param .u64 z, .param .u64 tile, .param .u64 n,
                    .param .u64 scratch, .param .u64 profile)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %d<8>;
    .reg .f32 %f<2>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    cvt.u64.u32 %d0, %r0;
    cvt.u64.u32 %d1, %r1;
    ld.param.u64 %d2, [tile];
    ld.param.u64 %d3, [n];
    setp.ge.u64 %p, %d0, %d2;
    @%p ret;
    mad.lo.u64 %d0, %d1, %d2, %d0;
    setp.ge.u64 %p, %d0, %d3;
    @%p ret;
    shl.b64 %d0, %d0, 2;
    ld.param.u64 %d4, [x];
    ld.param.u64 %d5, [y];
    ld.param.u64 %d6, [z];
    add.s64 %d4, %d4, %d0;
    add.s64 %d5, %d5, %d0;
    add.s64 %d6, %d6, %d0;
    ld.global.f32 %f0, [%d4];
    ld.global.f32 %f1, [%d5];
    add.f32 %f0, %f0, %f1;
    st.global.f32 [%d6], %f0;
    ret;
}
"""
)


@pytest.fixture(scope="module")
def arch() -> int:
    try:
        found = int(describe()["isa"].removeprefix("sm_"))
    except EngineError as e:
        pytest.skip(f"no GPU: {e}")
    if found < 80:
        pytest.skip("the kernels of these tests are for sm_80 and later")
    return found


def made(plain, arch: int) -> pelton.Engine:
    cubins = [
        Cubin("scale", arch, SCALE.encode() + b"\0", 0, 4),
        Cubin("add", arch, ADD.encode() + b"\0", 100, 4, 1, 384, 128),
    ]
    return pelton.Engine(on_gpu(plain, cubins)).start()


def test_right_answers_in_many_runs(arch):
    net = made(chain(100_000), arch)
    contexts = [net.context() for _ in range(3)]
    for i in range(20):
        x = np.random.default_rng(i).integers(-50, 50, 100_000).astype(np.float32)
        assert equal(contexts[i % 3].run({"x": x}), expected(x))
    x = np.random.default_rng(0).integers(-50, 50, 1000).astype(np.float32)
    assert np.array_equal(made(branches(), arch)(x), 9 * x)


def test_every_shape(arch):
    context = made(dynamic(), arch).context()
    for n in (10, 20_000, 10, 0, 77):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        assert np.array_equal(context.run({"x": x})["y"], 2 * x + np.arange(n, dtype=np.float32))


def test_results_of_one_are_inputs_of_another_without_a_copy(arch):
    net = made(chain(1000), arch)
    first, second = net.context(), net.context()
    x = np.arange(1000, dtype=np.float32)
    for _ in range(5):
        between = first.run_async({"x": x})["z"]
        assert equal(second.run({"x": between}), expected(expected(x)["z"]))
    assert all(ns > 0 for _, ns in first.profile({"x": x}))


def test_the_faster_of_two_kernels_is_found(arch):
    plain = chain(10_000)
    steps = [
        (
            replace(s, symbol="slow", info={"tactic": "slow"}, alternatives=(replace(s, info={"tactic": "scale"}),))
            if s.symbol == "scale"
            else s
        )
        for s in plain.steps
    ]
    cubins = [
        Cubin(name, arch, text.encode() + b"\0", 0, 4)
        for name, text in (("scale", SCALE), ("slow", SLOW), ("add", ADD))
    ]
    tuned = pelton.tune(pelton.Engine(on_gpu(replace(plain, steps=tuple(steps)), cubins)))
    assert [s.symbol for s in tuned.steps] == ["scale", "add", "scale"]
    assert all(2 * s.info["times_ns"]["scale"] < s.info["times_ns"]["slow"] for s in tuned.steps if s.symbol == "scale")
    x = np.random.default_rng(0).integers(-50, 50, 10_000).astype(np.float32)
    assert equal(tuned.run({"x": x}), expected(x))


def test_arrays_of_torch(arch):
    torch = pytest.importorskip("torch")
    net = made(chain(1000), arch)
    x, y = torch.arange(1000, dtype=torch.float32, device="cuda"), torch.empty(1000, device="cuda")
    context = net.context()
    results = context.run_async({"x": x * 2}, {"y": y}, stream=torch.cuda.current_stream().cuda_stream)
    assert np.array_equal((y + 1).cpu().numpy(), expected(2 * np.arange(1000, dtype=np.float32))["y"] + 1)
    assert np.array_equal(
        torch.from_dlpack(results["z"]).cpu().numpy(), expected(2 * np.arange(1000, dtype=np.float32))["z"]
    )
