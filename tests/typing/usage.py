"""Typical programs, checked by `mypy --strict`, never run. A comment `# error: …` states its line's error."""

# mypy: disallow-subclassing-any, disallow-untyped-decorators, disallow-untyped-calls, warn-return-any

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pelton
from pelton import AsyncRun, BuildError, Context, DynamicDimension, Engine, Network, Options, Port


def built() -> Engine:
    options = Options(level=2, target="cuda:sm_90", precision="fp16")
    pelton.build(b"bytes of a model", options=options, progress=lambda stage, done, total: None)
    pelton.build("model.onnx", level="2")  # error: Argument "level"
    pelton.build("model.onnx", levle=2)  # error: Unexpected keyword argument "levle"
    pelton.build("model.onnx", {"x": "1..8..32x3x224x224"}, metric=3)  # error: Argument "metric"
    try:
        return pelton.build(
            Path("model.onnx"),
            {"x": (1, 3, "height", (1, 8, 32))},
            level=3,
            precision="int8",
            calibration={"x": np.zeros((8, 3, 224, 224), np.float32)},
            precision_of={"head.*": "fp32"},
            labels=["cat", "dog"],
            outputs=("scores",),
            cache_dir=Path("cache"),
            budget=60,
        )
    except BuildError as e:
        raise SystemExit(str(e)) from e


def ran(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    engine = pelton.load("engine.pelton")
    for port in (*engine.inputs, *engine.outputs):
        describe(port)
    bounds: dict[str, tuple[int, int]] = {s.name: (s.minimum, s.maximum) for s in engine.symbols}
    print(bounds, engine.symbols[0].most)  # error: "DynamicDimension" has no attribute "most"
    engine.save("copy.pelton")
    engine.save(3)  # error: Argument 1 to "save"
    context = engine.context()
    y = context.run({"x": x})["y"]
    return {"y": y, **engine.run({"x": x})}


def describe(port: Port) -> str:
    name: str = port.name
    shape: tuple[int | str, ...] = port.shape
    whole: tuple[int, ...] = port.shape  # error: Incompatible types in assignment
    width: int = port.rank  # error: "Port" has no attribute "rank"
    return f"{name} {shape} {whole} {port.dtype} {port.numpy_dtype.itemsize} {width}"


def sizes(given: DynamicDimension) -> range:
    return range(given.minimum, given.maximum + 1)


def prepared(engine: Engine) -> Context:
    context = engine.context(threads=2)
    context.prepare({"x": (8, 3, 224, 224)})
    context.prepare(["x"])  # error: Argument 1 to "prepare"
    return context


async def awaited(engine: Engine, x: np.ndarray[Any, Any]) -> dict[str, Any]:
    started: AsyncRun = engine.run_async({"x": x})
    return await started


def drawn() -> Engine:
    net = Network("net")
    x = net.input("x", "f32[batch, 3, 32, 32]")
    y = net.relu(net.convolution(x, np.zeros((8, 3, 3, 3), np.float32), stride=2, padding=1))
    net.output(y, "y")
    return pelton.build(net, level=0)


def as_onnxruntime(x: np.ndarray[Any, Any]) -> Any:
    options = pelton.SessionOptions()
    options.intra_op_num_threads = 2
    options.intra_op_nums_threads = 2  # error: "SessionOptions" has no attribute "intra_op_nums_threads"
    session = pelton.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
    return session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: x})
