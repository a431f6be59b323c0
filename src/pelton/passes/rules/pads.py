"""Removes empty pads, and folds pads into the convolution or pool behind them."""

from __future__ import annotations

import math

from pelton.ir.dims import Size
from pelton.ops.words import average_pool, convolution, max_pool, pad
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import is_filled_with, require, rule, when

Ints = tuple[Size, ...]
IMAGE = "f32[1, 2, 5, 6]"
WINDOW = dict(strides=(1, 2), dilations=(1, 1))


@rule(
    lambda x, v: pad(x, v, pads=ANY, mode=ANY),
    stage="views",
    examples=[dict(x="f32[2, 3]", v="f32[]", pads=(0, 0, 0, 0), mode="edge")],
)
def pad_nothing(x, pads):
    """Pads of zero elements are removed."""
    when(not any(pads))
    return x


def _spatial(pads: Ints) -> Ints:
    """Returns the pads of the spatial axes; rejects pads of other axes, and negative ones."""
    rank = len(pads) // 2
    require(not any(pads[:2]) and not any(pads[rank : rank + 2]), "the batch or the channels are padded, too")
    require(all(p >= 0 for p in pads), "the pad removes elements")
    return pads[2:rank] + pads[rank + 2 :]


@rule(
    lambda x, v, w, b, *, before, **conv: convolution(pad(x, v, pads=before), w, b, **conv),
    stage="views",
    examples=[
        dict(
            x=IMAGE,
            v=0.0,
            w="f32[3, 2, 3, 3]",
            b="f32[3]",
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            pads=(0, 1, 0, 0),
            **WINDOW,
        )
    ],
    rejections=[
        (
            dict(
                x=IMAGE,
                v=1.0,
                w="f32[3, 2, 3, 3]",
                b="f32[3]",
                before=(0, 0, 1, 0, 0, 0, 2, 1),
                pads=(0, 1, 0, 0),
                **WINDOW,
            ),
            "not zero",
        ),
        (
            dict(
                x=IMAGE,
                v=0.0,
                w="f32[3, 3, 3, 3]",
                b="f32[3]",
                before=(0, 1, 1, 0, 0, 0, 2, 1),
                pads=(0, 1, 0, 0),
                **WINDOW,
            ),
            "channels are padded",
        ),
    ],
)
def pad_convolution(x, v, w, b, before, pads, **conv):
    """Zero padding before a convolution becomes its own."""
    require(is_filled_with(v, 0), "the padding is not zero")
    return convolution(x, w, b, pads=tuple(p + q for p, q in zip(_spatial(before), pads)), **conv)


@rule(
    lambda x, v, *, before, **pool: average_pool(pad(x, v, pads=before), **pool),
    stage="views",
    examples=[
        dict(
            x=IMAGE,
            v=0.0,
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            kernel=(3, 3),
            pads=(0, 0, 0, 0),
            ceil_mode=False,
            count_include_pad=False,
            **WINDOW,
        ),
        dict(
            x=IMAGE,
            v=0.0,
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            kernel=(3, 3),
            pads=(0, 1, 0, 0),
            ceil_mode=False,
            count_include_pad=True,
            **WINDOW,
        ),
    ],
    rejections=[
        (
            dict(
                x=IMAGE,
                v=0.0,
                before=(0, 0, 1, 0, 0, 0, 2, 1),
                kernel=(3, 3),
                pads=(0, 1, 0, 0),
                ceil_mode=False,
                count_include_pad=False,
                **WINDOW,
            ),
            "does not count",
        )
    ],
)
def pad_average_pool(x, v, before, pads, ceil_mode, count_include_pad, **pool):
    """Zero padding before an average pool becomes its own, and counts."""
    require(is_filled_with(v, 0), "the padding is not zero")
    require(not ceil_mode, "in ceil mode, windows may begin in padding of a value but not in that of the pool")
    require(count_include_pad or not any(pads), "the pool does not count its own padding")
    return average_pool(x, pads=tuple(p + q for p, q in zip(_spatial(before), pads)), count_include_pad=True, **pool)


@rule(
    lambda x, v, *, before, **pool: max_pool(pad(x, v, pads=before), **pool),
    stage="views",
    examples=[
        dict(
            x=IMAGE,
            v=-math.inf,
            before=(0, 0, 1, 0, 0, 0, 2, 1),
            kernel=(3, 3),
            pads=(0, 1, 0, 0),
            ceil_mode=False,
            **WINDOW,
        )
    ],
)
def pad_max_pool(x, v, before, pads, ceil_mode, **pool):
    """Padding with the lowest value before a max pool becomes its own."""
    when(is_filled_with(v, -math.inf))
    require(not ceil_mode, "in ceil mode, windows may begin in padding of a value but not in that of the pool")
    return max_pool(x, pads=tuple(p + q for p, q in zip(_spatial(before), pads)), **pool)
