"""Forged engines, failing libraries, and products as nodes of graphs: cuBLASLt at run time."""

from __future__ import annotations

import ctypes
import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from test_triton_cublaslt import blas  # noqa: E402, F401  (fixtures)
from test_triton_cublaslt import NAMES, SYMBOL, built  # noqa: E402
from test_cuda_driver import driver, needs_binding, ran  # noqa: E402, F401  (fixtures)
from test_cuda_runtime import on_gpu  # noqa: E402

from pelton.backends.cuda.cublaslt import CublasLtLibrary, bound  # noqa: E402
from pelton.engine.validate import validate  # noqa: E402
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step, Tensor  # noqa: E402
from pelton.engine.product import MatmulDescriptor  # noqa: E402
from pelton.errors import EngineError  # noqa: E402


# ---- forged engines, and libraries that refuse ----


def descriptor(**other: int) -> MatmulDescriptor:
    values = dict.fromkeys(NAMES, 0) | dict(
        version=130100, scale=0x3F800000, batch=1, m=4, n=6, k=5, a_line=5, b_line=6, c_line=6, d_line=6, bias=1
    )
    return MatmulDescriptor(**{**values, **other})


def forged(step_of: MatmulDescriptor | tuple = (), offset: int = 0, **other) -> EnginePlan:
    """A product of 4×5 by 5×6 of f32, and a bias, in a plain engine."""
    dims = step_of.dims() if isinstance(step_of, MatmulDescriptor) else tuple(step_of) or descriptor().dims()
    sizes = {"arena": 80, "constant": 128 + 24, "output": 96}
    args = (Slice(1, 0), Slice(2, offset), Slice(3, 0), Slice(0, 0))
    port = Port("y", "f32", (4, 6))
    buffers = (
        Buffer("output", 0, 96),
        Buffer("arena", 0, sizes["arena"]),
        Buffer("constant", 0, 120),
        Buffer("constant", 128, 24),
    )
    spare = Step("p", "k", args, (), info={"tactic": "k"})
    written = (Tensor(args[-1], "f32", (4, 6), (6, 1)),)
    step = Step("p", SYMBOL, args, dims, outputs=written, info={"tactic": "cublaslt@sm_90"}, alternatives=(spare,))
    return EnginePlan(
        "e", (), (port,), buffers, (replace(step, **other),), 80, np.zeros(152, np.uint8), b"code", {"arch": "cuda"}, {}
    )


def test_forged_products_are_refused():
    validate(forged())
    for change in (
        dict(m=5),
        dict(a_line=6),
        dict(b_line=7),
        dict(n=7),
        dict(k=0),
        dict(m=-1),
        dict(batch=2),
        dict(batch=1 << 31),
        dict(d_line=5),
        dict(kind=4),
        dict(out=1),
        dict(end=9),
        dict(choice=3),
        dict(b_step=-1),
        dict(bias=0),
        dict(added=1),
        dict(scale=1 << 32),
        dict(a_line=1 << 50),
        dict(b_transposed=1),
        dict(version=-1),
    ):
        with pytest.raises(EngineError, match="is damaged"):
            validate(forged(descriptor(**change)))
    for wrong in (
        forged((1, 2, 3)),
        forged(("x",) * len(NAMES)),
        forged(offset=4),
        forged(offset=2),
        forged(tiles=2),
        forged(alternatives=()),
        forged(info={}),
        forged(args=(Slice(1, 0), Slice(2, 0), Slice(0, 0), Slice(3, 0))),
    ):
        with pytest.raises(EngineError, match="is damaged"):
            validate(wrong)


@pytest.mark.parametrize(
    "name, status",
    [
        ("Create", 1),
        ("MatmulDescCreate", 3),
        ("MatmulDescSetAttribute", 7),
        ("MatmulAlgoGetHeuristic", 15),
        ("Matmul", 13),
    ],
)
def test_every_status_is_one_error(name, status, monkeypatch):
    monkeypatch.setenv("FAKE_CUBLASLT_FAIL", f"cublasLt{name}={status}")
    arrays = [np.zeros(30, np.float32) for _ in range(4)]
    with pytest.raises(EngineError, match=rf"cuBLASLt 13.1.0 refuses cublasLt{name}: .* \(status {status}\)"):
        planned = CublasLtLibrary(bound(str(built()))).plan(descriptor(), [4] * 4)
        planned(np.array([*(a.ctypes.data for a in arrays), *descriptor().dims(), 0, 0], np.int64), 0)


def test_what_a_library_makes_is_given_back_and_what_it_lacks_is_said(blas):
    live = ctypes.CDLL(str(built())).fake_live
    before = live()
    planned = blas.plan(descriptor(), [4] * 4)
    assert live() > before
    del planned
    assert live() == before
    with pytest.raises(EngineError, match="proposes 2 algorithms for a product of 4×5 by 5×6, number 2 was asked for"):
        blas.plan(descriptor(choice=2), [4] * 4)
    with pytest.raises(EngineError, match="is no cuBLASLt"):
        bound("/dev/null")


# ---- in a graph, on a driver made for tests ----


def with_kernels() -> EnginePlan:
    """x of 40×25: t = 2 x and w = x·B at once, then y = t·B, then z = 3 y, by kernels of the fake driver and by the
    library."""
    lines = descriptor(m=40, n=25, k=25, a_line=25, b_line=25, c_line=25, d_line=25, bias=0)
    ports = [Port(name, "f32", (1000,)) for name in ("x", "w", "y", "z")]
    buffers = (
        Buffer("input", 0, 4000),
        *(Buffer("output", i, 4000) for i in range(3)),
        Buffer("arena", 0, 4000),
        Buffer("constant", 0, 2500),
    )
    x, w, y, z, t, b = (Slice(i, 0) for i in range(6))

    def step(name: str, wave: int, source: Slice, to: Slice, **by) -> Step:
        args = (source, b, to) if by["symbol"] == SYMBOL else (source, to)
        return Step(name, wave=wave, outputs=(Tensor(to, "f32", (1000,), (1,)),), args=args, info={"tactic": "k"}, **by)

    def blas(name: str, wave: int, source: Slice, to: Slice) -> Step:
        spare = replace(step(name, wave, source, to, symbol="scale", dims=(5,), tiles=1000), outputs=())
        return step(name, wave, source, to, symbol=SYMBOL, dims=lines.dims(), alternatives=(spare,))

    steps = (
        step("t", 0, x, t, symbol="scale", dims=(2,), tiles=1000),
        blas("w", 0, x, w),
        blas("y", 1, t, y),
        step("z", 2, y, z, symbol="scale", dims=(3,), tiles=1000),
    )
    return on_gpu(
        EnginePlan(
            "products",
            tuple(ports[:1]),
            tuple(ports[1:]),
            buffers,
            steps,
            4000,
            MATRIX.reshape(-1).view(np.uint8),
            b"",
            {},
            {},
        )
    )


MATRIX = np.random.default_rng(0).integers(0, 2, (25, 25)).astype(np.float32)
X = np.arange(1000, dtype=np.float32)


@needs_binding
@pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is not None,
    reason="a real cuBLASLt may be installed, which is found before the one made for tests",
)
def test_products_are_nodes_of_a_graph(driver, tmp_path, monkeypatch):
    said, log = ran(driver, tmp_path, plain=with_kernels())
    # no library, and that is no error
    assert json.loads(said)["w"] == (5 * X).tolist() and not any("library" in line for line in log)
    (driver / "libcublasLt.so.13").symlink_to(built())
    again = (
        "other = net.context()\n        results = other.run({'x': context.run_async({'x': x})['w']});"
        " context.profile({'x': x})"
    )
    for more, x in (("pass", X.reshape(40, 25)), (again, X.reshape(40, 25) @ MATRIX)):
        said, log = ran(driver, tmp_path, more, plain=with_kernels())
        got, y = {k: np.reshape(v, (40, 25)) for k, v in json.loads(said).items()}, 2 * x @ MATRIX
        assert np.array_equal(got["w"], x @ MATRIX) and np.array_equal(got["y"], y) and np.array_equal(got["z"], 3 * y)
        nodes = [line for line in log if line.startswith("node")][:4]
        assert nodes == ["node 0 scale after", "node 1 graph after", "node 2 graph after 0", "node 3 scale after 2"]
    # 2: relaxed; x lies where the other context wrote it
    assert {"capture 2", "replay library", "change 1"} <= set(log)
    monkeypatch.setenv("FAKE_CUBLASLT_FAIL", "cublasLtMatmul=14")
    said, _ = ran(driver, tmp_path, plain=with_kernels())
    assert said == "EngineError: cuBLASLt 13.1.0 refuses cublasLtMatmul: an internal error (status 14)"
    monkeypatch.delenv("FAKE_CUBLASLT_FAIL")
    said, _ = ran(driver, tmp_path, plain=with_kernels(), fail="cuStreamBeginCapture=801")
    assert said.startswith("EngineError: the NVIDIA driver refuses cuStreamBeginCapture")
