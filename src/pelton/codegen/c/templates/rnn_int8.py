"""Recurrent weights of a byte: quantized LSTMs, whose states are multiplied as whole numbers."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import U8, DType
from pelton.plan.region import Region

from pelton.codegen.grid import ceil_div, is_constant
from pelton.codegen.template import Packed, Tactic, Target, template

from .rnn import MAX_STATES, Lstm, Recurrent, Tiles, tiles_for
from .scaled_bytes import in_bytes


@template
class LstmBytes(Lstm):
    """Accuracy as in f32: a state is two i16, which hold 30 bits behind the point of the largest one of its row, and
    sums are integers. A rounded state is one i16, or with VNNI a byte."""

    name = "lstm_bytes"

    def stored(self, tactic: Tactic) -> DType:
        return U8

    def node_rejection(self, region: Region) -> str | None:
        if reason := Recurrent.node_rejection(self, region):
            return reason
        if not is_constant(region, region.anchor.inputs[1]):
            return "the recurrent weights are not constant"
        if region.anchor.inputs[1].type.shape[2] > MAX_STATES:
            return f"more than {MAX_STATES} units"
        factors = in_bytes(region.body.constants[region.anchor.inputs[1]])
        return "the recurrent weights are not those of a byte by a scale" if factors is None else None

    def registers(self, region: Region, rows: int) -> Tiles:
        if region.anchor.attrs["round_state"]:
            return tiles_for(rows, ((1, 2), (1, 3), (1, 1)), ((2, 2), (2, 3), (2, 1)), ((4, 1), (3, 2), (2, 2)))
        return tiles_for(rows, ((1, 1), (1, 2)), ((2, 1), (1, 2)), ((2, 1), (1, 1)))

    def parts(self, region: Region, target: Target) -> tuple[int, ...]:
        """Returns as many rows as the stack holds in i16, in whole register tiles if possible."""
        width = 2 * target.lanes
        most = MAX_STATES // (ceil_div(region.anchor.inputs[1].type.shape[2], width) * width)
        return tuple(min(rows, max(most // 6 * 6, 1)) for rows in super().parts(region, target))

    def quads(self, region: Region, target: Target) -> bool:
        level = target.level
        return bool(region.anchor.attrs["round_state"]) and (level.dot, level.factor) == ("fours", "u8")

    def packed(self, region: Region, tactic: Tactic, target: Target) -> Packed:
        r, width = region.anchor.inputs[1], tactic["UV"] * target.lanes
        directions, _, hidden = r.type.shape
        factors = in_bytes(region.body.constants[r])
        assert factors is not None
        old = 4 if self.quads(region, target) else 2
        shape = (directions, ceil_div(hidden, width), 4 * width * (2 * old + old * ceil_div(hidden, old)))
        name = f"lstm{width}bytes{old}"
        return Packed((r,), name, shape, lambda out: pack_bytes_by_scale(*factors, width, old, out), U8)


def pack_bytes_by_scale(w: np.ndarray, scales: np.ndarray, width: int, old: int, out: np.ndarray) -> None:
    """Packs [direction, gate · unit, old unit] and [direction, gate · unit] into blocks of `width` units: scales [gate,
    unit], of quads also the sums of weights, in i32; then weights [pair or quad of old units, gate, unit, 2 or 4]."""
    (directions, blocks, _), hidden = out.shape, w.shape[2]
    whole = np.zeros((directions, 4, blocks * width, ceil_div(hidden, old) * old), np.int8)
    whole[:, :, :hidden, :hidden] = w.reshape(directions, 4, hidden, hidden)
    by = np.zeros((directions, 4, blocks * width), "<f4")
    by[..., :hidden] = scales.reshape(directions, 4, hidden)
    before = [by] if old == 2 else [by, whole.sum(-1, dtype="<i4")]
    at = 0
    for numbers in before:
        apart = np.ascontiguousarray(numbers.reshape(directions, 4, blocks, width).transpose(0, 2, 1, 3))
        out[..., at : at + 16 * width] = apart.reshape(directions, blocks, -1).view(np.uint8)
        at += 16 * width
    groups = whole.reshape(directions, 4, blocks, width, -1, old).transpose(0, 2, 4, 1, 3, 5)
    out[..., at:] = np.ascontiguousarray(groups).reshape(directions, blocks, -1).view(np.uint8)
