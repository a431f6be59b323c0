"""Runs every region of a plan beside its reference, on what the regions before it really gave, and names the first that differs."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pelton.backends import cpu
from pelton.errors import BuildError
from pelton.host import run_node
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value, usual_sizes
from pelton.ir.types import STRING
from pelton.kernels.template import Kernel, Packed
from pelton.plan.layout import span
from pelton.plan.place import Placed
from pelton.plan.region import Region

TOLERANCE = 1e-3                               # of the largest value: Winograd's error grows with the channels, a wrong kernel's is near one


def check(placed: Placed, kernels: Mapping[int, Kernel], code: bytes, threads: int, seed: int = 0) -> list[tuple[str, float]]:
    """(region, error) for every task on random inputs; BuildError at the first region whose error passes the tolerance.

    The error is the largest difference from the float64 reference, relative to the largest value.
    """
    sizes = usual_sizes(placed.graph)
    if sizes:
        placed, to = placed.sized(sizes)
        kernels = {i: k.sized(sizes, to) for i, k in kernels.items()}
    rng = np.random.default_rng(seed)
    rooms: dict[Value, np.ndarray] = {}

    def view(v: Value) -> np.ndarray:
        at = placed.places[v]
        flat = rooms[at.root].view(v.type.dtype.numpy)[at.offset:]
        return np.lib.stride_tricks.as_strided(flat, v.type.shape, [s * v.type.dtype.size for s in at.strides])

    def room(v: Value) -> None:
        at = placed.places[v]
        want = (at.offset + span(v.type.shape, at.strides)) * v.type.dtype.size
        if at.root not in rooms:
            rooms[at.root] = np.full(v.type.size, "", object) if v.type.dtype is STRING else cpu.allocate(max(want, at.root.type.bytes, 1))

    for v in placed.graph.inputs:
        room(v)
        if v.type.dtype is STRING:
            continue
        view(v)[...] = rng.standard_normal(v.type.shape) if v.type.dtype.is_float else rng.integers(0, 2, v.type.shape)
    for v, array in placed.constants.items():
        room(v)
        view(v)[...] = array
    for v, numbers in placed.sizes.items():
        room(v)
        view(v)[...] = np.arange(v.type.size) if numbers is None else np.reshape(numbers, v.type.shape)
    for task in placed.tasks:
        for v in task.writes:
            at = placed.places[v]
            if at.root in rooms and rooms[at.root].nbytes < (at.offset + span(v.type.shape, at.strides)) * v.type.dtype.size:
                raise AssertionError(f"%{v.name} does not fit its buffer")
            room(v)
    found = []
    loaded = cpu.load_code(code)
    try:
        for i, task in enumerate(placed.tasks):
            what = task.what
            if not isinstance(what, Region):
                for v, a in zip(what.outputs, run_node(what, tuple(np.asarray(view(v), order="C") for v in what.inputs))):
                    view(v)[...] = a
                continue
            inputs = {v.name: np.asarray(view(v), order="C") for v in what.body.inputs}
            k = kernels[i]
            packed = [np.ascontiguousarray(x.make()) for x in k.operands if isinstance(x, Packed)]
            rest = iter(packed)
            words = [next(rest).ctypes.data if isinstance(x, Packed) else view(x).__array_interface__["data"][0] for x in k.operands]
            cpu.Program([(loaded.symbol(k.symbol), [*words, *k.dims], len(words), k.tiles, k.grain, 0, k.scratch)], threads).run()
            want = evaluate(what.body, inputs, round=False)
            error = max((_error(view(v), want[v.name]) for v in what.body.outputs), default=0.0)
            label = "+".join(what.layers) or what.title()
            found.append((label, error))
            if not error <= TOLERANCE:
                raise BuildError(f"the kernel of {label} ({what.title()}) differs from its reference by {error:.2g} of the largest value; "
                                 f"this is a fault of Pelton: please report the model, the CPU and this line")
    finally:
        loaded.close()
    return found


def _error(got: np.ndarray, want: np.ndarray) -> float:
    if got.dtype.kind not in "fc":
        return 0.0 if np.array_equal(got, want) else 1.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    odd = ~np.isfinite(want)
    if not np.array_equal(got[odd], want[odd], equal_nan=True):
        return float("inf")
    difference = np.abs(got - want)[~odd].max(initial=0.0)
    return float(difference / max(np.abs(want[~odd]).max(initial=0.0), 1e-30)) if difference else 0.0
