"""Convolutions by a fake cuDNN: results, selection, fallbacks, and resistance to forged engine files."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import test_cuda_tuning  # noqa: E402
from fake_cudnn import FIT, WORKSPACE, FakeCudnn  # noqa: E402
from kernel_harness import laid, program, region_of  # noqa: E402
from onnx import helper  # noqa: E402
from onnx_models import model  # noqa: E402
from test_cuda_tuning import built_on, device  # noqa: E402, F401  (fixtures)
from test_triton_cublaslt import idle  # noqa: E402, F401  (a fixture)
from triton_cases import constant, conv, one  # noqa: E402
from triton_harness import TARGET, Case, check  # noqa: E402

import pelton  # noqa: E402
from pelton.backends.cuda import cudnn  # noqa: E402
from pelton.backends.cuda.cudnn import CudnnLibrary, bound  # noqa: E402
from pelton.backends.cuda.null import NullDevice  # noqa: E402
from pelton.engine import library  # noqa: E402
from pelton.engine.validate import validate  # noqa: E402
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step, Tensor  # noqa: E402
from pelton.engine.convolution import ConvolutionDescriptor  # noqa: E402
from pelton.engine.work import ALIGNED, CHOICES, KINDS  # noqa: E402
from pelton.errors import EngineError  # noqa: E402
from pelton.ir.types import F32  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES  # noqa: E402
from pelton.tuning import launches  # noqa: E402
from pelton.tuning.candidates import template_rejection  # noqa: E402

SYMBOL, VERSION, NAMES = ConvolutionDescriptor.symbol, 92800, [f.name for f in fields(ConvolutionDescriptor)]
HERE = replace(TARGET, libraries=((SYMBOL, VERSION),))
RELU = (("z", "relu", "y"),)
LAST = (0, 2, 3, 1)


def residual(dtype: str, bias: np.ndarray, *tail) -> Case:
    """A convolution and another feature map, added to it."""
    attrs = dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1)
    return one(
        f"residual-{dtype}-{'bias' if bias.any() else 'none'}{'-relu' * bool(tail)}",
        ("p", "convolution", "x w b", attrs),
        ("q", "add", "z p"),
        *tail,
        x=f"{dtype}[2, 8, 5, 7]",
        w=constant(dtype, 12, 8, 3, 3),
        b=bias,
        z=f"{dtype}[2, 12, 5, 7]",
        orders={"x": LAST, "z": LAST},
    )


def cases(dtype: str) -> list[Case]:
    bias = constant(dtype, 12)
    return [
        conv(dtype, (2, 8, 9, 7), 12, (3, 3), pads=1, tail=RELU),
        conv(dtype, (1, 16, 8, 9), 24, (3, 3), strides=2, pads=1),
        conv(dtype, (2, 24, 5, 6), 10, (1, 1), strides=2),
        conv(dtype, (1, 32, 6, 7), 16, (3, 3), dilations=2, pads=2, group=2),
        conv(dtype, (1, 16, 5, 5), 8, (5, 5), pads=2),
        residual(dtype, bias, ("y", "relu", "q")),
        residual(dtype, bias),
        residual(dtype, 0 * bias),
    ]


CASES = {SYMBOL: [case for dtype in ("f16", "bf16") for case in cases(dtype)]}


@pytest.fixture
def dnn() -> CudnnLibrary:
    return CudnnLibrary(FakeCudnn())  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES[SYMBOL], ids=lambda case: case.name)
def test_convolutions(case, dnn):
    def run(
        source: str,
        symbol: str,
        arrays: Sequence[tuple[np.ndarray, str, int]],
        dims: Sequence[int],
        tiles: int,
        phases: int,
    ) -> list[np.ndarray]:
        assert symbol == SYMBOL and tiles == 1 and "by cudnn:CHOICE=" in source
        descriptor = library.work(SYMBOL, dims)
        descriptor = replace(descriptor, choice=descriptor.choice % len(FIT))
        for (array, _, first), (_, elements) in zip(arrays, descriptor.operands(), strict=True):
            assert first + elements <= array.size  # which is what engines are checked by
        found = dnn.plan(descriptor, [ALIGNED if first % 8 == 0 else a.itemsize for a, _, first in arrays])
        room = np.zeros(max(1, found.workspace), np.uint8)
        assert found.workspace == WORKSPACE * FIT[descriptor.choice]
        found(
            np.array(
                [*(a.ctypes.data + first * a.itemsize for a, _, first in arrays), *dims, room.ctypes.data, 0], np.int64
            ),
            7,
        )
        assert dnn.functions.stream == 7
        return [a for a, _, _ in arrays]

    # images may lie with gaps
    assert len(check(GPU_TEMPLATES[SYMBOL], case, 3, target=HERE, run=run)) == 6


@pytest.mark.parametrize(
    "dtype, x, w, more, nodes, reason",
    [
        ("f16", (1, 12, 5, 5), (4, 12, 3, 3), {}, (), "not constant filters of 8, 16"),
        ("f16", (1, 8, 5), (4, 8, 3), {}, (), "two spatial axes"),
        ("f16", (1, 8, 5, 5), (4, 8, 1, 1), {}, (), "a product"),
        ("f16", (1, 8, 5, 5), (4, 8, 3, 3), {}, (("q", "sigmoid", "y"),), "sigmoid is none of the ends"),
        ("f16", (1, 8, 5, 5), (4, 8, 3, 3), {}, (("q", "relu", "y"), ("r", "add", "q c")), "add is none"),
        ("f16", (1, 8, 5, 5), (4, 8, 3, 3), {}, (("q", "add", "y s"),), "is no feature map"),
        ("f16", (1, 8, 5, 5), (4, 8, 3, 3), {}, (("q", "add", "y c"), ("r", "add", "q c")), "is no feature map"),
        ("f16", (1, 8, 5, 5), (4, 8, 3, 3), {}, (("q", "cast", "y", {"to": F32}),), "cast is none"),
        ("f16", (1, 8, 5, 5), (4, 8, 3, 3), {}, (("out1", "relu", "y"), ("out2", "relu", "out1")), "several outputs"),
    ],
)
def test_what_a_library_does_not_do(dtype, x, w, more, nodes, reason):
    space = len(x) - 2
    attrs = dict(strides=(1,) * space, pads=(0,) * 2 * space, dilations=(1,) * space, group=1)
    inputs = {"c": f"{dtype}[1, 4, 3, 3]", "s": constant(dtype, 4, 1, 1)}
    read = {n for _, _, words, *_ in nodes for n in words.split()}
    graph = program(
        ("y", "convolution", "x w b", attrs),
        *nodes,
        x=f"{dtype}{list(x)}",
        w=constant(dtype, *w),
        b=constant(dtype, 4),
        **{n: v for n, v in inputs.items() if n in read},
    )
    assert reason in (template_rejection(GPU_TEMPLATES[SYMBOL], region_of(graph)) or "")


def test_of_f32_only_where_it_may_be_multiplied_as_tf32():
    template, case = GPU_TEMPLATES[SYMBOL], conv("f32", (1, 8, 5, 5), 4, (3, 3))
    region = region_of(case.graph)
    lies = laid(template, region, case, 0)
    assert not list(template.tactics(region, lies, HERE))
    first, *_ = template.tactics(region, lies, replace(HERE, tf32=True))
    descriptor = library.work(SYMBOL, template.emit(region, lies, first, replace(HERE, tf32=True)).dims)
    assert KINDS[descriptor.kind] == "tf32" and {kind for kind, _ in descriptor.operands()} == {"f32"}


def test_pictures_that_lie_otherwise_are_none_of_it():
    template, case = GPU_TEMPLATES[SYMBOL], CASES[SYMBOL][0]
    region = region_of(case.graph)
    lies = laid(template, region, case, 0)
    assert len(list(template.tactics(region, lies, HERE))) == CHOICES
    for value in (region.anchor.inputs[0], region.output):
        planes = tuple(np.cumprod((1, *value.type.shape[:0:-1]))[::-1].tolist())
        assert not list(template.tactics(region, {**lies, value: planes}, HERE))


# ---- engines ----


def fast(launch) -> float:
    return 1000.0 if launch.function.cubin.symbol == SYMBOL else 5000.0


@pytest.fixture
def small(monkeypatch):
    """A network of two convolutions, of which the first one makes f16; no step becomes part of a chain."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((16, 8, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(16).astype(np.float32),
        "v": rng.standard_normal((4, 16, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "v"], ["y"], "last"),
    ]
    monkeypatch.setattr(test_cuda_tuning, "product", lambda: model(nodes, {"x": "f32[1, 8, 6, 5]"}, ["y"], weights))
    monkeypatch.setattr(launches, "find_chains", lambda *given: [])


def told_by(engine) -> list[str]:
    return [s.info["tactic"] for s in engine.steps if s.symbol == SYMBOL]


def test_the_clock_decides_and_a_kernel_stands_in_where_the_library_is_not(
    built_on,
    small,
    dnn,
    idle,
    caplog,
    tmp_path,
):
    engine = built_on(device(fast, libraries={SYMBOL: dnn}), precision="fp16", timing_cache=None)
    (step,) = (s for s in engine.steps if s.symbol == SYMBOL)
    assert told_by(engine) == [f"cudnn:CHOICE=0,VERSION={VERSION}@sm_90"] and step.alternatives[0].symbol != SYMBOL
    assert step.args[: len(step.alternatives[0].args)] == step.alternatives[0].args  # of the same weights
    data = engine.tobytes()
    assert (
        pelton.load(data, device=None).start(NullDevice(libraries={SYMBOL: dnn})).steps[engine.steps.index(step)].symbol
        == SYMBOL
    )
    for other, said in (
        ({}, "cudnn is not installed"),
        ({SYMBOL: CudnnLibrary(FakeCudnn(91000))}, "cuDNN 9.10.0 is installed"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pelton.runtime"):
            loaded = pelton.load(data, device=None).start(NullDevice(libraries=other))
        assert SYMBOL not in {s.symbol for s in loaded.steps} and f"cudnn 9.28.0: {said}" in caplog.text
    guessed = built_on(None, level=3, precision="fp16", timing_cache=None)
    assert not told_by(guessed) and any(s.symbol == SYMBOL for step in guessed.steps for s in step.alternatives)
    assert not told_by(pelton.tune(guessed, device(fast)))  # not there
    assert told_by(pelton.tune(guessed, device(fast, libraries={SYMBOL: dnn}))) == told_by(engine)


# ---- forged engines, and libraries that refuse ----


def descriptor(**other: int) -> ConvolutionDescriptor:
    """Two images of 8 channels and 5×4 pixels, by 16 filters of 3×3, f16, a bias and another feature map."""
    values = dict(
        version=VERSION,
        choice=0,
        kind=1,
        end=1,
        bias=1,
        added=1,
        n=2,
        c=8,
        h=5,
        w=4,
        out=16,
        group=1,
        kernel_h=3,
        kernel_w=3,
        stride_h=1,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
        top=1,
        left=1,
        bottom=1,
        right=1,
        w_step=72,
        x_n=160,
        x_h=32,
        x_w=8,
        y_n=320,
        y_h=64,
        y_w=16,
        z_n=320,
        z_h=64,
        z_w=16,
    )
    return ConvolutionDescriptor(**{**values, **other})


def forged(step_of: ConvolutionDescriptor | tuple = (), offset: int = 0, **other) -> EnginePlan:
    dims = step_of.dims() if isinstance(step_of, ConvolutionDescriptor) else tuple(step_of) or descriptor().dims()
    sizes = [("input", 640), ("constant", 2304), ("constant", 32), ("input", 1280), ("output", 1280)]
    args = tuple(Slice(i, offset if i == 1 else 0) for i in range(len(sizes)))
    at = iter([0, 0, 2304, 1, 0])
    buffers = tuple(Buffer(kind, next(at), size) for kind, size in sizes)
    ports = [Port("x", "f16", (2, 5, 4, 8)), Port("z", "f16", (2, 5, 4, 16))], [Port("y", "f16", (2, 5, 4, 16))]
    spare = Step("c", "k", args, (), info={"tactic": "k"})
    written = (Tensor(args[-1], "f16", (2, 5, 4, 16), (320, 64, 16, 1)),)
    step = Step("c", SYMBOL, args, dims, outputs=written, info={"tactic": "cudnn@sm_90"}, alternatives=(spare,))
    return EnginePlan(
        "e",
        tuple(ports[0]),
        tuple(ports[1]),
        buffers,
        (replace(step, **other),),
        0,
        np.zeros(2336, np.uint8),
        b"code",
        {"arch": "cuda"},
        {},
    )


def test_forged_convolutions_are_refused():
    validate(forged())
    for change in (
        dict(n=3),
        dict(c=16),
        dict(h=6),
        dict(w=5),
        dict(out=17),
        dict(out=32),
        dict(group=3),
        dict(group=0),
        dict(kernel_h=9),
        dict(kernel_w=5),
        dict(stride_h=0),
        dict(dilation_w=0),
        dict(top=-1),
        dict(bottom=2),
        dict(right=1 << 31),
        dict(w_step=71),
        dict(w_step=1 << 50),
        dict(x_n=161),
        dict(x_h=31),
        dict(x_w=7),
        dict(y_n=319),
        dict(y_h=63),
        dict(y_w=15),
        dict(y_w=17),
        dict(z_n=321),
        dict(z_h=1 << 41),
        dict(kind=3),
        dict(kind=0),
        dict(end=2),
        dict(choice=3),
        dict(bias=0),
        dict(added=0),
        dict(added=2),
        dict(version=-1),
        dict(x_n=-1),
    ):
        with pytest.raises(EngineError, match="is damaged"):
            validate(forged(descriptor(**change)))
    for wrong in (
        forged((1, 2, 3)),
        forged(("x",) * len(NAMES)),
        forged(offset=2),
        forged(offset=1),
        forged(tiles=2),
        forged(alternatives=()),
        forged(info={}),
        forged(args=tuple(Slice(i, 0) for i in (4, 1, 2, 3, 0))),
    ):
        with pytest.raises(EngineError, match="is damaged"):
            validate(wrong)


@pytest.mark.parametrize(
    "name",
    [
        "Create",
        "SetStream",
        "BackendCreateDescriptor",
        "BackendSetAttribute",
        "BackendFinalize",
        "BackendGetAttribute",
        "BackendExecute",
    ],
)
def test_every_status_is_one_error(name):
    room = [np.zeros(4096, np.float16) for _ in range(5)]
    with pytest.raises(EngineError, match=rf"cuDNN 9.28.0 refuses cudnn{name}: made to fail \(status 3000\)"):
        fake = FakeCudnn(fails={"cudnn" + name: 3000})
        planned = CudnnLibrary(fake).plan(descriptor(), [ALIGNED] * 5)  # type: ignore[arg-type]
        planned(np.array([*(a.ctypes.data // 16 * 16 for a in room), *descriptor().dims(), 0, 0], np.int64), 0)


def test_what_a_library_makes_is_given_back_and_what_it_lacks_is_said(dnn, monkeypatch):
    before = dnn.functions.live
    planned = dnn.plan(descriptor(), [ALIGNED] * 5)
    # the same convolution in another place
    assert dnn.plan(descriptor(), [ALIGNED] * 5) is planned and dnn.functions.live > before
    assert dnn.plan(descriptor(n=1), [ALIGNED] * 5) is not planned
    del planned
    gc.collect()
    assert dnn.functions.live == before
    with pytest.raises(
        EngineError,
        match=r"proposes 2 engines for a convolution of 2×8×5×4 by 16 filters of 3×3, number 2 was asked for",
    ):
        dnn.plan(descriptor(choice=2), [ALIGNED] * 5)
    # none that rounds otherwise, or otherwise every time
    for notes in ([1], [2], [3], [4], [7]):
        with pytest.raises(EngineError, match="proposes 0 engines"):
            CudnnLibrary(FakeCudnn(engines=[(notes, [])])).plan(descriptor(), [ALIGNED] * 5)  # type: ignore[arg-type]
    monkeypatch.setattr(cudnn, "WORKSPACE", WORKSPACE - 1)
    fake = FakeCudnn(engines=[([4], []), ([], [])])
    with pytest.raises(EngineError, match="proposes 1 engines"):
        CudnnLibrary(fake).plan(descriptor(), [ALIGNED] * 5)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="is no cuDNN"):
        bound("/dev/null")
