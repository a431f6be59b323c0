"""Shared by tests of ONNX Runtime's own operators: models of one node, attention in float64, and checks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper
from onnx_models import MICROSOFT, one_node

from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate

Case = tuple  # the model, what is fed, what has to come out (None: whatever it is)
Maker = Callable[[np.random.Generator], Case]
TEXTS = {"float32": "f32", "int32": "i32", "int64": "i64", "uint8": "u8", "int8": "i8", "bool": "bool"}
TEXTS |= {"float64": "f64", "int16": "i16", "uint32": "u32", "uint64": "u64"}


def node(op: str, operands, expected, *, attribute_opset: int | None = None, **attrs) -> Case:
    """A model of one node. Operands: ("fed", array), an array that lies in the model, or None."""
    fed = {f"x{i}": o[1] for i, o in enumerate(operands) if isinstance(o, tuple)}
    spelled = [f"{TEXTS[o[1].dtype.name]}{[*o[1].shape]}" if isinstance(o, tuple) else o for o in operands]
    model = one_node(op, *spelled, outputs=len(expected), domain=MICROSOFT, **attrs)
    if attribute_opset is not None:
        model.graph.node[0].attribute.append(helper.make_attribute("opset", attribute_opset))
    return model, fed, expected


class Cases(dict[str, Maker]):
    """Makers of cases by their names."""

    def add(self, maker: Maker) -> Maker:
        """The decorator of makers."""
        self[maker.__name__] = maker
        return maker


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def floats(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray, sink: np.ndarray | None = None) -> np.ndarray:
    """Along the last axis; a sink [heads] takes its share and gives nothing."""
    if sink is not None:
        x = np.concatenate([x, np.broadcast_to(sink[None, :, None, None], (*x.shape[:-1], 1))], -1)
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True))[..., : -1 if sink is not None else None]


def apart(x: np.ndarray, heads: int) -> np.ndarray:
    return x.astype(np.float64).reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def together(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attention(q, k, v, added=0.0, scale=None, softcap=0.0, sink=None) -> np.ndarray:
    """[batch, heads, rows, depth] → [batch, rows, heads · depth]."""
    scores = np.einsum("bhid,bhjd->bhij", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    return together(np.einsum("bhij,bhjd->bhid", softmax(scores + added, sink), v))


def causal(rows: int, keys: int) -> np.ndarray:
    """What hides the keys after each row: [rows, keys], to be added to scores."""
    return np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, 0.0, -np.inf)


def check_refusal(make: Maker, says: str) -> None:
    model, _, _ = make(np.random.default_rng(0))
    with pytest.raises(ModelError, match=says):
        load(model)


def judge(make: Maker) -> None:
    """The imported program, evaluated by reference, beside what was expected, for several seeds; nothing of it may run
    on the host."""
    for seed in range(3):
        model, fed, expected = make(np.random.default_rng(seed))
        graph = load(model, outputs=[f"y{i}" for i, e in enumerate(expected) if e is not None]).graph
        assert not any(n.op.kind == "foreign" for n in graph.nodes), "runs on the host"
        found = evaluate(graph, fed)
        for i, want in enumerate(expected):
            if want is None:
                continue
            got = found[f"y{i}"]
            assert got.shape == want.shape, f"output {i}"
            # near halves, float32 may round to the other side
            if want.dtype.kind in "iu" and got.dtype.itemsize == 1:
                assert np.abs(got.astype(int) - want).max(initial=0) <= 1 and np.mean(got != want) < 0.05
            elif want.dtype.kind in "iu":
                assert np.array_equal(got, want), f"output {i}"
            else:
                assert np.allclose(got, want, rtol=2e-5, atol=2e-5), f"output {i}: off by {np.abs(got - want).max()}"
