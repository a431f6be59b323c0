"""Networks of Paddle, by paddle2onnx: pip install paddlepaddle paddle2onnx onnxruntime; python paddle_nets.py
[NAME…]"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paddle
import paddle2onnx
from keep import Made, export, run
from paddle import nn
from paddle.nn import functional as f


def made(model: Any, *sets: dict[str, np.ndarray], open_axes: dict[str, list[int]]) -> Made:
    model.eval()
    specs = [
        paddle.static.InputSpec(
            [None if axis in open_axes.get(name, ()) else d for axis, d in enumerate(a.shape)], str(a.dtype), name
        )
        for name, a in sets[0].items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        base, to = str(Path(folder) / "net"), str(Path(folder) / "net.onnx")
        paddle.jit.save(paddle.jit.to_static(model, input_spec=specs), base)
        program = next(p for p in (base + ".json", base + ".pdmodel") if Path(p).exists())
        paddle2onnx.export(program, base + ".pdiparams", save_file=to, opset_version=14, enable_onnx_checker=True)
        data = onnx.load(to).SerializeToString()
    found = [model(*map(paddle.to_tensor, s.values())) for s in sets]
    return data, sets, [[y.numpy() for y in (ys if isinstance(ys, (list, tuple)) else [ys])] for ys in found]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


class Reader(nn.Layer):
    """As networks that read lines of text are: hard swish, squeeze and excitation, a pool over the height, a recurrent
    layer, classes per column."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2D(3, 8, 3, 2, 1, bias_attr=False), nn.BatchNorm2D(8)
        self.deep, self.point = nn.Conv2D(8, 8, 3, 1, 1, groups=8), nn.Conv2D(8, 12, 1)
        self.down, self.up = nn.Conv2D(12, 4, 1), nn.Conv2D(4, 12, 1)
        self.lstm, self.out = nn.LSTM(12, 6, direction="bidirect"), nn.Linear(12, 9)

    def forward(self, x: Any) -> Any:
        y = f.hardswish(self.norm(self.first(x)))
        y = f.relu6(self.point(f.hardswish(self.deep(y))))
        s = f.hardsigmoid(self.up(f.relu(self.down(f.adaptive_avg_pool2d(y, 1)))))
        y = f.max_pool2d(y * s, 2, 2).mean(2)
        y, _ = self.lstm(y.transpose([0, 2, 1]))
        return f.softmax(self.out(y))


@export
def paddle_reader() -> Made:
    paddle.seed(0)
    return made(Reader(), {"x": normal(1, 3, 8, 20)}, {"x": normal(1, 3, 8, 28)}, open_axes={"x": [3]})


class Finder(nn.Layer):
    """As networks that find text are: a pyramid joined by nearest upsampling to the size of another map, transposed
    convolutions, thresholds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2D(3, 6, 3, 2, 1), nn.Conv2D(6, 8, 3, 2, 1), nn.Conv2D(8, 6, 1)
        self.up, self.norm, self.last = nn.Conv2DTranspose(12, 4, 2, 2), nn.BatchNorm2D(4), nn.Conv2D(4, 1, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        a = f.elu(self.a(x))
        b = f.swish(self.b(a))
        y = paddle.concat([a, f.interpolate(self.c(b), size=a.shape[2:], mode="nearest")], 1)
        y = f.sigmoid(self.last(f.relu(self.norm(self.up(y)))))
        return (
            y,
            (y > 0.5).astype("float32").sum(),
            paddle.argmax(f.pad(y, [0, 1, 2, 0], value=-1.0).flatten(1), axis=1),
        )


@export
def paddle_finder() -> Made:
    paddle.seed(0)
    return made(Finder(), {"x": normal(1, 3, 8, 12)}, {"x": normal(2, 3, 12, 8)}, open_axes={"x": [0, 2, 3]})


if __name__ == "__main__":
    run()
