"""Assembles a script from its parts: ports, shared constants, and metadata of all its engines."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.logs import Logger
from pelton.engine.constants import DeferredConstants, bytes_of
from pelton.engine.plan import Buffer, DynamicDimension, EnginePlan, IndexRange, Port
from pelton.engine.script import (
    Action,
    Block,
    Constant,
    HostAction,
    IfAction,
    LoopAction,
    RunAction,
    ScanAction,
    Script,
    blocks_in,
    free,
    read_by,
)
from pelton.errors import BuildError
from pelton.ir import dims
from pelton.ir.dims import Dim, Size, Undecided
from pelton.ir.dims_text import tree
from pelton.ir.graph import Value
from pelton.ir.types import DType

from pelton.plan.lower import Blob, strings

if TYPE_CHECKING:
    from pelton.ir.imported import Info
    from pelton.options import Options
    from pelton.partition.partition import UnbuiltScript

log = Logger("pelton.build")
BYTES = np.dtype(np.uint8)
STORED = ("constant", "table", "text")  # kinds of buffers in the constants


def assemble(
    parts: UnbuiltScript, built: Sequence[EnginePlan | Undecided], options: Options, target: Mapping[str, Any]
) -> Script:
    """Assembles the script over these engines, one per program; the nodes of an Undecided program run by reference.

    BuildError if they cannot.
    """
    engines = [e for e in built if isinstance(e, EnginePlan)]
    main = _renumber(parts.main, built)
    indices = _indices_of_inputs(main, engines)
    engines = [replace(e, inputs=tuple(replace(p, indices=None) for p in e.inputs)) for e in engines]
    trees: dict[str, Any] = {}

    def port(v: Value) -> Port:
        trees.update({str(d): tree(d) for d in v.type.shape if isinstance(d, Dim)})
        return Port(v.name, v.type.dtype.value, tuple(map(_number, v.type.shape)), indices=indices.get(v.name))

    inputs = tuple(map(port, parts.inputs))
    symbols = dims.symbols([v.type.shape for v in parts.inputs])
    engines, arrays, constants = merge_constants(engines, parts.constants)
    meta = merge_meta(engines, parts.host, parts.forms, parts.info, options)
    return Script(
        parts.name,
        inputs,
        _with_shared_memory(parts.outputs, main, engines),
        main,
        tuple(engines),
        arrays,
        constants,
        dict(target),
        meta,
        tuple(DynamicDimension(s.name, s.minimum, s.optimum, s.maximum) for s in symbols),
        trees,
        options.max_iterations,
        file=parts.info.label,
    )


def merge_meta(
    engines: Sequence[EnginePlan], host: Sequence[str], forms: Mapping[str, Any], info: Info, options: Options
) -> dict[str, Any]:
    """Returns the metadata of a script. host: names of its steps in Python; forms, info: those of its model."""
    tuned = {
        key: max(e.meta[key] for e in engines)
        for key in ("threads", "multiprocessors")
        if any(key in e.meta for e in engines)
    }
    return {
        **(tuned or {"threads": options.threads}),
        "level": options.level,
        "strict": options.strict,
        "recorded": options.load_tactics is not None,
        "precision": options.precision,
        "forms": forms,
        "host_steps": [*host, *(name for e in engines for name in e.meta["host_steps"])],
        "weights": {key: sum(e.meta["weights"][key] for e in engines) for key in ("own", "packed", "saved_ns")},
        "copies": [c for e in engines for c in e.meta["copies"]],
        "layouts": [x for e in engines for x in e.meta["layouts"]],
        "chains": [c for e in engines for c in e.meta["chains"]],
        "half": [layer for e in engines for layer in e.meta["half"]],
        "fusion_refusals": [n for e in engines for n in e.meta["fusion_refusals"]],
        "checked": [c for e in engines for c in e.meta["checked"]],
        "model": info.record(),
        "plugins": {name: digest for e in engines for name, digest in e.meta["plugins"].items()},
        "image": options.image,
        "labels": list(options.labels) if options.labels else None,
    }


def _indices_of_inputs(main: Block, engines: Sequence[EnginePlan]) -> dict[str, IndexRange]:
    """Returns the bounds of names that index tables in engines that always run."""
    ranges: dict[str, IndexRange] = {}
    for action in main.steps:
        if isinstance(action, RunAction):
            for port, feed in zip(engines[action.engine].inputs, action.feeds):
                if port.indices is not None and feed.source == "array":
                    known = ranges.get(feed.name, port.indices)
                    ranges[feed.name] = min(known, port.indices, key=lambda bounds: bounds.high)
    return ranges


def _with_shared_memory(outputs: Sequence[Port], main: Block, engines: Sequence[EnginePlan]) -> tuple[Port, ...]:
    """Marks each output of an engine that may use the memory of an input which nothing else in the script reads."""
    readers = Counter(name for action in main.steps for name in (*read_by(action), *free_in(action)))
    shares: dict[str, str] = {}
    for action in main.steps:
        if isinstance(action, RunAction):
            engine = engines[action.engine]
            feeds = {p.name: f for p, f in zip(engine.inputs, action.feeds)}
            for port, name in zip(engine.outputs, action.outputs):
                feed = feeds[port.shares] if port.shares is not None else None
                if feed is not None and feed.source == "array" and feed.name in main.inputs:
                    if readers[feed.name] == 1 and main.outputs.count(name) == 1:
                        shares[name] = feed.name
    return tuple(replace(p, shares=shares.get(name)) for p, name in zip(outputs, main.outputs))


def free_in(action: Action) -> set[str]:
    """Returns the names that the blocks of a step read from outside, those instead of an engine aside."""
    return set() if isinstance(action, RunAction) else set[str]().union(*map(free, blocks_in(action)))


def _number(size: Size) -> Any:
    """Returns a size as engines store it: a number, or the text of an expression."""
    return str(size) if isinstance(size, Dim) else int(size)


def _renumber(block: Block, built: Sequence[EnginePlan | Undecided]) -> Block:
    """Renumbers the steps with engines, and replaces programs that could not be built by reference steps."""
    steps: list[Action] = []
    for a in block.steps:
        match a:
            case RunAction():
                why = built[a.engine]
                if isinstance(why, EnginePlan):
                    steps.append(replace(a, engine=sum(isinstance(e, EnginePlan) for e in built[: a.engine])))
                elif a.otherwise is None or a.otherwise.outputs != a.outputs:
                    raise BuildError(
                        f"the program that computes {', '.join(a.outputs)}: {why}; fix these sizes with shapes="
                    ) from why
                else:
                    log.warning("the program that computes %s runs by reference: %s", ", ".join(a.outputs), why)
                    steps += a.otherwise.steps
            case IfAction():
                steps.append(replace(a, then=_renumber(a.then, built), other=_renumber(a.other, built)))
            case LoopAction() | ScanAction():
                steps.append(replace(a, body=_renumber(a.body, built)))
            case HostAction():
                steps.append(a)
    return replace(block, steps=tuple(steps))


def merge_constants(
    engines: Sequence[EnginePlan], arrays: Mapping[str, np.ndarray]
) -> tuple[list[EnginePlan], dict[str, Constant], DeferredConstants]:
    """Merges the constants of all engines: the engines over them, the offset of each array, and the bytes. Constants
    that are not computed yet are computed one at a time, for their hash, and again when their bytes are needed."""
    blob = Blob()

    def store(read: Callable[[], np.ndarray], size: int, key: bytes) -> tuple[int, int]:
        return blob.offsets[blob.add(key, "constant", BYTES, (size,), lambda out: np.copyto(out, read()))]

    def rebased_buffers(engine: EnginePlan) -> tuple[Buffer, ...]:
        stored = [b for b in engine.buffers if b.kind in STORED]
        reads = [partial(_piece, engine.constants, i, b.offset, b.size) for i, b in enumerate(stored)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            keys = [*pool.map(_key, reads)]
        rebased = iter([replace(b, offset=store(r, int(b.size), k)[0]) for b, r, k in zip(stored, reads, keys)])
        return tuple(next(rebased) if b.kind in STORED else b for b in engine.buffers)

    buffers = [rebased_buffers(e) for e in engines]
    entries: dict[str, Constant] = {}
    for name, array in arrays.items():
        dtype = DType.of(array)
        data = strings(array) if dtype is DType.STRING else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        read = partial(np.asarray, data)
        entries[name] = Constant(dtype.value, tuple(map(int, array.shape)), *store(read, data.size, _key(read)))
    constants = blob.constants()
    return [replace(e, buffers=own, constants=constants) for e, own in zip(engines, buffers)], entries, constants


def _key(read: Callable[[], np.ndarray]) -> bytes:
    return hashlib.sha256(read().data).digest()


def _piece(constants: Any, number: int, offset: int, size: int) -> np.ndarray:
    """Returns the bytes of an engine's constant: the one of this number, at this offset."""
    if isinstance(constants, DeferredConstants) and not constants.is_filled:
        return constants.part(number, size)
    return np.asarray(bytes_of(constants))[offset : offset + size]
