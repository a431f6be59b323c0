"""Validates engines: by the numbers of the plan, no step accesses memory outside its buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from pelton.errors import EngineError
from pelton.targets import WITH_ZEROS

from .constants import bytes_of, length
from .plan import KINDS, SIZES, Buffer, EnginePlan, Port, Slice, Step, Tensor, strings_in
from .metadata import check_metadata
from .library import LIBRARIES, work
from .sizes import at, multiple_of, optimum_sizes, is_well_formed

ALIGN = 64  # bytes, of every piece of the arena and of the constants
MAX_BYTES = 1 << 46  # bytes: more than any machine has
MAX_TILES = (1 << 31) - 1  # the walker counts them in 32 bits
MAX_ZEROS = 1 << 28  # bytes: far more than all counters of an engine need
LONG_LIMIT = 1 << 63  # dims are C longs


def validate(engine: EnginePlan) -> None:
    """Raises EngineError, with fault and place, if the numbers of the plan are inconsistent.

    The use of dims by kernels is unknown here: code and dims are trusted like a program. An engine with symbols is
    validated at its optimum sizes; for other sizes, validate the result of `sizes.at`.
    """
    refuse = Refusal(engine.label)
    validate_front(engine)
    if engine.symbols:
        _expressions(engine, refuse)
        try:
            resolved = at(engine, optimum_sizes(engine))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as e:
            refuse(f"its plan uses a size that it does not explain ({type(e).__name__}: {e})")
        validate(resolved)
        return
    _number(engine.arena, MAX_BYTES, refuse, "the size of the arena")
    for kind, ports in (("input", engine.inputs), ("output", engine.outputs)):
        for port in ports:
            _port(port, refuse, kind)
    objects = _buffers(engine, refuse)
    wave = 0
    for i, step in enumerate(engine.steps):
        if type(step.wave) is not int or not wave <= step.wave < LONG_LIMIT:
            refuse(f"step {i} ({step.name}) is of wave {step.wave!r}, after wave {wave}")
        wave = step.wave
        _step(step, engine.buffers, objects, refuse, f"step {i} ({step.name})")
        if step.symbol in LIBRARIES and all(s.symbol in LIBRARIES for s in step.alternatives):
            refuse(f"step {i} ({step.name}) has no kernel for where the library {step.symbol} is not")
        for k, alternative in enumerate(step.alternatives):
            where = f"alternative {k} of step {i} ({step.name})"
            nested = alternative.alternatives or alternative.outputs
            if nested or not (step.symbol and alternative.symbol) or alternative.wave != step.wave:
                refuse(f"{where} is no kernel that could stand in its place")
            _step(alternative, engine.buffers, objects, refuse, where)
    if not engine.code and any(s.symbol for s in engine.steps):
        refuse("it has kernels but no machine code")


def validate_front(engine: EnginePlan) -> None:
    """Raises EngineError for faults of an engine beside the numbers of its plan: target, metadata, names."""
    refuse = Refusal(engine.label)
    check_target(engine.target, refuse)
    check_metadata(engine.meta, refuse)
    for kind, ports in (("input", engine.inputs), ("output", engine.outputs)):
        names = [p.name for p in ports]
        if not all(isinstance(name, str) and name for name in names):
            refuse(f"an {kind} has no name")
        if len(set(names)) < len(names):
            refuse(f"its {kind}s have a name in common: {', '.join(names)}")
        for p in ports:
            if p.dims and len(p.dims) != len(p.shape):
                refuse(f"{kind} {p.name!r} has {len(p.shape)} sizes and {len(p.dims)} names for them")
    if engine.symbols:
        _symbols(engine, refuse)


def check_target(target: Mapping[str, Any], refuse: Callable[[str], NoReturn]) -> None:
    """Rejects a target without its required fields; start compares it with this machine."""
    features = target.get("features", ())
    if not all(isinstance(target.get(key, ""), str) for key in ("os", "arch", "isa", "cpu")):
        refuse("it has no target machine")
    if not isinstance(features, (list, tuple)) or not all(isinstance(f, str) for f in features):
        refuse("it has no list of CPU features")


def _symbols(engine: EnginePlan, refuse: Refusal) -> None:
    names = [s.name for s in engine.symbols]
    if len(set(names)) < len(names):
        refuse(f"two of its sizes have one name: {', '.join(names)}")
    for s in engine.symbols:
        if (
            not all(type(n) is int for n in (s.minimum, s.optimum, s.maximum))
            or not 0 <= s.minimum <= s.optimum <= s.maximum < MAX_BYTES
            or not s.name.isidentifier()
        ):
            refuse(f"the size {s.name!r} has the bounds {s.minimum!r}, {s.optimum!r}, {s.maximum!r}")
        if not any(multiple_of(engine, d)[0] == s.name for p in engine.inputs for d in p.shape):
            refuse(f"no input has the size {s.name!r}")


def _expressions(engine: EnginePlan, refuse: Refusal) -> None:
    names = {s.name for s in engine.symbols}
    for text, tree in engine.sizes.items():
        if not is_well_formed(tree, names):
            refuse(f"it has no definition of the size {text!r}")
    for i, b in enumerate(engine.buffers):
        if b.kind in ("constant", "table", "text", "zeros") and not (type(b.offset) is int and type(b.size) is int):
            refuse(f"buffer {i} is {'of zeros' if b.kind == 'zeros' else 'a constant'} whose size varies")
        if b.kind == "arena" and type(b.offset) is not int:
            refuse(f"buffer {i} is at {b.offset!r:.50}")


class Refusal:
    """Raises EngineError for a damaged engine of this name, with the reason."""

    def __init__(self, name: object):
        self.name = name

    def __call__(self, why: str) -> NoReturn:
        raise EngineError(f"engine {self.name!r} is damaged: {why}; build it again")


def _number(n: object, limit: int, refuse: Refusal, what: str) -> None:
    if type(n) is not int or not 0 <= n < limit:
        refuse(f"{what} is {n!r}, expected an integer from 0 to {limit - 1}")


def _tensor_size(dtype: object, shape: object, refuse: Refusal, where: str) -> int:
    """Returns the bytes of a tensor; 0 if an axis is empty."""
    if dtype not in SIZES:
        refuse(f"{where} is of unknown type {dtype!r}")
    if not isinstance(shape, tuple) or len(shape) > 32:
        refuse(f"{where} has shape {shape!r}, expected at most 32 sizes")
    for d in shape:
        _number(d, MAX_BYTES, refuse, f"a size of {where}")
    size = math.prod(d for d in shape if d) * SIZES[dtype]
    if size >= MAX_BYTES:
        refuse(f"{where} has {size} bytes")
    return 0 if 0 in shape else size


def _port(port: Port, refuse: Refusal, kind: str) -> None:
    _tensor_size(port.dtype, port.shape, refuse, f"{kind} {port.name!r}")
    if port.indices is not None:
        _number(port.indices.high, MAX_BYTES, refuse, f"the greatest index of {kind} {port.name!r}")
        if kind != "input" or port.dtype not in ("i32", "i64") or port.indices.low != -port.indices.high - 1:
            refuse(f"{kind} {port.name!r} of {port.dtype} has indices from {port.indices.low!r}")


def _buffers(engine: EnginePlan, refuse: Refusal) -> dict[int, int]:
    """Checks all buffers. Returns those of strings with the number of strings in each.

    Other buffers may not be used as strings, nor these as bytes.
    """
    written = set()
    objects: dict[int, int] = {}
    for i, b in enumerate(engine.buffers):
        where = f"buffer {i}"
        if b.kind not in KINDS:
            refuse(f"{where} is of unknown kind {b.kind!r}")
        _number(b.size, MAX_BYTES, refuse, f"the size of {where}")
        _number(b.offset, MAX_BYTES, refuse, f"the offset of {where}")
        if b.kind in ("input", "output"):
            ports = engine.inputs if b.kind == "input" else engine.outputs
            if b.offset >= len(ports):
                refuse(f"{where} is {b.kind} {b.offset}, there are {len(ports)}")
            if b.size != ports[b.offset].nbytes:
                refuse(f"{where} has {b.size} bytes, {b.kind} {ports[b.offset].name!r} has {ports[b.offset].nbytes}")
            if b.kind == "output":
                written.add(b.offset)
            if ports[b.offset].dtype == "string":
                objects[i] = b.size // SIZES["string"]
        elif b.kind in ("sizes", "iota"):
            _computed(b, refuse, where)
        elif b.kind == "strings":
            objects[i] = b.size // SIZES["string"]
        else:
            _stored(engine, b, refuse, where)
            if b.kind == "text":
                objects[i] = _strings(engine, b, refuse, where)
    for i, port in enumerate(engine.outputs):
        if i not in written and port.nbytes:
            refuse(f"no buffer is output {port.name!r}")
    return objects


def _computed(b: Buffer, refuse: Refusal, where: str) -> None:
    wrong = b.dtype not in SIZES or b.dtype == "string" or b.size % SIZES[b.dtype]
    if wrong or (b.kind == "sizes" and (b.size, b.dtype) != (len(b.values) * SIZES["i64"], "i64")):
        refuse(f"{where} has {b.size} bytes of {b.dtype!r} for {len(b.values)} sizes")
    for n in b.values:
        if type(n) is not int or not -LONG_LIMIT <= n < LONG_LIMIT:
            refuse(f"{where} holds the size {n!r}")


def _stored(engine: EnginePlan, b: Buffer, refuse: Refusal, where: str) -> None:
    if b.kind == "zeros":
        limit, room = MAX_ZEROS, "zeros"
        if engine.target.get("arch") not in WITH_ZEROS:
            refuse(f"{where} is of zeros, which exist on GPUs only")
    else:
        limit, room = (engine.arena, "the arena") if b.kind == "arena" else (length(engine.constants), "the constants")
    if b.offset + b.size > limit:
        refuse(f"{where} ends at byte {b.offset + b.size}, {room} at byte {limit}")
    if b.offset % ALIGN:
        refuse(f"{where} starts at byte {b.offset} of {room}, not a multiple of {ALIGN}")


def _strings(engine: EnginePlan, b: Buffer, refuse: Refusal, where: str) -> int:
    try:
        return strings_in(bytes_of(engine.constants)[b.offset : b.offset + b.size]).size
    except (ValueError, RecursionError) as e:
        refuse(f"{where} must be a list of strings ({e})")


def _slices(slices: Iterable[Slice], buffers: tuple[Buffer, ...], refuse: Refusal, where: str) -> None:
    for s in slices:
        if type(s.buffer) is not int or not 0 <= s.buffer < len(buffers):
            refuse(f"{where} uses buffer {s.buffer!r}, there are {len(buffers)}")
        if type(s.offset) is not int or not 0 <= s.offset <= buffers[s.buffer].size:
            refuse(f"{where} uses byte {s.offset!r} of buffer {s.buffer}, but that has {buffers[s.buffer].size}")


def _step(step: Step, buffers: tuple[Buffer, ...], objects: Mapping[int, int], refuse: Refusal, where: str) -> None:
    if (
        not isinstance(step.name, str)
        or not isinstance(step.symbol, str)
        or not isinstance(step.host, str)
        or bool(step.symbol) == bool(step.host)
    ):
        refuse(f"{where} is neither one kernel nor one host step")
    for t in step.inputs + step.outputs:
        _operand(t, buffers, objects, refuse, where)
    if any(buffers[t.slice.buffer].kind not in ("arena", "zeros", "output", "strings") for t in step.outputs):
        refuse(f"{where} writes to a constant or an input")
    if step.host:
        return
    _slices(step.args, buffers, refuse, where)
    if any(s.buffer in objects for s in (*step.args, *(t.slice for t in step.outputs))):
        refuse(f"{where} is a kernel and would touch strings")
    if step.inputs:
        refuse(f"{where} is a kernel with inputs of a host step")
    for d in step.dims:
        if type(d) is not int or not -LONG_LIMIT <= d < LONG_LIMIT:
            refuse(f"{where} has dimension {d!r}")
    _number(step.tiles, MAX_TILES + 1, refuse, f"the number of tiles of {where}")
    _number(step.scratch, MAX_BYTES, refuse, f"the scratch memory of {where}")
    _number(step.phases, MAX_TILES + 1, refuse, f"the number of phases of {where}")
    if step.phases < 1 or step.tiles * step.phases > MAX_TILES:
        refuse(f"{where} has {step.phases} phases of {step.tiles} tiles")
    if type(step.grain) is not int or not 1 <= step.grain <= MAX_TILES:
        refuse(f"{where} has grain {step.grain!r}")
    if step.symbol in LIBRARIES:
        _by_library(step, buffers, refuse, where)


def _by_library(step: Step, buffers: tuple[Buffer, ...], refuse: Refusal, where: str) -> None:
    """Checks that the operands of a library call are within their buffers."""
    try:
        wanted = work(step.symbol, step.dims).operands()
    except EngineError as e:
        refuse(f"{where}: {e}")
    tactic = step.info.get("tactic")
    if len(step.args) != len(wanted) or step.tiles != 1 or not isinstance(tactic, str):
        refuse(
            f"{where} has {len(step.args)} operands, {step.tiles} tiles and the tactic {tactic!r:.80}, expected"
            f" {len(wanted)}, 1 and a name"
        )
    for a, (kind, elements) in zip(step.args, wanted):
        if a.offset % SIZES[kind] or a.offset + elements * SIZES[kind] > buffers[a.buffer].size:
            refuse(
                f"{where} uses {elements} elements of {kind} from byte {a.offset} of buffer {a.buffer} on, but"
                f" that has {buffers[a.buffer].size} bytes"
            )
    if buffers[step.args[-1].buffer].kind not in ("arena", "output"):
        refuse(f"{where} writes to a constant or an input")


def _operand(t: Tensor, buffers: tuple[Buffer, ...], objects: Mapping[int, int], refuse: Refusal, where: str) -> None:
    _slices((t.slice,), buffers, refuse, where)
    room = buffers[t.slice.buffer].size
    if (t.slice.buffer in objects) != (t.dtype == "string"):
        refuse(
            f"{where} has an operand of {t.dtype} in buffer {t.slice.buffer}, but that is"
            f" {'' if t.slice.buffer in objects else 'not '}one of strings"
        )
    if t.dtype == "string":
        room = objects[t.slice.buffer] * SIZES["string"]
        if t.slice.offset % SIZES["string"]:
            refuse(f"{where} uses byte {t.slice.offset} of buffer {t.slice.buffer}, where no string starts")
    size = _tensor_size(t.dtype, t.shape, refuse, f"an operand of {where}")
    if not isinstance(t.strides, tuple) or len(t.strides) != len(t.shape):
        refuse(f"{where} has an operand of {len(t.shape)} sizes and strides {t.strides!r}")
    for s in t.strides:
        if type(s) is not int or abs(s) >= MAX_BYTES:
            refuse(
                f"a stride of {where} is {s!r}, expected an integer of less than {MAX_BYTES} elements, forwards or"
                " backwards"
            )
    if size:
        spans = [(d - 1) * s for d, s in zip(t.shape, t.strides)]
        begin = t.slice.offset + sum(s for s in spans if s < 0) * SIZES[t.dtype]
        end = t.slice.offset + (1 + sum(s for s in spans if s > 0)) * SIZES[t.dtype]
        if begin < 0 or end > room:
            refuse(
                f"{where} reaches byte {begin if begin < 0 else end} of buffer {t.slice.buffer}, but that has {room}"
            )
