"""A script as plain data: engines and the steps between them, where the data decides the next step or its sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from .validate import Refusal, check_target
from .constants import length
from .metadata import check_metadata
from .plan import SIZES, EnginePlan, Port, DynamicDimension
from pelton.record import record
from .sizes import multiple_of, is_well_formed

DEEPEST = 32  # blocks within blocks
LARGEST = 1 << 46  # bytes of a constant
ITERATIONS = 1_000_000  # of all loops of a run, by default
SOURCES = ("array", "axis", "value")


@record(frozen=True)
class Feed:
    """The source of an engine's input: the array of a name; or a size, as the first axis of an array without elements:
    that of axis `at` of the named array, or its element `at`, counted in row-major order."""

    name: str
    source: str = "array"
    at: int = 0


@record(frozen=True)
class RunAction:
    """Runs an engine. `otherwise` does the same by reference for sizes that it rejects."""

    engine: int
    feeds: tuple[Feed, ...]  # one per input of the engine
    outputs: tuple[str, ...]  # one per output
    otherwise: Block | None = None


@record(frozen=True)
class HostAction:
    """Runs a function of Python on the values of the names; "" is a missing input, or an unused output. `call` is
    "list", "none", or a function known to the host by that name, prepared from `text`."""

    name: str
    call: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@record(frozen=True)
class IfAction:
    """Runs one of two blocks; the names of their outputs become `outputs`."""

    condition: str
    then: Block
    other: Block
    outputs: tuple[str, ...]


@record(frozen=True)
class LoopAction:
    """Repeats a block: its inputs are the iteration, the condition and the carried values; its outputs are the
    condition, the carried and the stacked values.

    `trips` and `condition` may be "", for no end and for true. `stacked`: element type and shape of the stacked values,
    for loops without an iteration."""

    trips: str
    condition: str
    carried: tuple[str, ...]
    body: Block
    outputs: tuple[str, ...]
    stacked: tuple[tuple[str, tuple[int, ...]], ...] = ()


@record(frozen=True)
class ScanAction:
    """Runs a block per slice of `scanned` along `axes`, backwards where `back`: its inputs are carried values and
    slices, its outputs likewise; output slices are joined."""

    carried: tuple[str, ...]
    scanned: tuple[str, ...]
    axes: tuple[int, ...]
    back: tuple[bool, ...]
    body: Block
    outputs: tuple[str, ...]
    into: tuple[int, ...] = ()
    reversed: tuple[bool, ...] = ()
    stacked: tuple[tuple[str, tuple[int, ...]], ...] = ()


Action = RunAction | HostAction | IfAction | LoopAction | ScanAction


@record(frozen=True)
class Block:
    """Steps in order. They see the names around the block, and define names of their own."""

    inputs: tuple[str, ...]
    steps: tuple[Action, ...]
    outputs: tuple[str, ...]


@record(frozen=True)
class Constant:
    """An array in the constants: `offset` in bytes. Strings are a JSON list of `size` bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@record(frozen=True)
class Script:
    """A program over engines. Sizes of ports that depend on the inputs are texts, as in engines; so are data-dependent
    sizes, which no symbol and no entry of `sizes` explains. The engines share the constants.

    profiles: names of the engines, if they are the same network tuned for different sizes; a run then uses the first
    one that accepts the shapes of its inputs.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    main: Block
    engines: tuple[EnginePlan, ...]
    arrays: Mapping[str, Constant]  # name → its constant in all blocks
    constants: Any
    target: Mapping[str, Any]
    meta: Mapping[str, Any]
    symbols: tuple[DynamicDimension, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    iterations: int = ITERATIONS
    profiles: tuple[str, ...] = ()
    # its source, for messages; not written
    file: str = ""

    @property
    def label(self) -> str:
        """Its name in messages: the file that it comes from, else its own name."""
        return self.file or self.name


def read_by(action: Action) -> tuple[str, ...]:
    """Returns the names that a step reads itself, inner blocks aside."""
    match action:
        case RunAction():
            return tuple(f.name for f in action.feeds)
        case HostAction():
            return tuple(filter(None, action.inputs))
        case IfAction():
            return (action.condition,)
        case LoopAction():
            return tuple(filter(None, (action.trips, action.condition, *action.carried)))
        case ScanAction():
            return (*action.carried, *action.scanned)


def blocks_in(action: Action) -> tuple[Block, ...]:
    match action:
        case RunAction():
            return () if action.otherwise is None else (action.otherwise,)
        case IfAction():
            return (action.then, action.other)
        case LoopAction() | ScanAction():
            return (action.body,)
    return ()


def free(block: Block) -> set[str]:
    """Returns the names that a block reads from its surroundings."""
    own, names = set(block.inputs), set[str]()
    for action in block.steps:
        names.update(set(read_by(action)).union(*map(free, blocks_in(action))) - own)
        own.update(action.outputs)
    return names.union(block.outputs) - own


def validate_script(script: Script) -> None:
    """Raises EngineError, with fault and place, unless every step has its operands. Engines are validated
    separately."""
    refuse = Refusal(script.label)
    check_target(script.target, refuse)
    check_metadata(script.meta, refuse)
    if any(e.constants is not script.constants for e in script.engines):
        refuse("its engines have constants of their own")
    for kind, ports in (("input", script.inputs), ("output", script.outputs)):
        names = [p.name for p in ports]
        if len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
            refuse(f"its {kind}s need a name of their own each, they have {names!r:.100}")
        for p in ports:
            _shape(p.shape, p.dtype, f"{kind} {p.name!r}", refuse, texts=True)
    symbols = {s.name for s in script.symbols}
    for s in script.symbols:
        if (
            not all(type(n) is int for n in (s.minimum, s.optimum, s.maximum))
            or not 0 <= s.minimum <= s.optimum <= s.maximum < LARGEST
        ):
            refuse(f"the size {s.name!r} has the bounds {s.minimum!r}, {s.optimum!r}, {s.maximum!r}")
        if not any(multiple_of(script, d)[0] == s.name for p in script.inputs for d in p.shape):
            refuse(f"no input has the size {s.name!r}")
    texts = {d for p in script.inputs for d in p.shape if isinstance(d, str)}
    if not texts <= script.sizes.keys() or not all(is_well_formed(tree, symbols) for tree in script.sizes.values()):
        refuse("it has no sizes of inputs")
    room = length(script.constants)
    for name, c in script.arrays.items():
        _shape(c.shape, c.dtype, f"constant {name!r}", refuse)
        if not all(type(n) is int and 0 <= n < LARGEST for n in (c.offset, c.size)) or c.offset + c.size > room:
            refuse(f"constant {name!r} ends at byte {c.offset!r} + {c.size!r} of {room}")
        if c.dtype != "string" and math.prod(c.shape) * SIZES[c.dtype] != c.size:
            refuse(f"constant {name!r} has {c.size} bytes for {c.dtype}{list(c.shape)}")
    _check_profiles(script, refuse)
    if type(script.iterations) is not int or script.iterations < 0:
        refuse(f"it allows {script.iterations!r} iterations of a loop")
    if script.main.inputs != tuple(p.name for p in script.inputs) or len(script.main.outputs) != len(script.outputs):
        refuse("its ports are not those of its steps")
    _block(script, script.main, set(script.arrays), refuse, 0)


def _check_profiles(script: Script, refuse: Refusal) -> None:
    """Checks that the engines of profiles have the inputs and outputs of the script."""
    if not script.profiles:
        return
    if len(script.profiles) != len(script.engines) or len(set(script.profiles)) < len(script.profiles):
        refuse(f"it has {len(script.engines)} engines, and the profiles {script.profiles!r:.100}")
    own = [[(p.name, p.dtype, len(p.shape)) for p in ports] for ports in (script.inputs, script.outputs)]
    for name, engine in zip(script.profiles, script.engines):
        if own != [[(p.name, p.dtype, len(p.shape)) for p in ports] for ports in (engine.inputs, engine.outputs)]:
            refuse(f"profile {name!r} has other inputs or outputs")


def _shape(shape: object, dtype: object, where: str, refuse: Refusal, texts: bool = False) -> None:
    if dtype not in SIZES or not isinstance(shape, tuple) or len(shape) > 32:
        refuse(f"{where} is of type {dtype!r} and shape {shape!r:.100}")
    for d in shape:
        if not (type(d) is int and 0 <= d < LARGEST or texts and isinstance(d, str)):
            refuse(f"{where} has the size {d!r}")


def _block(script: Script, block: Block, known: Iterable[str], refuse: Refusal, depth: int) -> None:
    if depth > DEEPEST:
        refuse(f"it has more than {DEEPEST} blocks within blocks")
    names = {*known, *block.inputs}
    for i, action in enumerate(block.steps):
        where = f"step {i} at depth {depth}"
        for name in read_by(action):
            if name not in names:
                refuse(f"{where} reads {name!r} before it is written")
        _action(script, action, where, refuse)
        for inner in blocks_in(action):
            _block(script, inner, names, refuse, depth + 1)
        names.update(filter(None, action.outputs))
    for name in block.outputs:
        if name not in names:
            refuse(f"a block at depth {depth} returns {name!r}, which it never writes")


def _action(script: Script, action: Action, where: str, refuse: Refusal) -> None:
    """Checks that a step has as many inputs and outputs as the engine or block that it runs."""
    match action:
        case RunAction():
            if type(action.engine) is not int or not 0 <= action.engine < len(script.engines):
                refuse(f"{where} runs engine {action.engine!r}, there are {len(script.engines)}")
            engine = script.engines[action.engine]
            fits = (len(action.feeds), len(action.outputs)) == (len(engine.inputs), len(engine.outputs))
            if action.otherwise is not None:
                fits = fits and not action.otherwise.inputs and len(action.otherwise.outputs) == len(action.outputs)
            if any(f.source not in SOURCES or type(f.at) is not int or f.at < 0 for f in action.feeds):
                refuse(f"{where} feeds its engine something that is no array and no size")
        case HostAction():
            fits = bool(action.call)
        case IfAction():
            fits = all(not b.inputs and len(b.outputs) == len(action.outputs) for b in (action.then, action.other))
        case LoopAction():
            carried = len(action.carried)
            fits = (len(action.body.inputs), len(action.body.outputs), len(action.outputs)) == (
                2 + carried,
                1 + carried + len(action.stacked),
                carried + len(action.stacked),
            )
        case ScanAction():
            carried, scanned, stacked = len(action.carried), len(action.scanned), len(action.stacked)
            fits = (len(action.body.inputs), len(action.body.outputs), len(action.outputs)) == (
                carried + scanned,
                carried + stacked,
                carried + stacked,
            )
            fits = (
                fits
                and scanned > 0
                and len(action.axes) == len(action.back) == scanned
                and len(action.into) == len(action.reversed) == stacked
            )
            fits = fits and all(type(a) is int and 0 <= a < 32 for a in (*action.axes, *action.into))
    if not fits:
        refuse(f"{where} does not fit its engine or block")
    if isinstance(action, (LoopAction, ScanAction)):
        for dtype, shape in action.stacked:
            _shape(shape, dtype, where, refuse)
