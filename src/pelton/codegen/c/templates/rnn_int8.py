"""Recurrent weights of a byte: LSTMs that were quantized, whose states are multiplied as whole numbers."""

from __future__ import annotations

import zlib

import numpy as np

from pelton.ir.types import U8, DType
from pelton.plan.layout import Layouts
from pelton.plan.region import Region

from pelton.codegen.grid import ceil_div, is_constant
from pelton.codegen.template import Packed, Tactic, Target, template

from .rnn import Lstm, Tiles, tiles_for

LEVELS = 128  # steps of the largest weight: 127, or 128 below zero
MAX_STATES = 1 << 14  # elements that are in i16 at a time, on the stack
Bytes = tuple[np.ndarray, np.ndarray]
_FOUND: dict[tuple, Bytes | None] = {}  # per layer, since templates are asked repeatedly


@template
class LstmBytes(Lstm):
    """As exact as in f32: a state is two i16, which hold 30 bits behind the point of the largest one of its row, and
    sums are whole numbers. A state that is rounded is one i16."""

    name = "lstm_bytes"

    def stored(self, tactic: Tactic) -> DType:
        return U8

    def node_rejection(self, region: Region) -> str | None:
        if reason := super().node_rejection(region):
            return reason
        if not is_constant(region, region.anchor.inputs[1]):
            return "the recurrent weights are not constant"
        found = in_bytes(region.body.constants[region.anchor.inputs[1]])
        return "the recurrent weights are not those of a byte by a scale" if found is None else None

    def registers(self, region: Region, rows: int) -> Tiles:
        if region.anchor.attrs["round_state"]:
            return super().registers(region, rows)
        return tiles_for(rows, ((1, 1), (1, 2)), ((2, 1), (1, 2)), ((2, 1), (1, 1)))

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        hidden = region.anchor.inputs[1].type.shape[2]
        for tactic in super().tactics(region, layouts, target):
            width = tactic["UV"] * target.lanes
            if tactic["BB"] * ceil_div(hidden, width) * width <= MAX_STATES:
                yield tactic

    def packed(self, region: Region, width: int, stored: DType) -> Packed:
        r = region.anchor.inputs[1]
        directions, _, hidden = r.type.shape
        found = in_bytes(region.body.constants[r])
        assert found is not None
        shape = (directions, ceil_div(hidden, width), 4 * width * (4 + 2 * ceil_div(hidden, 2)))
        return Packed((r,), f"lstm{width}bytes", shape, lambda out: pack_bytes_by_scale(*found, width, out), U8)


def pack_bytes_by_scale(w: np.ndarray, scales: np.ndarray, width: int, out: np.ndarray) -> None:
    """[direction, gate · unit, old unit] and [direction, gate · unit] to blocks of `width` units: scales [gate, unit],
    then weights [pair of old units, gate, unit, 2]."""
    (directions, blocks, _), hidden = out.shape, w.shape[2]
    whole = np.zeros((directions, 4, blocks * width, ceil_div(hidden, 2) * 2), np.int8)
    whole[:, :, :hidden, :hidden] = w.reshape(directions, 4, hidden, hidden)
    by = np.zeros((directions, 4, blocks * width), "<f4")
    by[..., :hidden] = scales.reshape(directions, 4, hidden)
    end = 4 * 4 * width  # of the scales, in bytes
    apart = np.ascontiguousarray(by.reshape(directions, 4, blocks, width).transpose(0, 2, 1, 3))
    out[..., :end] = apart.reshape(directions, blocks, -1).view(np.uint8)
    pairs = whole.reshape(directions, 4, blocks, width, -1, 2).transpose(0, 2, 4, 1, 3, 5)
    out[..., end:] = np.ascontiguousarray(pairs).reshape(directions, blocks, -1).view(np.uint8)


def in_bytes(r: np.ndarray) -> Bytes | None:
    """i8 [direction, row, column] and scales [direction, row] that give recurrent weights but for their rounding to
    f32, with one scale for each direction or row; None if there are none."""
    if np.unique(np.abs(r[0, 0])).size > LEVELS + 1:  # as of most that are no bytes
        return None
    key = r.shape, zlib.crc32(np.ascontiguousarray(r).data)
    if key not in _FOUND:
        for groups in (r.shape[0], r.shape[0] * r.shape[1]):
            found = _by_groups(r.reshape(groups, -1).astype(np.float64))
            if found is not None:
                w, scales = found
                _FOUND[key] = (
                    w.reshape(r.shape),
                    np.repeat(scales, r.shape[0] * r.shape[1] // groups).reshape(r.shape[:2]),
                )
                break
        else:
            _FOUND[key] = None
    return _FOUND[key]


def _by_groups(rows: np.ndarray) -> Bytes | None:
    """The same for rows with a scale each."""
    steps = np.zeros(len(rows))
    for i, row in enumerate(rows):
        step = _step(row)
        if step is None:
            return None
        steps[i] = step
    return np.rint(rows / np.where(steps == 0, 1, steps)[:, None]).astype(np.int8), steps


def _step(row: np.ndarray) -> float | None:
    """A number that all of these are multiples of but for their rounding, from -128 to 127 times; or None."""
    sizes = np.unique(np.abs(row))
    if sizes.size > LEVELS + 1:
        return None
    most = LEVELS if row.max() < sizes[-1] else LEVELS - 1
    for count in dict.fromkeys((most, LEVELS - 1, *range(1, LEVELS))):
        step = sizes[-1] / count
        if np.all(np.abs(np.rint(sizes / (step or 1)) * step - sizes) <= 2.0**-22 * sizes):
            return step
    return None
