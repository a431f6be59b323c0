"""Convolutions and products of bytes by filters of which two of every four input channels are zero (2:4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pelton.ir import lineage
from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import U8
from pelton.plan.region import Region

from pelton.codegen.c.emit import constants
from pelton.codegen.c.halves import known
from pelton.codegen.code import Text
from pelton.codegen.grid import ceil_div
from pelton.codegen.template import Packed, Tactic, Target, template

from .conv_int8 import AT_ONCE, PAIRS, BytesProduct, DirectInt8, GemmInt8, added_to_bytes, pack_bytes, steps_by_pairs

FEWEST = 32  # channels; with fewer, a step is mostly its end
OUTPUTS = 64  # whose zeros are counted at a time: dense weights are dense from the first on


class SparseFilters:
    """Constant filters [group, tap, channel, output] as conv_int8_sparse.c reads them: panels of `nr` outputs, of every
    eight channels four weights and their places. signed: True if they multiply i8; bias: an addend of each output, if
    known."""

    def __init__(self, array: np.ndarray, nr: int, target: Target, signed: bool, bias: np.ndarray | None = None):
        self.array, self.nr, self.lanes, self.signed, self.bias = array, nr, target.lanes, signed, bias
        self.dot = AT_ONCE if target.level.dot == "fours" else PAIRS
        self.offset = added_to_bytes(self.dot, signed, target)

    def constants(self) -> Text:
        return constants(SIGNED=self.signed, FLIPPED=self.offset != 0, DOT=self.dot)

    def scratch(self, tactic: Tactic) -> int:
        """Returns the bytes for the places of a panel, one for each weight."""
        _, taps, channels, _ = self.array.shape
        return 16 * self.nr * taps * ceil_div(channels, 32)

    def packed(self, *sources: Value) -> tuple[Packed, ...]:
        """Returns the operand after the image."""
        groups, taps, channels, outputs = self.array.shape
        panels, eights = ceil_div(outputs, self.nr), ceil_div(channels, 8)
        end = 4 * self.nr * (1 + taps * eights)

        def pack(out: np.ndarray) -> None:
            weights, places = nonzero_of_four(self.array)
            pack_bytes(weights, self.nr, self.lanes, self.dot, self.offset, out[..., :end])
            if self.bias is not None:
                begin = np.zeros((groups, panels * self.nr), np.int32)
                begin[:, :outputs] = self.bias.reshape(groups, outputs)
                first = out[..., : 4 * self.nr].view("<i4")
                first += begin.reshape(groups, panels, self.nr)
            out[..., end:] = _pack_places(places, self.nr).reshape(groups, panels, -1)

        form = f"sparse_bytes_g{groups}_p{self.nr}_{self.dot}_{self.offset}"
        shape = (groups, panels, end + 4 * self.nr * taps * ceil_div(eights, 4))
        return (Packed(sources, form, shape, pack, U8),)


def nonzero_of_four(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the two weights of every four channels of [group, tap, channel, output] that may not be zero, and their
    places in the four: two arrays of half the channels, which are a multiple of eight before."""
    groups, taps, channels, outputs = array.shape
    whole = np.zeros((groups, taps, ceil_div(channels, 8) * 2, 4, outputs), np.int8)
    whole.reshape(groups, taps, -1, outputs)[:, :, :channels] = array
    places = np.sort(np.argsort(whole == 0, axis=3, kind="stable")[..., :2, :], axis=3)
    shape = (groups, taps, -1, outputs)
    return np.take_along_axis(whole, places, 3).reshape(shape), places.astype(np.uint8).reshape(shape)


def _pack_places(places: np.ndarray, nr: int) -> np.ndarray:
    """Packs places [group, tap, weight, output] into [group, panel, tap, four steps, output, byte]: of each step of
    four weights, byte i has the place of the i-th in its next two bits."""
    groups, taps, count, outputs = places.shape
    panels, fours = ceil_div(outputs, nr), ceil_div(count, 16)
    whole = np.zeros((groups, taps, fours * 16, panels * nr), np.uint8)
    whole[:, :, :count, :outputs] = places
    steps = whole.reshape(groups, taps, fours, 4, 4, panels, nr)
    joined = steps[:, :, :, 0] | steps[:, :, :, 1] << 2 | steps[:, :, :, 2] << 4 | steps[:, :, :, 3] << 6
    return np.ascontiguousarray(joined.transpose(0, 4, 1, 2, 5, 3))


def _is_two_of_four(array: np.ndarray) -> bool:
    """True if two of every four channels of [output, channel, …] are zero; the last ones may be fewer."""
    channels = array.shape[1]
    for i in range(0, len(array), OUTPUTS):
        part = array[i : i + OUTPUTS] != 0
        flags = np.zeros((len(part), ceil_div(channels, 4) * 4, part[0, 0].size), np.int8)
        flags[:, :channels] = part.reshape(len(part), channels, -1)
        if (flags.reshape(len(part), -1, 4, flags.shape[2]).sum(2) > 2).any():
            return False
    return True


def _weights(region: Region) -> np.ndarray:
    return region.body.constants[region.anchor.inputs[1]]


def _by_outputs(region: Region) -> np.ndarray:
    """Returns the weights as [output, channel, …]."""
    return _weights(region).T if region.anchor.op.name == "matmul" else _weights(region)


def _sparsity_rejection(region: Region) -> str | None:
    """Returns the reason why the weights are not i8 of which two of every four channels are zero, or None."""
    array = _weights(region)
    if array.dtype != np.int8:
        return "weights beyond i8"
    if lineage.is_weight(array):
        return "the weights can be refitted: their zeros may differ"
    if _by_outputs(region).shape[1] < FEWEST:
        return f"fewer than {FEWEST} channels"
    if not known(array, "two of four", lambda _: _is_two_of_four(_by_outputs(region))):
        return "more than two of four neighbouring channels have weights that are not zero"
    return None


def _pairs_fit(weights: np.ndarray, factor: str) -> bool:
    """True if the products by both weights of four of [output, channel, …] always fit an i16 together."""
    by_taps = weights.reshape(*weights.shape[:2], -1).transpose(2, 1, 0)[None]
    return bool(steps_by_pairs(nonzero_of_four(by_taps)[0], by_taps.shape[-1], factor).all())


class TwoOfFour(BytesProduct):
    """What templates of such filters do otherwise than their dense forms. The sums are exact, too."""

    file = "conv_int8_sparse.c"

    def register_tiles(self, region: Region, columns: int, rows: Size, target: Target) -> Iterable[tuple[int, int]]:
        """Returns (rows, vectors of columns) of register tiles, the best guess first; none where a dense kernel is as
        fast.

        Instructions that pick bytes take the place of the products of four bytes that they save on Arm, and there are
        none for RISC-V. Without products of four bytes, the sums of two must fit an i16."""
        level, weights = target.level, _by_outputs(region)
        if level.arch != "x86_64" and (level.arch != "aarch64" or level.dot == "fours"):
            return ()
        if level.dot == "pairs" and not known(
            _weights(region), f"pairs of two of four {level.factor}", lambda _: _pairs_fit(weights, level.factor)
        ):
            return ()
        if target.registers < 32:
            return ((4, 2), (3, 2), (6, 1)) if columns > target.lanes else ((6, 1),)
        return ((8, 2), (10, 2), (12, 2)) if columns > target.lanes else ((12, 1),)

    def filters(self, array: np.ndarray, nr: int, target: Target, signed: bool, **more: Any) -> SparseFilters:
        """Returns the filters as the kernel reads them."""
        return SparseFilters(array, nr, target, signed, more.get("bias"))

    def sparsity(self, tactic: Tactic) -> str:
        return "two of every four weights skipped"


@template
class SparseConvInt8(TwoOfFour, DirectInt8):
    name = "conv_int8_sparse"

    def operands_rejection(self, region: Region) -> str | None:
        return super().operands_rejection(region) or _sparsity_rejection(region)


@template
class SparseGemmInt8(TwoOfFour, GemmInt8):
    name = "gemm_int8_sparse"

    def node_rejection(self, region: Region) -> str | None:
        return super().node_rejection(region) or _sparsity_rejection(region)
