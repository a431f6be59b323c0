"""Random programs from the building blocks of networks and rules, to compare meanings on."""

from __future__ import annotations

import contextlib

import numpy as np

from pelton.ir.dims import Dim, Undecided, bounds, symbol
from pelton.ir.graph import Graph, Value
from pelton.ir.types import F64, TensorType
from pelton.passes.rewriting.draft import Draft
from pelton.ops.words import (
    abs_,
    add,
    batch_norm,
    clip,
    concat,
    convolution,
    div,
    erf,
    exp,
    expand,
    gather,
    matmul,
    max_pool,
    maximum,
    mul,
    neg,
    pad,
    pow_,
    reduce_max,
    reduce_mean,
    reduce_sum,
    relu,
    reshape,
    sigmoid,
    slice_,
    softmax,
    sqrt,
    sub,
    tanh,
    transpose,
)


class Programs:
    """Makes a program of one seed, in float64, with all that can go wrong around a rule: other readers, outputs in the
    middle, odd shapes, operands in either order, and, if asked for, sizes that a run decides.
    """

    def __init__(self, seed: int, dynamic: bool = False):
        self.rng = np.random.default_rng(seed)
        self.draft = Draft(Graph((), {}, (), ()))
        image, rows = (1, 4, 6, 6), (2, 5, 8)
        if dynamic:
            image = (symbol("batch", 1, 2), 4, symbol("height", 4, 6), symbol("width", 4, 7))
            rows = (symbol("batch", 1, 2), symbol("sequence", 1, 5), 8)
        self.inputs = [Value(TensorType(F64, image), "image"), Value(TensorType(F64, rows), "rows")]
        self.values = list(self.inputs)

    def pick(self, rank: int | None = None) -> Value:
        fitting = [v for v in self.values[-6:] if rank in (None, v.type.rank)] or [
            v for v in self.inputs if v.type.rank == rank
        ]
        return fitting[self.rng.integers(len(fitting))]

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-1, 1, tuple(1 if isinstance(d, Dim) else d for d in shape))

    def either(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def flip(self, op, a, b):
        return self.either(op(a, b), op(b, a))

    def number(self) -> float:
        return self.either(0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 0.7, 1 / 6)

    def unary(self):
        x = self.pick()
        low = self.number()
        return self.either(
            relu(x),
            neg(x),
            abs_(x),
            tanh(x),
            sigmoid(x),
            pow_(x, 2),
            sqrt(abs_(x)),
            clip(x, low, low + 1),
            maximum(x, low),
            clip(x, 0, np.inf),
        )

    def binary(self):
        x = self.pick()
        c = self.either(
            self.number(),
            self.random(x.type.shape[-1]),
            self.random(*x.type.shape),
            self.random(*[1] * x.type.rank),
            self.random(x.type.shape[1], *[1] * (x.type.rank - 2)) if x.type.rank > 2 else 2.0,
        )
        same = [v for v in self.values if v.type == x.type]
        y = same[self.rng.integers(len(same))]
        return self.either(
            self.flip(add, x, c),
            self.flip(mul, x, c),
            self.flip(sub, x, c),
            div(x, np.where(np.abs(c) < 0.1, 1.0, c)),
            self.flip(add, x, y),
            self.flip(mul, x, tanh(y)),
            sub(x, y),
            add(x, neg(y)),
        )

    def view(self):
        x = self.pick()
        shape, perm = x.type.shape, tuple(map(int, self.rng.permutation(x.type.rank)))
        axis = int(self.rng.integers(x.type.rank))
        ends = (int(self.rng.integers(1, max(1, bounds(shape[axis])[0]) + 1)),)
        cut = slice_(x, starts=(0,), ends=ends, axes=(axis,), steps=(1,))
        return self.either(
            transpose(x, perm=perm),
            transpose(transpose(x, perm=perm), perm=tuple(map(int, np.argsort(perm)))),
            reshape(reshape(x, shape=(x.type.size,)), shape=shape),
            concat(cut, x, axis=axis),
            concat(x, axis=axis),
            cut,
            add(expand(self.random(*[1] * x.type.rank), shape=shape), x),
            gather(x, np.array(ends) - 1, axis=axis),
            reduce_sum(x, axes=(axis,), keepdims=True),
        )

    def image(self):
        x = self.pick(4)
        _, c, h, w = x.type.shape
        k = 3 if min(h, w) >= 3 else 1
        pads = self.either((0, 0, 0, 0), (k // 2,) * 4)
        conv = dict(strides=(1, 1), pads=pads, dilations=(1, 1))

        def weights(m: int) -> tuple[np.ndarray, np.ndarray]:
            return self.random(m, c, k, k) / (c * k * k), self.random(m)

        before = self.either(
            x, mul(x, self.random(c, 1, 1)), add(x, self.random(c, 1, 1)), pad(x, 0.0, pads=(0, 0, 1, 0, 0, 0, 1, 1))
        )
        y = convolution(before, *weights(4), **conv)
        normed = batch_norm(y, self.random(4), self.random(4), self.random(4), self.random(4) + 2, epsilon=1e-3)
        branches = concat(relu(convolution(x, *weights(3), **conv)), relu(convolution(x, *weights(2), **conv)), axis=1)
        return self.either(
            y,
            normed,
            add(mul(y, self.random(4, 1, 1)), self.random(4, 1, 1)),
            branches,
            relu(normed),
            max_pool(x, kernel=(k, k), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)),
        )

    def rows(self):
        x = self.pick(3)
        d, last = x.type.shape[-1], (2,)
        q, k, v = (add(matmul(x, self.random(d, 8) / d), self.random(8)) for _ in range(3))
        scores = mul(matmul(q, transpose(k, perm=(0, 2, 1))), 0.25)
        centred = sub(x, reduce_mean(x, axes=last))
        e = exp(sub(tanh(x), reduce_max(tanh(x), axes=last)))
        return self.either(
            matmul(softmax(scores, axis=2), v),
            q,
            mul(q, 0.3),
            concat(q, k, axis=2),
            mul(mul(q, 0.5), add(erf(div(q, 2**0.5)), 1.0)),
            add(
                mul(div(centred, sqrt(add(reduce_mean(pow_(centred, 2), axes=last), 1e-3))), self.random(d)),
                self.random(d),
            ),
            div(e, reduce_sum(e, axes=last)),
            mul(q, sigmoid(q)),
        )

    def graph(self, steps: int) -> Graph:
        for _ in range(steps):
            with contextlib.suppress(Undecided):
                self.values.extend(
                    self.draft.build(self.either(self.unary, self.binary, self.view, self.image, self.rows)())
                )
        made = [v for v in self.values if v not in self.inputs]
        outputs = (
            [made[-1], *{made[i] for i in self.rng.integers(0, len(made) - 1, 2)} - {made[-1]}]
            if len(made) > 1
            else made
        )
        return Graph(
            tuple(self.inputs), self.draft.constants, self.draft.nodes, tuple(sorted(outputs, key=lambda v: v.name))
        )
