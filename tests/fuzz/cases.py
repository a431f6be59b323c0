"""Fuzz cases by kind and seed: damaged models are imported, planned and sometimes built and run."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from compare import assert_close

from pelton.diagnose import support
from pelton import preprocessing  # noqa: F401  (imported before children are made)
from pelton.quantize.accuracy_bound import AccuracyBound
from pelton.builder.build import build, build_detailed
from pelton.compiler.stages import run_stages, start
from pelton.engine.validate import validate
from pelton.engine.plan import EnginePlan
from pelton.engine.script import validate_script
from pelton.errors import Error, InputError
from pelton.importers.onnx import load as importer
from pelton import importers
from pelton.partition import partition
from pelton.ir.imported import Imported, OnData
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, with_sizes, symbols, optimum_sizes
from pelton.ir.types import STRING
from pelton.options import Options
from pelton.plan import lower
from pelton.builder.assemble import assemble
from pelton.backends.arrays import random_inputs

from . import graphs, mutate, seeds

BUILT = 20  # of so many damaged models that can be planned, one is built and run
CHECKED = 4  # of so many, one is held against `check`
RUNS = 1 << 22  # elements of a program up to which it is run
TURNS = 1000  # of all loops of a damaged model
META = {
    "threads": 2,
    "host_steps": [],
    "weights": {"own": 0, "packed": 0, "saved_ns": 0},
    "copies": [],
    "layouts": [],
    "chains": [],
    "checked": [],
    "half": [],
    "fusion_refusals": [],
    "plugins": {},
}
RANDOM = ("Random", "Bernoulli", "Multinomial")
OPTIONS = Options(level=0, threads=2, memory=1 << 31)


def quiet() -> None:
    """Without the warnings of models that deserve them."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def damaged(seed: int, corpus: tuple[bytes, ...]) -> bytes:
    rng = random.Random(seed)
    return mutate.mutated(rng.choice(corpus), rng)


def model_case(corpus: tuple[bytes, ...], cache: Path):
    """The case of damaged models: "planned", "right" where built and compared; for scripts "script", "script run"."""

    def case(seed: int) -> str:
        data = damaged(seed, corpus)
        if not seed % CHECKED:
            assert_check_agrees(data)
        whole = not random.Random(~seed).randrange(BUILT)
        try:
            imported = importer.load(data)
        except OnData:
            return run_script(data, seed, cache) if whole else plan_script(data)
        if whole:
            return run_and_compare(data, np.random.default_rng(seed), cache)
        planned(imported)
        return "planned"

    return case


def assert_check_agrees(data: bytes) -> None:
    """`check` says that a model can be built if and only if a build of it comes as far as to the compiler."""
    try:
        said = support.diagnose(data, memory=OPTIONS.memory).ok
    except Error:
        said = False
    why = ""
    try:
        try:
            planned(importer.load(data))
        except OnData:
            plan_script(data)
    except Error as e:
        why = f"{type(e).__name__}: {e}"
    assert said == (not why), f"check says {said}, a build {why or 'has nothing against it'}"


def plan_script(data: bytes) -> str:
    """All of a build but the compiler, of a model of which the data decides what runs."""
    found = partition.partition_model(importers.unread(data))
    validate_script(assemble(found, [planned(program) for program in found.programs], OPTIONS, {}))
    return "script"


def run_script(data: bytes, seed: int, cache: Path) -> str:
    engine = build(data, options=OPTIONS.but(cache_dir=cache, max_iterations=TURNS))
    if sum(p.nbytes for p in engine.ports({s.name: s.optimum for s in engine.symbols})) > RUNS:
        return "script"
    shapes = engine.shapes()
    engine.run(random_inputs([replace(p, shape=shapes[p.name]) for p in engine.inputs], seed))
    return "script run"


def planned(imported: Imported) -> EnginePlan:
    """All of a build but the compiler: the engine without its machine code."""
    c = run_stages(start(imported, OPTIONS), "tune")
    placed, choices = c.placed, c.choices
    waves = lower.waves(placed)
    chosen = [
        lower.ScheduledTask(t, choices[i].kernel if i in choices else None, waves[i], {"name": "t"})
        for i, t in enumerate(placed.tasks)
    ]
    engine = lower.lower(
        placed,
        chosen,
        b"\0",
        name="fuzzed",
        target={},
        meta=META,
        output_names=[v.name for v in imported.graph.outputs],
    )
    validate(engine)
    return engine


def run_and_compare(data: bytes, rng: np.random.Generator, cache: Path) -> str:
    made = build_detailed(data, OPTIONS.but(cache_dir=cache))
    graph, sizes = made.imported.graph, optimum_sizes(made.imported.graph)
    if symbols(graph):
        graph, _ = with_sizes(graph, sizes)
    if elements(graph) > RUNS:
        return "built"
    feeds = draw(graph, rng)
    got = {
        port: a
        for name, given in made.engine.run(feeds).items()  # sequences come as lists
        for port, a in (
            [(f"{name}[{i}]", a) for i, a in enumerate(given)] if isinstance(given, list) else [(name, given)]
        )
    }
    if any(n.op.kind == "foreign" and any(name in n.op.name for name in RANDOM) for n in graph.nodes):
        return "run"
    try:
        with np.errstate(all="ignore"):
            values = evaluate(graph, feeds, keep=True)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # indices outside, types that the onnx package does not mix: nothing to compare with
        return "run"
    if any(map(has_subnormals, values.values())):
        return "run"
    for name in (v.name for v in graph.outputs):
        array = values[name]
        finite = (
            np.isfinite(array.astype(np.complex128)) if array.dtype.kind not in "OUSTb" else np.ones(array.shape, bool)
        )
        assert got[name].shape == array.shape and got[name].dtype == array.dtype, (
            f"{name}: {got[name].dtype}{got[name].shape}, not {array.dtype}{array.shape}"
        )
        if finite.all():
            assert_close(got[name], array, "float16" if array.dtype.kind not in "OUSTb" else None, about=name)
    return "right"


def has_subnormals(array: np.ndarray) -> bool:
    """Whether kernels, which flush subnormals to zero, compute with other numbers than numpy."""
    if array.dtype.name not in ("float32", "float64", "bfloat16"):
        return False
    magnitude = np.abs(array.astype(np.float64))
    smallest = np.finfo(np.float64 if array.dtype == np.float64 else np.float32).tiny
    return bool(((magnitude > 0) & (magnitude < smallest)).any())


def elements(graph: Graph) -> int:
    return sum(int(v.type.size) for v in (*graph.inputs, *(o for n in graph.nodes for o in n.outputs)))


def draw(graph: Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a program."""
    feeds = {}
    for v in graph.inputs:
        shape, dtype = v.type.shape, v.type.dtype
        if dtype is STRING:
            feeds[v.name] = rng.integers(0, 5, shape).astype(str).astype(object)
        elif dtype.value == "bool":
            feeds[v.name] = np.asarray(rng.random(shape) < 0.5)
        elif dtype.is_integer:
            feeds[v.name] = np.asarray(rng.integers(0, 4 if dtype.size > 1 else 2, shape)).astype(dtype.numpy)
        else:
            feeds[v.name] = np.asarray(rng.uniform(0.1, 0.9, shape)).astype(dtype.numpy)
    return feeds


def corpus(everything: bool) -> tuple[bytes, ...]:
    return seeds.all_of_them() if everything else seeds.small()


# what a model gives for some arrays, built as a seed has it; None where it was not run
Run = Callable[[bytes, Mapping[str, np.ndarray], int], Mapping[str, np.ndarray] | None]


def on_cpu(cache: Path) -> Run:
    return lambda data, feeds, seed: build(data, options=OPTIONS.but(cache_dir=cache, strict=True)).run(feeds)


def in_int8(cache: Path) -> Run:
    """Builds with layers in INT8, calibrated on inputs like the given ones. All kernels are checked, and what the build
    promises of data kept aside. It gives nothing to compare further, as random graphs have discontinuities."""

    def run(data: bytes, feeds: Mapping[str, np.ndarray], seed: int) -> None:
        rng = np.random.default_rng(seed)
        samples = [feeds, *({name: varied(a, rng) for name, a in feeds.items()} for _ in range(5))]
        options = OPTIONS.but(cache_dir=cache, check=True)
        for drop in (float("inf"), 0.05) if feeds else ():
            given = options.but(precision="int8", calibration=iter(samples), max_drop=drop)
            try:
                engine = build(data, options=given)
            except InputError as e:
                if any(words in str(e) for words in UNCALIBRATED):
                    return None
                raise
            report = engine.meta["int8"]
            left = [layer for layer in report["layers"] if layer["precision"] == "int8"]
            if left:
                held_out = samples[4:5]
                exact = build(data, options=options)
                found = AccuracyBound(exact, held_out, drop, scores=set()).measure(engine)
                assert found.drop <= drop or "agreement" in report["accuracy"], (found, report)
        return None

    return run


# what random graphs may be refused with: data decides their shapes, or leaves all tensors as they are
UNCALIBRATED = ("it is a script over several engines", "calibration found no range", "the calibration data", "constant")


def varied(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Floats that are up to a half larger or smaller; others stay."""
    if array.dtype.kind != "f":
        return array
    return (array * rng.uniform(0.5, 1.5, array.shape)).astype(array.dtype)


def graph_case(run: Run):
    """The case of random graphs: built, run, compared with the onnx package's reference, and shrunk where they fail.

    With fixed sizes a refusal is a failure, too.
    """

    def problem(made: graphs.Program, nodes: Sequence[onnx.NodeProto], seed: int) -> str:
        m, feeds, outputs = made.model(nodes)
        try:
            got = run(m.SerializeToString(), feeds, seed)
            for name in outputs if got is not None else ():
                made.assert_near(name, got[name])
        except Error as e:
            return "" if made.dynamic else f"refused: {e}"
        except AssertionError as e:
            return f"wrong: {e}"
        return ""

    def case(seed: int) -> str:
        made = graphs.program(seed)
        if not (found := problem(made, made.nodes, seed)):
            return "right"
        kind = found.partition(":")[0]
        least = graphs.shrunk(made.nodes, lambda nodes: problem(made, nodes, seed).startswith(kind))
        text = onnx.printer.to_text(made.model(least)[0])
        raise AssertionError(f"{text}\n{problem(made, least, seed)}")

    return case
