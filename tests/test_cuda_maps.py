"""Kernel operands by maps: their record in bundles, their place in a launch, and their arrival at the driver."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from handmade import engine
from test_cuda_driver import driver, needs_binding, ran  # noqa: F401
from test_cuda_runtime import CUBINS, on_gpu

import pelton
from pelton.backends.cuda.bundle import pack, unpack
from pelton.backends.cuda.device import MAP, Function, launches, parameters
from pelton.backends.cuda.null import NullDevice, seen
from pelton.engine.cubin import Cubin, TensorMap
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step
from pelton.errors import EngineError

PICTURES = TensorMap(0, 9, 3, (256, 14, 12, 8), (512, 7168, 86016), (64, 128), (1, 2, 1, 1), (-1, -2), (-3, 1))
FILTERS = TensorMap(0, 6, 2, (2304, 72), (4608,), (32, 64), (1, 1))
N = 1000


def cubin(*maps: TensorMap, **more) -> Cubin:
    return Cubin("boxes", 90, b"\x7fELF boxes", 0, 4, maps=maps, **more)


@pytest.mark.parametrize("maps", [(PICTURES,), (FILTERS,), (PICTURES, replace(FILTERS, operand=1))])
def test_bundles_hold_them(maps):
    assert unpack(pack([cubin(*maps), *CUBINS]))[90]["boxes"] == cubin(*maps)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"operand": -1}, "operand -1"),
        ({"kind": 7}, "kind 7"),
        ({"swizzle": 4}, "swizzle 4"),
        ({"sizes": (256, 14, 12)}, "3 axes with 3 strides"),
        ({"sizes": (256, 0, 12, 8)}, "sizes"),
        ({"strides": (512, 7168, 86008)}, "strides of"),
        ({"strides": (512, 7168, 1 << 40)}, "strides of"),
        ({"box": (64, 128, 1, 1)}, "a box of 4 extents"),
        ({"box": (64, 1025)}, "a box of"),
        ({"box": (128, 128)}, "rows of 256 bytes, spread over 128"),
        ({"box": (12, 128)}, "rows of 24 bytes"),
        ({"steps": (1, 9, 1, 1)}, "by steps of"),
        ({"lower": (-1,)}, "1 and 2 corners"),
        ({"upper": (0, 128)}, "corners"),
        ({"lower": (-129, 0)}, "corners"),
        ({"steps": (1, 1)}, "2 steps"),
    ],
)
def test_what_no_gpu_takes_is_refused(change, text):
    with pytest.raises(EngineError, match=f"a map of cubin 'boxes' has .*{text}"):
        pack([cubin(replace(PICTURES, **change))])


@pytest.mark.parametrize("maps, more", [((PICTURES, PICTURES), {}), ((PICTURES,), {"phased": 1})])
def test_one_for_an_operand_and_none_with_phases(maps, more):
    with pytest.raises(EngineError, match="maps of cubin 'boxes' are a list, one for an operand"):
        pack([cubin(*maps, **more)])


@pytest.mark.parametrize(
    "row",
    [
        [],
        "x",
        [0, 6, 3, [1], [], [8], [1], []],
        [0, 6, 3, [1.5], [], [8], [1], [], []],
        [True, 6, 3, [8], [], [8], [1], [], []],
    ],
)
def test_rows_that_are_none_are_refused(row, monkeypatch):
    monkeypatch.setattr("pelton.backends.cuda.bundle.astuple", lambda m: row)
    with pytest.raises(EngineError, match="a map of cubin 'boxes' is 3 integers and 6 lists"):
        pack([cubin(FILTERS)])


def test_a_launch_has_room_for_them_in_place_of_addresses():
    of = cubin(replace(FILTERS, operand=1), replace(PICTURES, operand=0))
    (launch,) = launches(Function(None, of), 3, 1, np.array([10, 20, 30, 40, 50], np.int64))
    assert launch.maps is not None and launch.maps.shape == (2, MAP) and not launch.cooperative
    first, second = (row.__array_interface__["data"][0] for row in launch.maps)
    table = launch.table.tolist()
    # what stands behind a map leads to its room, too
    assert table[:10] == [second] * 5 + [first] * 5 and first % 128 == 0
    assert [int(seen(at, np.int64, 1)[0]) for at in table[10:]] == [30, 40, 50]
    behind, other = ((128, 4), (132, 4), (136, 8), (144, 8)), ((320, 4), (324, 4), (328, 8), (336, 8))
    assert parameters(of, 5) == ((0, 128), *behind, (192, 128), *other, (344, 8), (352, 8), (360, 8))
    assert parameters(CUBINS[0], 3) == ((0, 8), (8, 8), (16, 8))


def mapped(m: TensorMap) -> EnginePlan:
    """3·2·x, by a kernel that takes x by a map."""
    size = 4 * N
    buffers = [Buffer("input", 0, size), Buffer("arena", 0, size), Buffer("output", 0, size)]
    steps = [
        Step("a", "boxes", (Slice(0, 0), Slice(1, 0)), (), N, 1, 0),
        Step("b", "scale", (Slice(1, 0), Slice(2, 0)), (3,), N, 1, 1),
    ]
    plain = engine([Port("x", "f32", (N,))], [Port("y", "f32", (N,))], buffers, steps, arena=4096, code=b"none")
    return on_gpu(plain, [*CUBINS, cubin(m)])


def test_a_step_has_what_its_kernel_takes_by_a_map():
    with pytest.raises(EngineError, match="kernel 'boxes' has more operands by maps than step 'a', 2"):
        pelton.Engine(mapped(replace(FILTERS, operand=2))).start(NullDevice())


@needs_binding
@pytest.mark.parametrize(
    "m, text",
    [
        (
            PICTURES,
            (
                "im2col kind 9 interleave 0 swizzle 3 l2 2 fill 0 sizes 256 14 12 8 strides 512 7168 86016 box 64 128"
                " steps 1 2 1 1 corners -1 -3 corners -2 1"
            ),
        ),
        (FILTERS, "tiled kind 6 interleave 0 swizzle 2 l2 2 fill 0 sizes 2304 72 strides 4608 box 32 64 steps 1 1"),
    ],
)
def test_what_arrives_at_the_driver(driver, tmp_path, m, text):
    """In the graph, in launches one by one, and again where the input lies elsewhere."""
    again = (
        "context.profile({'x': x}); other = net.context()\n        results = other.run({'x': context.run_async({'x':"
        " x})['y']})"
    )
    said, log = ran(driver, tmp_path, again, mapped(m))
    assert json.loads(said)["y"] == (36 * np.arange(N)).tolist()
    found = [line for line in log if line.startswith("map")]
    assert set(found) == {f"map {text}"} and len(found) >= 4 and log.count("change 0") == 1


@needs_binding
def test_a_driver_that_refuses_says_so(driver, tmp_path):
    said, _ = ran(driver, tmp_path, plain=mapped(FILTERS), fail="cuTensorMapEncode=1")
    assert "the NVIDIA driver refuses cuTensorMapEncodeTiled: as the driver says it" in said


@needs_binding
def test_a_kernel_that_takes_an_address_is_given_no_map(driver, tmp_path):
    plain = mapped(FILTERS)
    wrong = on_gpu(plain, [CUBINS[1], replace(CUBINS[0], maps=(FILTERS,)), replace(cubin(), maps=(FILTERS,))])
    said, _ = ran(driver, tmp_path, plain=wrong)
    assert (
        "the parameters of kernel 'scale' for sm_90 do not fit its step, 9: parameter 0 is 8 bytes at 0, must be 128"
        " bytes at 0" in said
    )
