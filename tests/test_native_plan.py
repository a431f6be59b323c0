"""The native resolution of plans: every number equals `sizes.at`, and no table causes reads outside of it."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from native_models import MODELS, engines  # noqa: F401  (the fixture)

from pelton.engine import sizes
from pelton.engine.constants import length
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step, DynamicDimension
from pelton.engine.plan_tables import Tables
from pelton.engine.shape_plan import PlanTemplate
from pelton.errors import EngineError

TARGET = {"os": "linux", "arch": "x86_64", "isa": "x86_64_v3", "cpu": "any", "features": ["avx2"]}


def numbers(plan, engine) -> list:
    """All numbers of a resolved plan in the order of an engine's own."""
    return [
        plan.arena,
        [p.shape for p in (*plan.inputs, *plan.outputs)],
        plan.bytes.tolist(),
        [int(s) for s, b in zip(plan.starts, engine.buffers) if b.kind in ("arena", "constant", "table")],
        plan.words.tolist(),
        plan.tiles.tolist(),
        plan.scratch.tolist(),
        plan.phases.tolist(),
        {i: v.tolist() for i, v in plan.values.items()},
    ]


def defined(engine) -> list:
    """The same by `sizes.at`."""
    return [
        engine.arena,
        [p.shape for p in (*engine.inputs, *engine.outputs)],
        [b.size for b in engine.buffers],
        [b.offset for b in engine.buffers if b.kind in ("arena", "constant", "table")],
        [n for s in engine.steps for n in (*(a.offset for a in s.args), *s.dims)],
        [s.tiles for s in engine.steps],
        [s.scratch for s in engine.steps],
        [s.phases for s in engine.steps],
        {i: list(b.values) for i, b in enumerate(engine.buffers) if b.kind == "sizes"},
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_number_is_as_defined(engines, name):
    engine, draw = engines[name], random.Random(1)
    template = PlanTemplate(engine)
    assert engine.symbols
    for _ in range(200):
        given = {s.name: min(s.maximum, max(s.minimum, int(2 ** draw.uniform(0, 12)))) for s in engine.symbols}
        at = sizes.at(engine, given)
        assert numbers(template.resolve(given), at) == defined(at), given


TREES = {
    "sum": ["+", "n", 3, "m"],
    "product": ["*", 2, "n", "m"],
    "floor": ["//", ["+", "n", -7], 3],
    "down": ["//", "n", ["+", "m", -9]],
    "rest": ["%", ["+", "n", -7], 3],
    "below": ["%", "n", -4],
    "least": ["min", "n", "m", 5],
    "most": ["max", ["*", -1, "n"], ["%", "m", 7], -3],
}


def made(trees, **more) -> EnginePlan:
    """An engine of one buffer that holds the sizes of these trees."""
    symbols = (DynamicDimension("n", 0, 4, 1 << 40), DynamicDimension("m", 0, 10, 1 << 40))
    buffers = (
        Buffer("input", 0, "bytes"),
        Buffer("sizes", 0, 8 * len(trees), tuple(trees)),
        Buffer("output", 0, 8 * len(trees)),
    )
    step = Step("s", "kernel", (Slice(1, 0), Slice(2, 0)), grain=1)
    given = {
        "name": "made",
        "inputs": (Port("x", "u8", ("n", "m")),),
        "outputs": (Port("y", "i64", (len(trees),)),),
        "buffers": buffers,
        "steps": (step,),
        "arena": 0,
        "constants": b"",
        "code": b"code",
        "target": TARGET,
        "meta": {},
        "symbols": symbols,
        "sizes": {**trees, "n": "n", "m": "m", "bytes": ["*", "n", "m"]},
    }
    return EnginePlan(**{**given, **more})


def test_formulas_are_those_of_python():
    engine, draw = made(TREES), random.Random(2)
    template = PlanTemplate(engine)
    for _ in range(2000):
        given = {"n": draw.randrange(0, 60), "m": draw.choice([*range(9), *range(10, 60)])}
        want = [sizes.evaluate(tree, given) for tree in TREES.values()]
        assert template.resolve(given).values[1].tolist() == want, given


def test_what_is_beyond_all_bounds_is_refused():
    template = PlanTemplate(made(TREES))
    for given, why in (
        ({"n": 4, "m": 9}, "beyond all bounds"),  # a quotient by 0
        ({"n": 1 << 40, "m": 1 << 39}, "input 'x'|bounds|x is of a shape"),
    ):
        with pytest.raises(EngineError, match=why):
            template.resolve(given)


MUTATE = """
import ctypes, random, sys
import numpy as np
from pelton import native
data, constants, seed, count = open(sys.argv[1], "rb").read(), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
library, draw = native.library(), random.Random(seed)
words = np.frombuffer(data, "<i4")
opened = 0
for _ in range(count):
    now = words.copy()
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(now))
        now[at] = draw.choice((0, 1, -1, 2**31 - 1, -2**31, now[at] + 1, now[at] - 1, draw.randrange(-9, 200),
                               draw.getrandbits(31)))
    given = now.tobytes()
    given = given[: draw.randrange(len(given))] if draw.random() < 0.05 else given
    room = ctypes.create_string_buffer(given, len(given))  # at its end, so that valgrind and ASan see what is beyond
    why = ctypes.create_string_buffer(native.REASON)
    plan = library.pelton_plan_new(ctypes.cast(room, ctypes.c_char_p), len(given), constants, why)
    if plan:
        opened += 1
        library.pelton_plan_free(plan)
    else:
        assert why.value
print(opened)
"""


@pytest.mark.parametrize("name", MODELS)
def test_altered_tables_are_refused_or_harmless(engines, name, tmp_path):
    engine = engines[name]
    path = tmp_path / "tables"
    path.write_bytes(Tables(engine).encode())
    command = [sys.executable, "-c", MUTATE, str(path), str(length(engine.constants)), "3", "3000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) < 3000
