"""Assembles engines with profiles: one network, tuned for several ranges of sizes, over one copy of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pelton.engine.plan import UNBOUNDED, DynamicDimension, EnginePlan, Port
from pelton.engine.script import Block, Feed, RunAction, Script
from pelton.engine.sizes import accepts, evaluate, optimum_sizes, solve
from pelton.errors import InputError

from .assemble import merge_constants, merge_meta

if TYPE_CHECKING:
    from pelton.ir.imported import Info
    from pelton.options import Options

SAMPLES = 8  # sets of sizes, besides the smallest and the best, on which the joined ports are checked
FAR = 1000  # the largest distance of a sample from the minimum
Entry = int | str  # a size of a port
Shapes = list[tuple[int, ...]]


class JoinedInputs(NamedTuple):
    """Inputs that accept whatever one of several engines accepts."""

    inputs: tuple[Port, ...]
    symbols: tuple[DynamicDimension, ...]
    sizes: dict[str, Any]


class Sample(NamedTuple):
    """Shapes of an engine's ports for one set of sizes."""

    inputs: Shapes
    outputs: Shapes


def assemble_profiles(
    plans: Mapping[str, EnginePlan], info: Info, options: Options, target: Mapping[str, Any]
) -> Script:
    """Returns the script over these engines, by the names of their profiles.

    Raises InputError if they differ in more than sizes.
    """
    _check_alike(plans)
    engines = [*plans.values()]
    samples = [sample for e in engines for sample in _samples(e)]
    joined = _join_inputs(engines)
    _check_relations(joined, samples, info.label)
    trees = {**{d: t for e in engines for d, t in e.sizes.items()}, **joined.sizes}
    outputs = tuple(
        _joined_port(ports, [_output_size(joined, samples, i, axis, sizes, trees) for axis, sizes in _axes(ports)])
        for i, ports in enumerate(zip(*(e.outputs for e in engines)))
    )
    merged, _, constants = merge_constants(engines, {})
    meta = merge_meta(engines, (), engines[0].meta["forms"], info, options)
    weights = {"own": max(e.meta["weights"]["own"] for e in engines), "packed": constants.size}
    meta["weights"] |= weights  # one copy for all
    meta["profiles"] = {name: _differences(e, engines) for name, e in plans.items()}
    texts = {d for p in outputs for d in p.shape if isinstance(d, str) and d in trees}
    return Script(
        engines[0].name,
        joined.inputs,
        outputs,
        _main(joined.inputs, outputs, len(engines)),
        tuple(merged),
        {},
        constants,
        dict(target),
        meta,
        joined.symbols,
        {**joined.sizes, **{d: trees[d] for d in sorted(texts)}},
        options.max_iterations,
        profiles=tuple(plans),
        file=info.label,
    )


def _check_alike(plans: Mapping[str, EnginePlan]) -> None:
    (first, one), *others = plans.items()
    for name, plan in others:
        for kind in ("inputs", "outputs"):
            here, there = ([(p.name, p.dtype, len(p.shape)) for p in getattr(x, kind)] for x in (plan, one))
            if here != there:
                raise InputError(
                    f"profiles= may differ in sizes only: profile {name!r} has the {kind} {here!r:.200},"
                    f" profile {first!r} {there!r:.200}"
                )


def _differences(engine: EnginePlan, engines: Sequence[EnginePlan]) -> dict[str, str]:
    """Returns the sizes of the inputs that are not the same in all engines, as in `shapes=`."""
    return {
        port.name: _sizes(engine, port)
        for i, port in enumerate(engine.inputs)
        if len({_sizes(e, e.inputs[i]) for e in engines}) > 1
    }


def _sizes(engine: EnginePlan, port: Port) -> str:
    """Returns the sizes of a port as in `shapes=`: 1..8..32x3."""

    def size(d: Entry) -> str:
        low, best, high = (_extreme(engine, d, bound) for bound in ("minimum", "optimum", "maximum"))
        if low == high:
            return str(low)
        return f"{low}..{best}..{high if high < UNBOUNDED else ''}"

    return "x".join(map(size, port.shape))


def _main(inputs: Sequence[Port], outputs: Sequence[Port], count: int) -> Block:
    """Returns the steps of the script: each engine runs what the ones before do not accept."""
    feeds = tuple(Feed(p.name) for p in inputs)
    results = tuple(f"output {p.name}" for p in outputs)  # an input may have the same name
    block = None
    for i in reversed(range(count)):
        block = Block(tuple(f.name for f in feeds) if i == 0 else (), (RunAction(i, feeds, results, block),), results)
    assert block is not None
    return block


def _axes(ports: Sequence[Port]) -> Iterator[tuple[int, tuple[Entry, ...]]]:
    """Yields each axis with its size in every engine. ports: the same input or output of all engines."""
    return enumerate(zip(*(p.shape for p in ports)))


def _joined_port(ports: Sequence[Port], shape: Sequence[Entry]) -> Port:
    first = ports[0]
    ranges = [p.indices for p in ports if p.indices is not None]
    return replace(
        first,
        shape=tuple(shape),
        # each engine checks its own range; an index that none accepts is known beforehand
        indices=max(ranges, key=lambda r: r.high) if len(ranges) == len(ports) else None,
        shares=first.shares if len({p.shares for p in ports}) == 1 else None,
    )


def _join_inputs(engines: Sequence[EnginePlan]) -> JoinedInputs:
    """Joins the inputs of engines: axes of different sizes become dynamic."""
    names = {s.name for e in engines for s in e.symbols}
    symbols, trees = dict[str, DynamicDimension](), dict[str, Any]()

    def widen(name: str, low: int, best: int, high: int) -> None:
        known = symbols.get(name, DynamicDimension(name, low, best, high))
        symbols[name] = replace(known, minimum=min(known.minimum, low), maximum=max(known.maximum, high))

    def size(entries: Sequence[Entry], name: str) -> Entry:
        first, texts = entries[0], sorted({d for d in entries if isinstance(d, str)})
        if len(set(entries)) == 1:
            if isinstance(first, str):
                trees[first] = tree = engines[0].sizes[first]
                for s in (s for e in engines for s in e.symbols if s.name in _names_in(tree)):
                    widen(s.name, s.minimum, s.optimum, s.maximum)
            return first
        symbol = texts[0] if len(texts) == 1 and texts[0] in names else _unused(name, names)
        for e, d in zip(engines, entries):
            widen(symbol, *(_extreme(e, d, bound) for bound in ("minimum", "optimum", "maximum")))
        trees[symbol] = symbol
        return symbol

    inputs = tuple(
        _joined_port(ports, [size(sizes, f"{ports[0].name}_{axis}") for axis, sizes in _axes(ports)])
        for ports in zip(*(e.inputs for e in engines))
    )
    return JoinedInputs(inputs, tuple(symbols.values()), trees)


def _names_in(tree: Any) -> set[str]:
    """Returns the symbols of an expression."""
    if isinstance(tree, str):
        return {tree}
    return set().union(*map(_names_in, tree[1:])) if isinstance(tree, (list, tuple)) else set()


def _unused(name: str, taken: set[str]) -> str:
    """Returns an identifier like this name for a new symbol, and takes it."""
    symbol = "".join(c if c.isalnum() else "_" for c in name)
    while symbol in taken:
        symbol += "_"
    taken.add(symbol)
    return symbol


def _extreme(engine: EnginePlan, size: Entry, bound: str) -> int:
    """Returns a size where each symbol of the engine is its minimum, optimum or maximum."""
    values = {s.name: getattr(s, bound) for s in engine.symbols}
    return evaluate(engine.sizes[size], values) if isinstance(size, str) else size


def _samples(engine: EnginePlan) -> Iterator[Sample]:
    """Yields the shapes of an engine's ports for some sizes within its bounds."""
    random = np.random.default_rng(0)
    drawn = [
        {s.name: int(random.integers(s.minimum, min(s.maximum, s.minimum + FAR) + 1)) for s in engine.symbols}
        for _ in range(SAMPLES)
    ]
    for values in (optimum_sizes(engine), {s.name: s.minimum for s in engine.symbols}, *drawn):
        trees = engine.sizes
        yield Sample(
            *(
                [tuple(evaluate(trees[d], values) if isinstance(d, str) else d for d in p.shape) for p in ports]
                for ports in (engine.inputs, engine.outputs)
            )
        )


def _check_relations(joined: JoinedInputs, samples: Sequence[Sample], model: str) -> None:
    """Raises InputError if the joined inputs do not accept what an engine accepts."""
    for sample in samples:
        shapes = {p.name: shape for p, shape in zip(joined.inputs, sample.inputs)}
        if not accepts(joined, shapes):
            raise InputError(
                f"profiles= relates the sizes of inputs in different ways: {shapes!r:.300} fit one profile, but"
                f" no ranges that hold for all; set the same sizes in all of them ({model})"
            )


def _output_size(
    joined: JoinedInputs, samples: Sequence[Sample], output: int, axis: int, sizes: Sequence[Entry], trees: Any
) -> Entry:
    """Returns the size of an output's axis: the first size of an engine, or of the joined inputs, that holds for all
    samples; if there is none, a text without a meaning, which stands for a size that only a run knows."""
    for size in dict.fromkeys((*sizes, *joined.sizes)):
        try:
            if all(evaluate(trees.get(size, size), _symbols(joined, s)) == s.outputs[output][axis] for s in samples):
                return size
        except KeyError:  # it has a symbol that no joined input has
            pass
    return f"output_{output}_{axis}"


def _symbols(joined: JoinedInputs, sample: Sample) -> dict[str, int]:
    return solve(joined, {p.name: shape for p, shape in zip(joined.inputs, sample.inputs)})
