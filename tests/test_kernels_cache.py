"""Writes into caches of attention: positions of every kind, in any layout."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, walk
from kernel_harness import check, declare

HEADS_INSIDE = dict(u=(0, 2, 1, 3))


def write(cache, rows, begin, end, length, kind="f32", places="i64", keep=False, orders=None):
    """cache: its shape; rows: how many are written; begin, end: of each sequence."""
    batch, heads, _, depth = cache
    node = ("y", "cache_write", "x u a b", dict(length=length, keep=keep))
    graph = program(
        node,
        x=f"{kind}{list(cache)}",
        u=f"{kind}{[batch, heads, rows, depth]}",
        a=f"{places}[{batch}]",
        b=f"{places}[{batch}]",
    )
    arrays = dict(a=np.array(begin), b=np.array(end))
    return Case(named(cache, rows, length, kind, keep and "keep", orders and "strided"), graph, orders or {}, arrays)


declare(
    "cache_write",
    write((2, 3, 7, 4), 2, (7, 5), (9, 6), 9),
    write((2, 3, 7, 4), 2, (3, 0), (5, 2), 7, keep=True, orders=HEADS_INSIDE),
    write((3, 1, 300, 64), 5, (299, -4, 1000), (304, 3, 2000), 305, "f16", "i32"),
    write((1, 2, 1, 5), 40, (0,), (33,), 40, "u8"),
    write((2, 2, 33, 16), 3, (30, 31), (33, 20), 20, "f64", keep=True, orders=dict(x=(1, 0, 2, 3), **HEADS_INSIDE)),
)


@pytest.mark.parametrize("template, case", walk("cache_write"))
def test_cases(template, case):
    check(template, case)
