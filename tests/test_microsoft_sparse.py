"""ONNX Runtime's SparseAttention beside its documentation, written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, Cases, apart, attention, floats, judge, node
from test_microsoft_grouped import rotated

CASES = Cases()


def _sparse(rng, rows, before, layouts=2, rotary=False) -> Case:
    b, h, g, depth, size, count = 2, 4, 2, 16, 16, 3
    length, total = size * count, before + rows
    layout = np.tril((rng.random((layouts, count, count)) < 0.4) | np.eye(count, dtype=bool))
    starts = np.concatenate([np.zeros((layouts, 1), int), layout.sum(-1).cumsum(-1)], 1).astype(np.int32)
    blocks = np.full((layouts, starts[:, -1].max()), -1, np.int32)
    for i in range(layouts):
        blocks[i, : starts[i, -1]] = np.nonzero(layout[i])[1]
    q, k, v = (floats(rng, b, rows, n * depth) for n in (h, g, g))
    old = [floats(rng, b, g, length, depth) for _ in range(2)]
    angle = rng.uniform(0, 6, (length, depth // 2)).astype(np.float32)
    cos, sin, at = np.cos(angle), np.sin(angle), np.broadcast_to(before + np.arange(rows), (b, rows))
    fq, fk = (
        rotated(t.reshape(b, rows, n, depth), cos, sin, at).transpose(0, 2, 1, 3) if rotary else apart(t, n)
        for t, n in ((q, h), (k, g))
    )
    whole = [o.astype(np.float64) for o in old]
    for t, new in zip(whole, (fk, apart(v, g))):
        t[:, :, before:total] = new
    place = before + np.arange(rows)
    seen = layout.repeat(size, 1).repeat(size, 2)[:, place] & (np.arange(length) <= place[:, None])
    hides = np.where(seen, 0, -np.inf)[np.arange(h) % layouts]
    y = attention(fq, *(t.repeat(h // g, 1) for t in whole), hides)
    operands = [("fed", t) for t in (q, k, v, *old)] + [starts, blocks, np.array(total, np.int32)]
    operands += [("fed", np.full(b, total, np.int32)), *((cos, sin) if rotary else ())]
    attrs = dict(num_heads=h, kv_num_heads=g, sparse_block_size=size, do_rotary=int(rotary))
    return node("SparseAttention", operands, [y, *whole], **attrs)


@CASES.add
def sparse_prompt(rng):
    return _sparse(rng, 37, 0)


@CASES.add
def sparse_one_more(rng):
    return _sparse(rng, 1, 20, rotary=True)


@CASES.add
def sparse_with_one_layout(rng):
    return _sparse(rng, 20, 0, layouts=1)


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])
