"""Recurrent layers: all time steps by one program for each row of the batch and direction, or by as many programs as
fill the GPU, in one launch, in which they send each other the states, or in one for each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import bounds, is_known, maximum
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, F16, F32, F64, I32, I64, DType
from pelton.codegen.grid import is_constant, ceil_div
from pelton.codegen.template import Kernel, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Layouts, Order, row_major
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

from pelton.codegen.triton.emit import register_type, kernel
from .pointwise import power_of_two
from pelton.codegen.triton.cost import AWAY, BEGIN, BYTES, NEAR

# bytes of weights that stay in the caches of one multiprocessor from step to step
CACHED = 192 << 10
# bytes of registers for the weights that one program keeps from step to step, of 256
HELD = 128 << 10
WORDS = 64 << 10  # the same for the states that it receives
SUMS = 64 << 10  # bytes of registers for the sums of one program
MAX_SENT = 1 << 20  # words of states that programs send each other
MAX_UNITS = 2048  # units whose gates' sums fit one program
# bytes per cycle that a multiprocessor reads from its caches
NEARBY = 64
LANES = 128  # f32 multiply-adds of a multiprocessor per cycle
# cycles from the last state that a step receives to its own: sums across threads, then the gates
CELL = 600
ROLES = {
    "lstm_steps": (("GIVEN", "R", "OLD_H", "OLD_C", "PEEP"), ("Y", "LAST_H", "LAST_C")),
    "gru_steps": (("GIVEN", "R", "BIAS", "OLD_H"), ("Y", "LAST_H")),
    "rnn_steps": (("GIVEN", "R", "OLD_H"), ("Y", "LAST_H")),
}
# the axes whose strides kernels get; DB for all others
AXES = {"GIVEN": "TB", "R": "DRK", "Y": "TDB", "PEEP": "D", "BIAS": "D"}


@dataclass(frozen=True)
class GateProducts:
    """The products of a time step: weight rows for each unit in one product (`each`, a power of two), how many of them
    are `used`, and the number of consecutive products (`passes`)."""

    gates: int
    each: int
    used: int
    passes: int = 1

    @classmethod
    def of(cls, node: Node) -> GateProducts:
        if node.op.name == "gru_steps":
            return cls(3, 4, 3) if node.attrs["linear_before_reset"] else cls(3, 2, 2, 2)
        return cls(4, 4, 4) if node.op.name == "lstm_steps" else cls(1, 1, 1)

    @property
    def rows(self) -> int:
        """Rows of the weights that a program holds for each unit."""
        return self.each + self.passes - 1

    @property
    def min_rows(self) -> int:
        """Rows for each unit of the smallest product."""
        return 1 if self.passes == 2 else self.each


def warp_counts(weight_bytes: int) -> tuple[int, ...]:
    """Returns the numbers of warps worth trying for programs that hold so many bytes of weights in registers."""
    if weight_bytes <= HELD // 4:
        return 4, 8
    return (8, 16) if weight_bytes <= HELD // 2 else (16,)


@gpu_template
class TritonRecurrent(Template):
    name = "recurrent"
    anchors = ("lstm_steps", "gru_steps", "rnn_steps")
    without_tail = True
    dynamic = True  # the time and the batch

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        dtypes = {v.type.dtype for v in (*node.inputs, *node.outputs)}
        if len(dtypes) != 1 or not dtypes <= {F64, F32, F16, BF16}:
            return f"not in one type of {', '.join(d.value for d in (F64, F32, F16, BF16))}"
        if not is_known(*node.inputs[1].type.shape):
            return "the number of hidden units varies"
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns time, batch, direction, unit: joining the directions of a time step then needs no copy."""
        return (0, 2, 1, 3) if value is region.anchor.outputs[0] else row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return value is region.anchor.inputs[1] or value.type.shape[-1] == 1 or layouts[value][-1] == 1

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        node = region.anchor
        # True if there is memory for the states between the steps
        keeps = not set(node.outputs[:2]).isdisjoint(region.body.outputs)
        guesses = [
            *(self.whole(node, target) if keeps else ()),
            *self.together(node, target),
            *self.by_phases(node, target),
        ]
        return [tactic for _, _, tactic in sorted(guesses, key=lambda guess: guess[:2])]

    def whole(self, node: Node, target: Target) -> Iterator[tuple[float, int, Tactic]]:
        """Yields tactics with one program for each row of the batch and direction, as (estimated cycles, rank among
        equally fast ones, tactic)."""
        time, directions, batch, hidden = node.outputs[0].type.shape
        dtype, units = node.inputs[1].type.dtype, power_of_two(hidden, 16)
        weights = node.inputs[1].type.size // directions * dtype.size
        step = CELL + 2 * NEAR * GateProducts.of(node).passes + weights / (NEARBY if weights <= CACHED else BYTES)
        for rank, (bk, warps) in enumerate(((32, 8), (16, 8), (16, 16), (8, 16), (4, 16), (2, 16))):
            if units <= MAX_UNITS and 4 * units * bk * max(4, dtype.size) <= SUMS:
                yield (
                    BEGIN + ceil_div(directions * batch, target.threads) * time * step,
                    rank,
                    self.tactic(target, 1, units, bk, 0, dtype, 0, warps),
                )

    def together(self, node: Node, target: Target) -> Iterator[tuple[float, int, Tactic]]:
        """Yields tactics, like `whole`, whose programs, one on each multiprocessor, send each other the states."""
        time, directions, batch, hidden = node.outputs[0].type.shape
        dtype, form, bk = node.inputs[1].type.dtype, GateProducts.of(node), power_of_two(hidden, 16)
        if time == 1 or dtype is F64 or target.threads == 1:
            return
        # the three products of an f32 exceed the registers
        for dot in (0, 1) if batch > 2 and dtype is not F32 else (0,):
            bm, size = (power_of_two(batch, 16, 32), dtype.size) if dot else (1, F32.size)
            for units in (4, 8, 16, 32):
                programs = directions * ceil_div(batch, bm) * ceil_div(hidden, units)
                weight_bytes = form.rows * units * bk * size
                too_large = weight_bytes > HELD or bm * bk * I64.size > WORDS
                if programs > target.threads or too_large or dot and form.min_rows * units < 16:
                    continue
                step = 3 * NEAR + CELL + bm * bk * I64.size / BYTES + form.each * units * bk / LANES / (8 if dot else 1)
                cycles = BEGIN + time * form.passes * step
                for rank, warps in enumerate(warp_counts(weight_bytes)):
                    yield cycles, rank, self.tactic(target, bm, units, bk, dot, dtype, 2, warps)

    def by_phases(self, node: Node, target: Target) -> Iterator[tuple[float, int, Tactic]]:
        """Yields tactics, like `whole`, that are launched once for each phase."""
        time, directions, batch, hidden = node.outputs[0].type.shape
        dtype, form, rank = node.inputs[1].type.dtype, GateProducts.of(node), 0
        weights = node.inputs[1].type.size * dtype.size
        if batch > 2 and dtype is not F64:
            for units in (16, 8, 32):
                rank += 1
                bm, bk = power_of_two(batch, 16, 64), power_of_two(hidden, 16, 32 if dtype is F32 else 64)
                if form.min_rows * units >= 16:
                    each = ceil_div(directions * ceil_div(batch, bm) * ceil_div(hidden, units), target.threads)
                    step = (
                        BEGIN
                        + AWAY
                        + max(weights / target.threads, each * (form.each * units + bm) * hidden * dtype.size) / BYTES
                    )
                    yield time * form.passes * step, rank, self.tactic(target, bm, units, bk, 1, dtype, 1, 4)
        for units, bk, warps in ((4, 256, 4), (8, 128, 4), (2, 256, 2), (8, 256, 8)):
            rank, each = rank + 1, ceil_div(directions * batch * ceil_div(hidden, units), target.threads)
            step = (
                BEGIN
                + AWAY
                + max(weights / target.threads, each * (form.each * units + 1) * hidden * dtype.size) / BYTES
            )
            yield (
                time * form.passes * step,
                rank,
                self.tactic(target, 1, units, power_of_two(hidden, 16, bk), 0, dtype, 1, warps),
            )

    def tactic(
        self, target: Target, bm: int, bu: int, bk: int, dot: int, dtype: DType, phased: int, warps: int
    ) -> Tactic:
        stages = 3 if dot and phased == 1 else 1
        return Tactic(
            self.name,
            target.isa,
            (
                ("BM", bm),
                ("BU", bu),
                ("BK", bk),
                ("DOT", dot),
                ("PRECISION", int(dot and dtype is F32)),
                ("PHASED", phased),
                ("WARPS", warps),
                ("STAGES", stages),
            ),
        )

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["PHASED"], tactic["DOT"]

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node, form = region.anchor, GateProducts.of(region.anchor)
        time, directions, batch, hidden = node.outputs[0].type.shape
        dtype, states = node.inputs[1].type.dtype, directions * batch * hidden
        # for many rows, sending the words takes longer than it saves
        if tactic["PHASED"] == 2 and bounds(2 * states)[1] > MAX_SENT:
            tactic = Tactic(tactic.template, tactic.isa, tuple({**dict(tactic.params), "PHASED": 1}.items()))
        read, written = ROLES[node.op.name]
        roles = {
            **dict(zip(read, node.inputs)),
            **{name: v for name, v in zip(written, node.outputs) if v in region.body.outputs},
        }
        if "PEEP" in roles and is_constant(region, roles["PEEP"]) and not region.body.constants[roles["PEEP"]].any():
            del roles["PEEP"]
        own: dict[str, KernelWorkspace] = {}
        if tactic["PHASED"]:
            kept = form.passes if node.op.name == "gru_steps" else int(node.op.name == "lstm_steps")
            if kept:
                own["OWN"] = KernelWorkspace((kept, directions, batch, hidden), F64 if dtype is F64 else F32)
            own["SENT"] = KernelWorkspace((2, directions, batch, hidden), dtype)
        if tactic["PHASED"] == 2:
            own["SENT"] = KernelWorkspace((bounds(2 * states)[1],), I64, zero=True)
            own["COUNT"] = KernelWorkspace((1,), I32, zero=True)
        every = ("R", "GIVEN", "OLD_H", "OLD_C", "PEEP", "BIAS", "Y", "LAST_H", "LAST_C")
        operands: dict[str, Value | KernelWorkspace] = {**roles, **own}
        places = {
            name: list(operands).index(name) if name in operands else -1 for name in (*every, "OWN", "SENT", "COUNT")
        }
        sizes = {
            f"{name}_{axis}": layouts[roles[name]][i] if name in roles else 0
            for name in every
            for i, axis in enumerate(AXES.get(name, "DB"))
        }
        clip, what = float(np.float32(node.attrs["clip"])), node.op.name.removesuffix("_steps")
        flags = {
            "LINEAR": node.attrs.get("linear_before_reset"),
            "INPUT_FORGET": node.attrs.get("input_forget"),
            "ROUND": node.attrs.get("round_state"),
            "RELU": node.attrs.get("activation") == "Relu",
            "REVERSE": node.attrs["direction"] == "reverse",
        }
        block = "".join(
            f"{name} = tl.constexpr({value!r})\n"
            for name, value in (*places.items(), *((k, bool(v)) for k, v in flags.items()))
        )
        block += f"WHAT, KIND = tl.constexpr({what!r}), tl.constexpr({register_type(dtype)})\n"
        block += (
            "GATES, EACH, USED, PASSES = (tl.constexpr(x) for x in"
            f" {(form.gates, form.each, form.used, form.passes)})\n"
        )
        block += f"CLIP = tl.constexpr({clip if np.isfinite(clip) else 0.0!r})\n"
        tiles = directions * ceil_div(batch, tactic["BM"]) * ceil_div(hidden, tactic["BU"])
        sizes |= {"TIME": time, "DIRECTIONS": directions, "BATCH": batch, "H": hidden}
        return kernel(
            "recurrent.py",
            region,
            tactic,
            sizes,
            block,
            tuple(operands.values()),
            tiles,
            layouts,
            maximum(time * form.passes, 1) if tactic["PHASED"] else 1,
        )
