"""Recurrent layers: all time steps as one kernel, directions and rows of the batch side by side."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import numpy as np

from pelton.ir.dims import Size, is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, F16, F32, U8, DType
from pelton.plan.layout import Layouts, Order, row_major
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.c.emit import constants, kernel
from pelton.codegen.c.halves import UNASKED, HalfWeights, weight_text, with_halves
from pelton.codegen.grid import all_f32, is_constant, ceil_div
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template, template

from .scaled_bytes import in_bytes

TRIAL_STEPS = 32
MAX_STATES = 1 << 14  # elements in i16 at a time, on the stack
# For f16 a quarter of the permitted error of an output; bf16 rounds eight times as much.
MAX_ERRORS = {F16: 5e-4, BF16: 4e-3}
_ERRORS: dict[tuple, float] = {}  # per layer, since templates are asked repeatedly

Tiles = tuple[tuple[int, int], ...]  # (rows of the batch, vectors of units) in registers


def pack_recurrent(r: np.ndarray, out: np.ndarray) -> None:
    """Packs [direction, gate · unit, old unit] into [direction, block, old unit, gate, unit of the block].

    Leaves units beyond the last one as they are.
    """
    directions, blocks, hidden, gates, width = out.shape
    gate = r.reshape(directions, gates, hidden, hidden)
    for i in range(blocks):
        part = gate[:, :, i * width : (i + 1) * width]
        out[:, i, :, :, : part.shape[2]] = part.transpose(0, 3, 1, 2)


def tiles_for(rows: int, one: Tiles, two: Tiles, more: Tiles) -> Tiles:
    """Returns the register tiles for so many rows of the batch."""
    if rows == 1:
        return one
    return two if rows == 2 else more


class Recurrent(Template):
    """Base of the recurrent templates, whose inputs are the gates of all steps.

    Recurrent weights are packed when the engine is built or, if they are not constant, into scratch memory before the
    first step. States and outputs may have any outer strides.
    """

    dynamic = True  # time and batch; the weights fix the number of hidden units
    without_tail = True

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        if not all_f32(*node.inputs, *node.outputs):
            return "not f32"
        if not is_known(*node.inputs[1].type.shape):
            return "the number of hidden units is dynamic"
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns time, batch, direction, unit: concatenating the directions of a time step is then a view."""
        return (0, 2, 1, 3) if value is region.anchor.outputs[0] else row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        if is_constant(region, value) and value is region.anchor.inputs[1]:
            return True  # packed when the engine is built
        return value.type.shape[-1] == 1 or layouts[value][-1] == 1

    def registers(self, region: Region, rows: int) -> Tiles:
        """Returns the register tiles worth trying: 8 to 12 sums in flight hide the latency of multiply-adds."""
        raise NotImplementedError

    def parts(self, region: Region, target: Target) -> tuple[int, ...]:
        """Returns the numbers of batch rows that a tile may have: of equal shares for all threads, or all."""
        _, directions, batch, _ = region.anchor.outputs[0].type.shape
        return ceil_div(batch, ceil_div(target.threads, directions)), batch

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        """Alternates two kinds of tiles, so that the first few tactics include both: a share of the rows per thread,
        and all rows with a share of the units per thread, which reads the weights once for all rows."""
        _, directions, batch, hidden = region.anchor.outputs[0].type.shape
        vectors = ceil_div(hidden, target.lanes)

        def choices(bb: int, split: bool) -> Iterator[tuple[int, int, int, int]]:
            for mr, uv in self.registers(region, bb):
                mr, uv = min(mr, bb), min(uv, vectors)
                rows = ceil_div(bb, mr) * mr
                shares = target.threads // (directions * ceil_div(batch, rows))  # for threads without rows
                yield mr, uv, rows, max(1, min(shares, ceil_div(vectors, uv))) if split else 1

        share, whole = self.parts(region, target)
        kinds = choices(share, False), choices(whole, True), choices(share, True), choices(whole, False)
        turns = (choice for turn in itertools.zip_longest(*kinds) for choice in turn if choice is not None)
        for choice in dict.fromkeys(turns):
            yield Tactic(self.name, target.isa, tuple(zip(("MR", "UV", "BB", "SPLIT"), choice)))

    def recurrent(
        self,
        file: str,
        region: Region,
        layouts: Layouts,
        tactic: Tactic,
        weights: Packed,
        roles: dict[str, Value],
        states: Size,
        passes: int = 1,
        **sizes: Size,
    ) -> Kernel:
        """Emits the kernel of a file.

        roles: field of the kernel's struct of operands → value; fields of values without a layout are null pointers.
        states: elements that a tile keeps from step to step. passes: passes of a step over all units, each after the
        one before.
        """
        node = region.anchor
        time, directions, batch, hidden = node.outputs[0].type.shape
        for name, v in roles.items():
            axes = {"gates": "TB", "y": "TDB"}.get(name, "DB"[: v.type.rank - 1])
            sizes |= {f"{name}_{axis}".upper(): step for axis, step in zip(axes, layouts.get(v, (0,) * len(axes)))}
        r = node.inputs[1]
        packed = is_constant(region, r)
        sizes |= {"PACKED": packed, "R_D": 0 if packed else layouts[r][0], "R_R": 0 if packed else layouts[r][1]}
        here: dict[str, Value | Packed | KernelWorkspace] = {
            "r": weights if packed else r,
            **{name: v for name, v in roles.items() if v in layouts},
        }
        states += 0 if packed else weights.bytes // weights.shape[0] // 4  # packed while the kernel runs
        tiles, split = directions * ceil_div(batch, tactic["BB"]), tactic["SPLIT"]
        if split > 1:
            here["own"] = KernelWorkspace((tiles * states,), F32)
        text = constants(
            TIME=time,
            DIRECTIONS=directions,
            BATCH=batch,
            H=hidden,
            REVERSE=node.attrs["direction"] == "reverse",
            **sizes,
        )
        clip = node.attrs["clip"]
        text += f"#define CLIP {float(np.float32(clip)) if clip <= float(np.finfo(np.float32).max) else 0.0}f\n"
        written = [name for name, v in roles.items() if v in node.outputs]
        read = [name for name in roles if name not in written]
        if "activation" in node.attrs:
            text += f"#define ACTIVE {'relu' if node.attrs['activation'] == 'Relu' else 'f32_tanh'}\n"
        text += f"#define BYTES {int(weights.dtype is U8)}\n" + weight_text(tactic, weights.dtype)
        text += f"#define MOST {min(2**15 - 1, (2**31 - 1) // (128 * hidden))}  // of a state in i16\n"
        text += (
            f"typedef struct {{ const weight *r; const float *{', *'.join(read)}; float"
            f" *{', *'.join([*written, 'own'])}; }} operands;\n"
        )
        text += (
            "AI operands open(const args *a) { return (operands){"
            f" {', '.join(f'.{name} = a[{i}].p' for i, name in enumerate(here))} }}; }}\n"
        )
        return kernel(
            file,
            region,
            tactic,
            text,
            tuple(here.values()),
            tiles * split,
            scratch=4 * states if split == 1 else 0,
            phases=1 if split == 1 else 1 + time * passes,
        )


class HalfRecurrent(HalfWeights, Recurrent):
    """Recurrent weights in half precision: each step reads all of them, from a cache slower than the arithmetic.

    Also where the build does not ask for it, if outputs hardly change and much time is saved.
    """

    fewest = 1

    def half_operand(self, region: Region) -> tuple[Value, int]:
        return region.anchor.inputs[1], 1

    def node_rejection(self, region: Region) -> str | None:
        if reason := super().node_rejection(region):
            return reason
        return None if is_constant(region, region.anchor.inputs[1]) else "the recurrent weights are not constant"

    def half_type(self, region: Region, target: Target) -> tuple[DType, int] | None:
        if (half := super().half_type(region, target)) is not None or target.half is not F32:
            return half
        return None if self.rounding_rejection(region, F16) is not None else (F16, UNASKED)

    def rounding_rejection(self, region: Region, dtype: DType) -> str | None:
        if reason := super().rounding_rejection(region, dtype):
            return reason
        error = rounding_error(region.anchor, region.body.constants[region.anchor.inputs[1]], dtype)
        within = error <= MAX_ERRORS[dtype]
        return None if within else f"its outputs would be off by {error:.1e} after {TRIAL_STEPS} steps"

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        half = self.half_type(region, target)
        if half is not None:
            for tactic in super().tactics(region, layouts, target):
                yield with_halves(tactic, *half)


def rounding_error(node: Node, weights: np.ndarray, dtype: DType) -> float:
    """Returns the error of a layer's outputs, relative to the largest, with recurrent weights rounded to a type.

    On normal gates: layers that amplify their states amplify the error, too.
    """
    checked = zlib.crc32(np.ascontiguousarray(weights).data)
    key = node.op.name, tuple(sorted(node.attrs.items())), weights.shape, checked, dtype
    if key not in _ERRORS:
        directions, width, hidden = weights.shape
        gates = np.random.default_rng(0).standard_normal((TRIAL_STEPS, 1, directions * width))
        rest = [
            np.zeros((directions, 1, hidden) if v.type.rank == 3 else (directions, *v.type.shape[1:]))
            for v in node.inputs[2:]
        ]
        exact, rounded = (
            node.op.reference(gates, w.astype(np.float64), *rest, **node.attrs)[0]
            for w in (weights, weights.astype(dtype.numpy))
        )
        _ERRORS[key] = float(np.abs(rounded - exact).max() / max(np.abs(exact).max(), 1e-30))
    return _ERRORS[key]


def rounded_by_bytes(region: Region) -> bool:
    """True if products are of rounded states and weights of scaled bytes, few enough for `lstm_bytes`."""
    node = region.anchor
    weights = region.body.constants.get(node.inputs[1])
    return bool(
        node.attrs["round_state"]
        and weights is not None
        and weights.shape[2] <= MAX_STATES
        and in_bytes(weights) is not None
    )


@template
class Lstm(Recurrent):
    name = "lstm"
    anchors = ("lstm_steps",)

    def node_rejection(self, region: Region) -> str | None:
        """Rejects products of integers: f32 sums of them flip roundings of the next state. A network of three such
        layers was further from float64 than with exact sums on two of three inputs."""
        if reason := super().node_rejection(region):
            return reason
        return "its products are exact in integers" if rounded_by_bytes(region) else None

    def registers(self, region: Region, rows: int) -> Tiles:
        return tiles_for(rows, ((1, 2), (1, 3), (1, 1)), ((2, 1),), ((3, 1), (2, 1)))

    def packed(self, region: Region, tactic: Tactic, target: Target) -> Packed:
        """Returns the weights, in blocks of units computed together."""
        r, width, stored = region.anchor.inputs[1], tactic["UV"] * target.lanes, self.stored(tactic)
        array, (directions, _, hidden) = region.body.constants.get(r), r.type.shape
        return Packed(
            (r,),
            f"lstm{width}{stored.value}",
            (directions, ceil_div(hidden, width), hidden, 4, width),
            lambda out: pack_recurrent(array, out),
            stored,
        )

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        gates, r, h, c, p = node.inputs
        y, last_h, last_c = node.outputs
        width = tactic["UV"] * target.lanes
        weights, blocks = self.packed(region, tactic, target), ceil_div(r.type.shape[2], width)
        peepholes = not is_constant(region, p) or bool(region.body.constants[p].any())
        roles = dict(gates=gates, h=h, c=c, p=p, y=y, last_h=last_h, last_c=last_c)
        read = layouts if peepholes else Layouts({v: s for v, s in layouts.items() if v is not p})
        # a rounded copy of the states in f32 for each part
        copies = tactic["SPLIT"] if node.attrs["round_state"] and weights.dtype is not U8 else 0
        return self.recurrent(
            "lstm.c",
            region,
            read,
            tactic,
            weights,
            roles,
            (3 + copies) * tactic["BB"] * blocks * width,
            PEEPHOLES=peepholes,
            INPUT_FORGET=node.attrs["input_forget"],
            ROUND=node.attrs["round_state"],
            QUADS=self.quads(region, target),
        )

    def quads(self, region: Region, target: Target) -> bool:
        """True if one instruction adds four products of bytes."""
        return False


@template
class LstmHalf(HalfRecurrent, Lstm):
    name = "lstm_half"


@template
class Gru(Recurrent):
    name = "gru"
    anchors = ("gru_steps",)

    def registers(self, region: Region, rows: int) -> Tiles:
        if region.anchor.attrs["linear_before_reset"]:
            return tiles_for(rows, ((1, 3), (1, 4), (1, 2)), ((2, 2), (2, 1)), ((4, 1), (3, 1)))
        return tiles_for(rows, ((1, 4), (1, 6), (1, 2)), ((2, 2), (2, 3)), ((3, 2), (6, 1)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        gates, r, b, h = node.inputs
        linear, width = node.attrs["linear_before_reset"], tactic["UV"] * target.lanes
        directions, _, hidden = r.type.shape
        array, cut, stored = region.body.constants.get(r), 2 * hidden, self.stored(tactic)
        padded = ceil_div(hidden, 2 * width) * 2 * width
        if linear:
            weights = Packed(
                (r,),
                f"gru{width}{stored.value}",
                (directions, ceil_div(hidden, width), hidden, 3, width),
                lambda out: pack_recurrent(array, out),
                stored,
            )
        else:

            def pack(out: np.ndarray) -> None:
                two = hidden * 2 * ceil_div(hidden, width) * width  # size of the first two gates
                pack_recurrent(array[:, :cut], out[:, :two].reshape(directions, -1, hidden, 2, width))
                pack_recurrent(array[:, cut:], out[:, two:].reshape(directions, -1, hidden, 1, 2 * width))

            weights = Packed(
                (r,),
                f"gru{width}+{2 * width}{stored.value}",
                (directions, hidden * (2 * ceil_div(hidden, width) * width + padded)),
                pack,
                stored,
            )
        roles = dict(gates=gates, b=b, h=h, y=node.outputs[0], last_h=node.outputs[1])
        return self.recurrent(
            "gru.c",
            region,
            layouts,
            tactic,
            weights,
            roles,
            (2 if linear else 4) * tactic["BB"] * padded,
            passes=1 if linear else 2,
            LINEAR_BEFORE_RESET=linear,
        )


@template
class GruHalf(HalfRecurrent, Gru):
    name = "gru_half"


@template
class Rnn(Recurrent):
    name = "rnn"
    anchors = ("rnn_steps",)

    def registers(self, region: Region, rows: int) -> Tiles:
        return tiles_for(rows, ((1, 8), (1, 12), (1, 4)), ((2, 6), (2, 4)), ((3, 4), (6, 2)))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        gates, r, h = node.inputs
        width, (directions, _, hidden) = tactic["UV"] * target.lanes, r.type.shape
        array, blocks, stored = region.body.constants.get(r), ceil_div(hidden, width), self.stored(tactic)
        weights = Packed(
            (r,),
            f"rnn{width}{stored.value}",
            (directions, blocks, hidden, 1, width),
            lambda out: pack_recurrent(array, out),
            stored,
        )
        roles = dict(gates=gates, h=h, y=node.outputs[0], last_h=node.outputs[1])
        return self.recurrent("rnn.c", region, layouts, tactic, weights, roles, 2 * tactic["BB"] * blocks * width)


@template
class RnnHalf(HalfRecurrent, Rnn):
    name = "rnn_half"
