"""TFLite models of one operator, with numpy's outputs; LiteRT checks them too (tests/importers)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tflite_models import ModelWriter

RNG = np.random.default_rng(7)
IMAGE = (2, 7, 6, 5)
POOL = dict(stride_w=2, stride_h=1, filter_w=3, filter_h=2, activation=0)
F, I32 = np.float32, np.int32


def normal(*shape):
    return RNG.standard_normal(shape).astype(F)


def ints(*values):
    return np.asarray(values, I32)


@dataclass(frozen=True)
class Q:
    """An input of integers, or what an output is quantized by."""

    shape: tuple[int, ...]
    dtype: str
    scale: Any
    zero: Any = 0
    axis: int = 0

    def real(self, q):
        shape = [1] * len(self.shape)
        if np.size(self.scale) > 1:
            shape[self.axis] = np.size(self.scale)
        scale, zero = (np.reshape(v, shape if np.size(v) > 1 else ()) for v in (self.scale, self.zero))
        return (q.astype(np.float64) - zero) * scale

    def quantized(self, x):
        limits = np.iinfo({"i8": np.int8, "u8": np.uint8, "i16": np.int16}[self.dtype])
        return np.clip(np.round(x / self.scale) + self.zero, limits.min, limits.max).astype(limits.dtype)


@dataclass(frozen=True)
class Case:
    """op: its name; inputs: shapes of f32 (tuples), `Q`s, or constants; expected: outputs from inputs and constants."""

    op: str
    inputs: tuple[Any, ...]
    expected: Callable[..., Any]
    kind: str = ""
    options: dict[str, Any] | None = None
    outputs: tuple[Any, ...] = ("f32",)
    draw: Callable[..., Any] = normal
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.label or self.inputs[0]}".replace(" ", "")

    def feeds(self) -> list[np.ndarray]:
        """Random arrays for what is no constant."""
        found = []
        for x in self.inputs:
            if isinstance(x, Q):
                found.append(x.quantized(x.real(RNG.integers(-100, 100, x.shape))))
            elif isinstance(x, tuple):
                found.append(self.draw(*x))
        return found

    def results(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        given, out = iter(feeds), []
        args = [x if isinstance(x, np.ndarray) else next(given) for x in self.inputs if x is not None]
        args = [x.real(a) if isinstance(x, Q) else a for x, a in zip([x for x in self.inputs if x is not None], args)]
        found = self.expected(*args)
        for of, y in zip(self.outputs, found if isinstance(found, tuple) else (found,)):
            out.append(of.quantized(y) if isinstance(of, Q) else np.asarray(y))
        return out

    def model(self, results: list[np.ndarray], dynamic: Callable[[int], list[int]] | None = None) -> bytes:
        """dynamic: of the rank of an input, its axes whose sizes the file leaves open."""
        w = ModelWriter()

        def signature(shape):
            axes = [] if dynamic is None else dynamic(len(shape))
            sizes = [-1 if a in axes else d for a, d in enumerate(shape)]
            return dict(signature=sizes) if axes else {}

        numbers = []
        for i, x in enumerate(self.inputs):
            if x is None:
                numbers.append(-1)
            elif isinstance(x, Q):
                by = dict(scale=x.scale, zero=x.zero, axis=x.axis)
                numbers.append(w.main.input(x.shape, x.dtype, name=f"x{i}", **by, **signature(x.shape)))
            elif isinstance(x, tuple):
                numbers.append(w.main.input(x, name=f"x{i}", **signature(x)))
            else:
                numbers.append(w.main.constant(x))
        outputs = []
        for of, y in zip(self.outputs, results):
            given = dict(scale=of.scale, zero=of.zero) if isinstance(of, Q) else {}
            outputs.append(w.main.output(y.shape, of.dtype if isinstance(of, Q) else of, **given))
        w.main.op(self.op, numbers, outputs, self.kind, **(self.options or {}))
        return w.bytes()


# --- references, channels last


def padded(x, k, s, d, padding, value=0.0):
    if padding == 1:
        return x
    edges = [(0, 0)]
    for size, kk, ss, dd in zip(x.shape[1:3], k, s, d):
        total = max((-(-size // ss) - 1) * ss + (kk - 1) * dd + 1 - size, 0)
        edges.append((total // 2, total - total // 2))
    return np.pad(x, [*edges, (0, 0)], constant_values=value)


def windows(x, k, s=(1, 1), d=(1, 1), padding=0, value=0.0):
    """[batch, height, width, channels, k, k]"""
    x = padded(x.astype(np.float64), k, s, d, padding, value)
    reach = [(a - 1) * b + 1 for a, b in zip(k, d)]
    return sliding_window_view(x, reach, (1, 2))[:, :: s[0], :: s[1], :, :: d[0], :: d[1]]


def conv(s=(1, 1), d=(1, 1), padding=0, act=lambda y: y):
    def expected(x, w, b=0):
        found = windows(x, w.shape[1:3], s, d, padding)
        groups = x.shape[3] // w.shape[3]
        outs = len(w) // groups
        parts = [
            np.einsum(
                "nhwckl,oklc->nhwo",
                found[:, :, :, g * w.shape[3] : (g + 1) * w.shape[3]],
                w[g * outs : (g + 1) * outs].astype(np.float64),
            )
            for g in range(groups)
        ]
        return act(np.concatenate(parts, -1) + b)

    return expected


def depthwise(s=(1, 1), d=(1, 1), padding=0, act=lambda y: y):
    def expected(x, w, b=0):
        found = windows(x, w.shape[1:3], s, d, padding)
        each = w.shape[3] // x.shape[3]
        weights = w[0].astype(np.float64).reshape(*w.shape[1:3], x.shape[3], each)
        return act(np.einsum("nhwckl,klcm->nhwcm", found, weights).reshape(*found.shape[:3], -1) + b)

    return expected


def transposed(shape, s, padding):
    def expected(_, w, x, b=0):
        n, h, ww, _ = x.shape
        kh, kw = w.shape[1:3]
        full = np.zeros((n, max((h - 1) * s[0] + kh, shape[1] + kh), max((ww - 1) * s[1] + kw, shape[2] + kw), len(w)))
        for i in range(h):
            for j in range(ww):
                part = np.einsum("nc,oklc->nklo", x[:, i, j].astype(np.float64), w)
                full[:, i * s[0] : i * s[0] + kh, j * s[1] : j * s[1] + kw] += part
        cut = [max((-(-o // t) - 1) * t + k - o, 0) // 2 * (1 - padding) for o, t, k in zip(shape[1:3], s, (kh, kw))]
        return full[:, cut[0] : cut[0] + shape[1], cut[1] : cut[1] + shape[2]] + b

    return expected


def resized(size, linear, align=False, half=False):
    def along(n, out):
        at = np.arange(out)
        scale = (n - 1) / (out - 1) if align and out > 1 else n / out
        if not linear:
            x = (at + 0.5) * scale if half else at * scale
            x = np.floor(x + 0.5) if align else np.floor(x)
            return np.eye(n)[np.clip(x, 0, n - 1).astype(int)]
        x = np.clip((at + 0.5) * scale - 0.5 if half else at * scale, 0, n - 1)
        low = np.floor(x).astype(int)
        high, part = np.minimum(low + 1, n - 1), (x - low)[:, None]
        return np.eye(n)[low] * (1 - part) + np.eye(n)[high] * part

    return lambda x, _: np.einsum("ah,bw,nhwc->nabc", along(x.shape[1], size[0]), along(x.shape[2], size[1]), x)


def relu6(y):
    return np.clip(y, 0, 6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def blocks_of(x, b):
    n, h, w, c = x.shape
    return x.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // b, w // b, b * b * c)


def from_blocks(x, b):
    n, h, w, c = x.shape
    return x.reshape(n, h, w, b, b, c // b // b).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * b, w * b, c // b // b)


def relu(x):
    return np.maximum(x, 0)


def hard_swish(x):
    return x * np.clip(x + 3, 0, 6) / 6
