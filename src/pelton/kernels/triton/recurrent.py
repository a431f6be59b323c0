"""Recurrent layers: all time steps by one program for each row of the batch and direction, or one step by as many programs as fill the GPU."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import BF16, F16, F32, F64
from pelton.kernels.grid import constant, divide
from pelton.kernels.template import Kernel, Layouts, Tactic, Target, Template, gpu_template
from pelton.plan.layout import Order, row_major
from pelton.plan.region import Region

from .emit import computed, kernel
from .pointwise import power_of_two

HELD = 192 << 10                               # bytes of weights that stay in the caches of one multiprocessor from step to step
LAUNCHES = 1024                                # steps of one layer that may be launched one by one
SUMS = 64 << 10                                # bytes of registers for what one program sums up, of 256
MOST_UNITS = 2048                              # of which one program holds the sums of all gates
ROLES = {"lstm_steps": (("GIVEN", "R", "OLD_H", "OLD_C", "PEEP"), ("Y", "LAST_H", "LAST_C")),
         "gru_steps": (("GIVEN", "R", "BIAS", "OLD_H"), ("Y", "LAST_H")), "rnn_steps": (("GIVEN", "R", "OLD_H"), ("Y", "LAST_H"))}
AXES = {"GIVEN": "TB", "R": "DRK", "Y": "TDB", "PEEP": "D", "BIAS": "D"}         # whose strides kernels are told; of all others DB


def one_by_one(node: Node) -> bool:
    """Whether a recurrence is faster with a launch for each time step: one multiprocessor reads weights that it cannot hold from afar, at 64 bytes in a
    cycle; all of them together read them in less time than a launch takes."""
    y, r = node.outputs[0].type, node.inputs[1].type
    if not is_known(*y.shape[:3], *r.shape) or r.dtype is F64 or not 1 < y.shape[0] <= LAUNCHES:
        return False
    return r.size * r.dtype.size > HELD * y.shape[1] or power_of_two(r.shape[2]) > MOST_UNITS


@gpu_template
class Recurrent(Template):
    name = "recurrent"
    anchors = ("lstm_steps", "gru_steps", "rnn_steps")
    alone = True
    dynamic = True                              # the time and the batch

    def refuses_node(self, region: Region) -> str | None:
        node = region.anchor
        dtypes = {v.type.dtype for v in (*node.inputs, *node.outputs)}
        if len(dtypes) != 1 or not dtypes <= {F64, F32, F16, BF16}:
            return f"not in one type of {', '.join(d.value for d in (F64, F32, F16, BF16))}"
        if not is_known(*node.inputs[1].type.shape):
            return "the number of hidden units varies"
        if self.whole(node):
            if power_of_two(node.inputs[1].type.shape[2]) > MOST_UNITS:
                return f"more hidden units than {MOST_UNITS} in one program"
            if not set(node.outputs[:2]) & set(region.body.outputs):
                return "nothing keeps the state between the steps"
        return None

    def whole(self, node: Node) -> bool:
        """Whether a program needs all units: for more than one time step, or for two products one after the other."""
        return node.outputs[0].type.shape[0] != 1 or node.op.name == "gru_steps" and not node.attrs["linear_before_reset"]

    def order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Time, batch, direction, unit: to join the directions of a time step is then no copy."""
        return (0, 2, 1, 3) if value is region.anchor.outputs[0] else row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        return value is region.anchor.inputs[1] or value.type.shape[-1] == 1 or layouts[value][-1] == 1

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        node = region.anchor
        (_, _, batch, hidden), dtype = node.outputs[0].type.shape, node.inputs[1].type.dtype
        if self.whole(node):
            yield from self.of_all_units(node, target)
            return
        if batch > 2 and dtype is not F64:
            for units, warps in ((16, 4), (8, 4), (32, 4)):
                bk = power_of_two(hidden, 16, 32 if dtype is F32 else 64)
                yield Tactic(self.name, target.isa, (("BM", power_of_two(batch, 16, 64)), ("BU", units), ("BK", bk), ("DOT", 1),
                                                     ("PRECISION", int(dtype is F32)), ("WARPS", warps), ("STAGES", 3)))
        for units, bk, warps in ((4, 256, 4), (8, 128, 4), (2, 256, 2), (8, 256, 8)):
            yield Tactic(self.name, target.isa, (("BM", 1), ("BU", units), ("BK", power_of_two(hidden, 16, bk)), ("DOT", 0), ("PRECISION", 0),
                                                 ("WARPS", warps)))

    def of_all_units(self, node: Node, target: Target) -> Iterator[Tactic]:
        """Tactics of which each program has whole rows of states."""
        hidden, dtype = node.outputs[0].type.shape[3], node.inputs[1].type.dtype
        units = power_of_two(hidden, 16)
        for bk, warps in ((32, 8), (16, 8), (16, 16), (8, 16), (4, 16), (2, 16)):
            if 4 * units * bk * max(4, dtype.size) <= SUMS:
                yield Tactic(self.name, target.isa, (("BM", 1), ("BU", units), ("BK", bk), ("DOT", 0), ("PRECISION", 0), ("WARPS", warps)))

    def form(self, tactic: Tactic) -> tuple[int, ...]:
        return tactic["DOT"], tactic["BU"]

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        time, directions, batch, hidden = node.outputs[0].type.shape
        if self.whole(node) and tactic["BU"] < hidden:                      # there is one step at the usual size, a run may have more
            tactic = next(self.of_all_units(node, target))
        read, written = ROLES[node.op.name]
        roles = {**dict(zip(read, node.inputs)), **{name: v for name, v in zip(written, node.outputs) if v in region.body.outputs}}
        if "PEEP" in roles and constant(region, roles["PEEP"]) and not region.body.constants[roles["PEEP"]].any():
            del roles["PEEP"]
        every = ("R", "GIVEN", "OLD_H", "OLD_C", "PEEP", "BIAS", "Y", "LAST_H", "LAST_C")
        places = {name: list(roles).index(name) if name in roles else -1 for name in every}
        sizes = {f"{name}_{axis}": layouts[roles[name]][i] if name in roles else 0 for name in every for i, axis in enumerate(AXES.get(name, "DB"))}
        clip, what = float(np.float32(node.attrs["clip"])), node.op.name.removesuffix("_steps")
        flags = {"LINEAR": node.attrs.get("linear_before_reset"), "INPUT_FORGET": node.attrs.get("input_forget"),
                 "RELU": node.attrs.get("activation") == "Relu", "REVERSE": node.attrs["direction"] == "reverse", "LOOPS": time != 1}
        block = "".join(f"{name} = tl.constexpr({value!r})\n" for name, value in (*places.items(), *((k, bool(v)) for k, v in flags.items())))
        block += f"WHAT, KIND = tl.constexpr({what!r}), tl.constexpr({computed(node.outputs[0].type.dtype)})\n"
        block += f"CLIP = tl.constexpr({clip if np.isfinite(clip) else 0.0!r})\n"
        tiles = directions * divide(batch, tactic["BM"]) * divide(hidden, tactic["BU"])
        return kernel("recurrent.py", region, tactic, {"TIME": time, "BATCH": batch, "H": hidden, **sizes}, block, tuple(roles.values()), tiles, layouts)
