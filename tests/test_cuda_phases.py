"""Kernels of several phases on GPUs: one launch if all programs are resident at once, else one per phase."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from handmade import engine
from test_cuda_driver import driver, needs_binding, ran  # noqa: F401
from test_cuda_runtime import CUBINS, KERNELS, on_gpu

import pelton
from pelton.backends.cuda.device import Function, launches
from pelton.backends.cuda.null import NullDevice, seen
from pelton.engine.cubin import Cubin
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step
from pelton.errors import EngineError

N, PHASES = 100, 5
F32 = np.float32


def kernel(programs: int, words: np.ndarray) -> None:
    """Each phase doubles and adds its number, to x in the first."""
    x, y, begin, end = words.tolist()
    for phase in range(begin, end):
        seen(y, F32, programs)[:] = seen(y if phase else x, F32, programs) * 2 + phase


def phased(kind: int = 2, phases: int = PHASES) -> EnginePlan:
    """x·2, then the phases, then 3 times that."""
    size = 4 * N
    buffers = [
        Buffer("input", 0, size),
        Buffer("arena", 0, size),
        Buffer("arena", 512, size),
        Buffer("output", 0, size),
    ]
    steps = [
        Step("a", "scale", (Slice(0, 0), Slice(1, 0)), (2,), N, 1, 0),
        Step("b", "steps", (Slice(1, 0), Slice(2, 0)), (), N, 1, 1, phases=phases),
        Step("c", "scale", (Slice(2, 0), Slice(3, 0)), (3,), N, 1, 2),
    ]
    plain = engine([Port("x", "f32", (N,))], [Port("y", "f32", (N,))], buffers, steps, arena=1024, code=b"none")
    return on_gpu(plain, [*CUBINS, Cubin("steps", 90, b"\x7fELF steps", 0, 4, phased=kind)])


def wanted(x: np.ndarray) -> np.ndarray:
    y = 2 * x
    for phase in range(PHASES):
        y = 2 * y + phase
    return 3 * y


def on(plain: EnginePlan, **device) -> pelton.Engine:
    return pelton.Engine(plain).start(NullDevice(kernels={**KERNELS, "steps": kernel}, **device))


APART = [[p, p + 1] for p in range(PHASES)]


@pytest.mark.parametrize("kind, together, spans", [(2, N, [[0, PHASES]]), (2, N - 1, APART), (1, N, APART)])
def test_phases_are_one_launch_where_there_is_room(kind, together, spans, caplog):
    x = np.arange(N, dtype=F32)
    with caplog.at_level(logging.WARNING, "pelton.runtime"):
        net = on(phased(kind), together=together)
        context = net.context()
        for _ in range(2):
            assert np.array_equal(context.run({"x": x})["y"], wanted(x))
        net.context()
    said = [r.message for r in caplog.records if "launched once for each of its 5 phases" in r.message]
    assert len(said) == (kind == 2 and together < N) and all(
        "'b' has 100 programs" in s and "room for 99 at once" in s for s in said
    )
    device = net.device
    assert [h.facts["phases"] for h in device.happened("launch")][: len(spans) + 2] == [[], *spans, []]
    nodes = device.happened("node")[: len(spans) + 2]
    handles = [n.facts["node"] for n in nodes]
    assert [n.facts["after"] for n in nodes] == [[], *([h] for h in handles[:-1])]  # one after the other
    assert len(context.profile({"x": x})) == 3


def test_nodes_of_all_phases_change():
    plain = phased()
    straight = replace(plain.steps[1], args=(Slice(0, 0), Slice(3, 0)), wave=0)
    net = on(replace(plain, steps=(straight,)), together=1)
    x = np.arange(N, dtype=F32)
    first, other = net.context(), net.context()
    given = first.run_async({"x": x})["y"]
    got = other.run_async({"x": given})["y"].numpy()
    assert len(net.device.happened("change")) == PHASES and np.array_equal(got, wanted(wanted(x / 2) / 3 / 2) / 3)


def test_phases_need_a_kernel_that_knows_of_them():
    plain = phased()
    with pytest.raises(EngineError, match="step 'b' has 5 phases, its kernel 'steps' none"):
        on(replace(plain, code=on_gpu(plain, [*CUBINS, Cubin("steps", 90, b"\x7fELF steps", 0, 4)]).code))


def test_parameters_of_a_phase_stand_before_the_trailing_pointers():
    words = np.array([7, 8, 9, 1, 2], np.int64)
    for launch, span in zip(
        launches(Function(None, Cubin("k", 90, b"", 0, 4, phased=1)), 3, 2, words), ([0, 1], [1, 2]), strict=True
    ):
        values = [int(seen(at, np.int64, 1)[0]) for at in launch.table.tolist()]
        assert values == [7, 8, 9, *span, 1, 2] and not launch.cooperative


@needs_binding
@pytest.mark.parametrize("fail, spans", [("", [[0, PHASES]]), ("occupancy=1", APART)])
def test_what_arrives_at_the_driver(driver, tmp_path, fail, spans):
    plain = phased()
    wide = replace(
        plain,
        steps=tuple(replace(s, tiles=1000) for s in plain.steps),
        inputs=(Port("x", "f32", (1000,)),),
        outputs=(Port("y", "f32", (1000,)),),
        buffers=tuple(replace(b, offset=b.offset * 8, size=4000) for b in plain.buffers),
        arena=8192,
    )
    said, log = ran(driver, tmp_path, "results = context.run({'x': x}); context.profile({'x': x})", wide, fail)
    assert np.array_equal(np.array(json.loads(said)["y"], F32), wanted(np.arange(1000, dtype=F32)))
    for what in ("replay", "launch"):
        found = [line.partition(" words ") for line in log if line.startswith(f"{what} steps")][: len(spans)]
        assert [[int(w) for w in words.split()[2:4]] for _, _, words in found] == spans
        assert all(head.endswith(" together") == (len(spans) == 1) for head, _, _ in found)
