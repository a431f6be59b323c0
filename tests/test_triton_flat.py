"""Convolutions that read zero-padded images as consecutive rows of pixels, whatever writes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from kernel_harness import region_of
from onnx_models import draw, model

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from triton_cases import conv  # noqa: E402

import pelton  # noqa: E402
from pelton.backends.cuda.null import seen  # noqa: E402
from pelton.builder.build import build_detailed  # noqa: E402
from pelton.compiler.stages import run_stages, start  # noqa: E402
from pelton.compiler.targets.cuda import target_for  # noqa: E402
from pelton.engine import file  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.codegen.template import Tactic, Target  # noqa: E402
from pelton.codegen.triton import cost  # noqa: E402
from pelton.codegen.triton.toolchain import compile_source  # noqa: E402
from pelton.codegen.triton.templates.library import GPU_TEMPLATES  # noqa: E402
from pelton.options import Options  # noqa: E402
from pelton.plan import place  # noqa: E402
from pelton.plan.layout import Layouts  # noqa: E402

SHAPES = {
    "same": dict(pads=[1] * 4),
    "images": dict(n=3, pads=[1] * 4),
    "tall": dict(n=2, kernel=(5, 3), pads=[2, 1, 2, 1]),
    "uneven": dict(n=2, pads=[2, 0, 0, 1]),
    "more": dict(n=2, pads=[2, 3, 1, 3]),
    "apart": dict(n=2, pads=[2] * 4, dilations=[2, 2]),
    "groups": dict(n=2, pads=[1] * 4, group=2, channels=64),
    "channels": dict(n=2, pads=[1] * 4, channels=24),
    "added": dict(n=2, pads=[1] * 4, residual=True),
}


def network(
    n: int = 1,
    channels: int = 16,
    out: int = 20,
    kernel: tuple[int, int] = (3, 3),
    group: int = 1,
    residual: bool = False,
    size: tuple[int, int] = (9, 7),
    **attrs,
) -> onnx.ModelProto:
    """A product, the convolution in question, something added or not, and another product."""
    rng = np.random.default_rng(1)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    node = onnx.helper.make_node
    added = [node("Conv", ["x", "w3"], ["side"]), node("Add", ["c1", "side"], ["a1"])] if residual else []
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b1"], ["c1"], group=group, **attrs),
        *added,
        node("Relu", ["a1" if residual else "c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["y"]),
    ]
    constants = {
        "w0": weights(channels, 8, 1, 1),
        "b0": weights(channels, 1)[:, 0],
        "w1": weights(out, channels // group, *kernel),
        "b1": weights(out, 1)[:, 0],
        "w2": weights(8, out, 1, 1),
        **({"w3": weights(out, 8, 1, 1)} if residual else {}),
    }
    return model(nodes, {"x": f"f32[{n}, 8, {size[0]}, {size[1]}]"}, ["y"], constants)


def run(
    data: bytes, sources: Mapping[str, str], feeds: list[Mapping[str, np.ndarray]], buffer: int
) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """What a context gives for these inputs, and what is in a buffer of zeros afterwards, by two bytes."""
    engine = pelton.Engine(file.read(data)).start(triton_interpreter.device(sources))
    context = engine.context()
    results = [context.run(f) for f in feeds]
    return (
        results,
        seen(int(context._only.prepared.starts[buffer]), np.uint16, int(engine.plain.buffers[buffer].size) // 2).copy(),
    )


@pytest.fixture
def preferred(monkeypatch):
    """By a model for which addresses that threads compute take long."""
    monkeypatch.setattr(cost, "ADDRESSED", 1e3)


def flat_steps(engine) -> list:
    return [s for s in engine.steps if s.info["tactic"].startswith("conv:") and Tactic.parse(s.info["tactic"])["FLAT"]]


@pytest.mark.parametrize("name, precision", [*((name, "fp16") for name in SHAPES), ("images", "bf16")])
def test_zero_padded_pictures(name, precision, apart, preferred, kernel_cache):
    m = network(**SHAPES[name])
    made = build_detailed(m, Options(target="cuda:sm_90", precision=precision, level=0, cache_dir=kernel_cache))
    (step,) = flat_steps(made.engine)
    x = next(t for s in made.engine.steps for t in s.outputs if t.slice.buffer in {a.buffer for a in step.args[:1]})
    assert (
        made.engine.plain.buffers[x.slice.buffer].kind == "zeros"
        and x.strides[0] > x.shape[1] * x.shape[2] * x.shape[3]
    )
    feeds = [draw(m, seed, low=-1, high=1) for seed in (1, 2)]
    results, held = apart.submit(
        run, made.engine.tobytes(), triton_interpreter.sources(made), feeds, x.slice.buffer
    ).result()
    for fed, got in zip(feeds, results):
        want = evaluate(importer.load(m).graph, fed)["y"]
        assert (
            np.abs(got["y"].astype(np.float64) - want).max()
            < {"fp16": 5e-3, "bf16": 4e-2}[precision] * np.abs(want).max()
        )
    own = np.zeros(held.size, bool)
    np.lib.stride_tricks.as_strided(own, x.shape, x.strides)[...] = True
    assert held[own].any() and not held[~own].any() and not own.all()  # what lies between is zero as before


def test_only_where_it_pays():
    def flat(n: int, channels: int, size: int, *archs: int, precision: str = "fp16") -> int:
        """How many choices of a build without a GPU are flat; their kernels are not compiled."""
        m = network(n, channels, channels, size=(size, size), pads=[1] * 4)
        options = Options(target="cuda:" + ",".join(f"sm_{a}" for a in archs), precision=precision, level=0)
        c = run_stages(start(importer.load(m), options, target_for(archs, precision=precision)), "tune")
        return sum(choice.tactic["FLAT"] for choice in c.choices.values() if choice.template.name == "conv")

    wide = (16, 256, 52)
    assert flat(*wide, 90) == 1 and flat(1, 64, 14, 90) == 0
    assert flat(*wide, 80) == flat(*wide, 90, 80) == flat(*wide, 90, precision="fp32") == 0


def test_memory_for_it_is_limited(preferred, kernel_cache, monkeypatch):
    m = network(**SHAPES["images"])
    monkeypatch.setattr(place, "MAX_ZERO_PADDED", 100)
    engine = build_detailed(m, Options(target="cuda:sm_90", precision="fp16", level=0, cache_dir=kernel_cache)).engine
    assert not flat_steps(engine) and not any(b.kind == "zeros" and b.size > 1000 for b in engine.plain.buffers)


def test_strides_alone_do_not_say_that_pictures_are_zero_padded():
    case = conv("f16", (2, 16, 9, 7), 20, (3, 3), pads=1)
    region, template = region_of(case.graph), GPU_TEMPLATES["conv"]
    x, target = region.anchor.inputs[0], Target("sm_90", lanes=32, threads=132)
    others = (*region.body.constants, *region.body.outputs)
    lay = Layouts({x: (10 * 8 * 16, 1, 8 * 16, 16), **{v: (1,) * v.type.rank for v in others}})
    assert any(t["FLAT"] for t in template.tactics(region, lay.moved({x: lay[x]}, zero_padded=True), target))
    assert not any(t["FLAT"] for t in template.tactics(region, lay, target))


def test_rows_go_to_the_tensor_cores_as_boxes(preferred, kernel_cache):
    m = network(n=16, channels=64, pads=[1] * 4)
    made = build_detailed(m, Options(target="cuda:sm_90", precision="fp16", level=0, cache_dir=kernel_cache))
    (kernel,) = (c.kernel for c in made.scheduled if c.kernel is not None and "FLAT=1" in c.info["tactic"])
    asm = compile_source(kernel.symbol, kernel.source, 90).asm
    assert (
        "wgmma.mma_async" in asm["ptx"] and "cp.async.bulk.tensor.2d" in asm["ptx"] and "cp.async.cg" not in asm["ptx"]
    )
    # from shared memory, not by way of registers
    assert asm["ttgir"].count("ttg.local_store") == 0
