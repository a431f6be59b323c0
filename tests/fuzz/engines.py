"""Damage to engine files: bytes changed as by a disk, and headers and plans changed with corrected hashes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
from handmade import chain
from onnx_models import one_node
from script_models import MODELS
from test_engine_file import forge, with_host_step

from pelton.builder.build import build
from pelton.engine import file
from pelton.engine.plan import EnginePlan
from pelton.engine.script import Script
from pelton.options import Options
from pelton.runtime import Engine
from pelton.runtime.script_engine import ScriptEngine
from pelton.backends.arrays import random_inputs

from . import mutate

SCRIPTS = ("nonzero_gather", "loop_in_a_branch", "scanned_rnn", "parts_of_a_sequence")
RUNS = 1 << 24  # bytes of inputs and outputs up to which a damaged engine is run


def originals(cache: Path) -> list[bytes]:
    """Engines with kernels, dynamic dimensions, host steps or strings, that can be refitted or have no weights, and
    scripts over engines, some with blocks."""
    models = (
        one_node("Equal", "string[3]", "string[3]", opset=19),
        one_node("Sum", "f32[n, 3]", "f32[3]"),
        one_node("MatMul", "f32[n, 4]", np.ones((4, 5), np.float32)),
    )
    made = [file.to_bytes(chain(100)), file.to_bytes(with_host_step())]
    decided = (MODELS[name]()[0] for name in SCRIPTS)
    options = Options(level=0, threads=2, cache_dir=cache, max_iterations=1000)
    given = [(m, options) for m in (*models, *decided)]
    given += [(models[-1], options.but(**{name: True})) for name in ("refit", "strip_weights")]
    return made + [build(m, options=own).tobytes() for m, own in given]


def damaged(data: bytes, rng: random.Random) -> bytes:
    return mutate.bytes_changed(data, rng) if rng.random() < 0.4 else forge(data, rng)


def engine_case(engines: list[bytes]):
    """The case of damaged engines: "run", or "loaded" where kernels would get arguments they were not built for."""

    def case(seed: int) -> str:
        rng = random.Random(seed)
        original = rng.choice(engines)
        found = file.read(damaged(original, rng), verify=rng.random() < 0.3)
        if isinstance(found, Script):
            return run_script(found, file.read(original), seed)
        plain = found
        engine = Engine(plain)
        context = engine.context(threads=2)
        size = sum(p.nbytes for p in (*plain.inputs, *plain.outputs) if all(isinstance(d, int) for d in p.shape))
        if size > RUNS or not _harmless(plain, file.read(original)):
            return "loaded"
        shapes = engine.shapes()
        if engine.symbols:
            dtypes = {p.name: object if p.dtype == "string" else p.numpy_dtype for p in engine.inputs}
            feeds = {name: np.full(shapes[name], "a" if t is object else 0, t) for name, t in dtypes.items()}
        else:
            feeds = random_inputs(engine.inputs, seed)
        context.run(feeds)
        return "run"

    return case


def run_script(found: Script, original: Script, seed: int) -> str:
    engine = ScriptEngine(found)
    shapes = engine.shapes()
    ports = [replace(p, shape=shapes[p.name]) for p in engine.inputs]
    if any(d < 0 for p in ports for d in p.shape):  # damaged sizes: no array has them
        return "script loaded"
    if sum(p.nbytes for p in ports) > RUNS or found.iterations > 1000 or len(found.engines) != len(original.engines):
        return "script loaded"
    if not all(_harmless(e, o) for e, o in zip(found.engines, original.engines)):
        return "script loaded"
    engine.run(random_inputs(ports, seed))
    return "script run"


def _harmless(plain: EnginePlan, original: EnginePlan) -> bool:
    """Whether kernels get only arguments that they were built for: an engine is trusted like a program in these."""
    if not any(s.symbol for s in plain.steps):
        return True

    def kernels(e: EnginePlan) -> list:
        return [(s.symbol, s.args, s.dims, s.tiles, s.grain, s.scratch, s.phases) for s in e.steps if s.symbol]

    same = kernels(plain) == kernels(original) and (plain.buffers, plain.inputs, plain.outputs) == (
        original.buffers,
        original.inputs,
        original.outputs,
    )
    return same and (plain.arena, plain.sizes, plain.symbols) == (original.arena, original.sizes, original.symbols)
