"""Other weights for an engine that is there: records what they need while it is built, and computes its constants anew.

    model → its program, weights apart ─┬→ stages, blind to the numbers of weights → engine, with the record
                                        │                                               │ decisions, target
                          other weights ┴→ the same stages, nothing timed or compiled ←─┘
                                           the same plan, or they are refused → constants of the weights given

What becomes of the constants is thereby what a build makes of them. That a build with other numbers comes to the same
plan is tried once, at the end of each build: weights with which it does not are refused from the start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pelton import importers
from pelton.backends.cpu.machine import target as runs_on
from pelton.codegen.template import Target
from pelton.engine import refit_record
from pelton.engine.constants import DeferredConstants, bytes_of, length
from pelton.engine.file import STORED
from pelton.engine.model import Buffer, EnginePlan, Port
from pelton.engine.refit_record import RefitRecord
from pelton.errors import EngineError, Error, InputError, ModelError, near
from pelton.ir import lineage
from pelton.ir.dims import Undecided
from pelton.ir.imported import Imported, Info
from pelton.ir.lineage import Lineage
from pelton.ir.types import DType
from pelton.options import Options
from pelton.plan.placed import Placed
from pelton.runtime import Engine
from pelton.system.memory import allocate
from pelton.tune import replay
from pelton.version import VERSION

from .compile import BuildResult, compile_graph
from .plugin_kernels import declare_kernels
from .refit_program import Program, program_of
from .stages import run_stages, start
from .targets import describe_target
from .targets.backend import Choices
from .targets.cpu import CpuBackEnd

SPREAD = 0.05  # by which the trial moves weights, of their standard deviation
DECIDES = "by other numbers the build would decide otherwise"


# ---- building ----


def compile_refittable(imported: Imported, options: Options, recorded: replay.Decisions | None) -> BuildResult:
    """As `compile_graph`, for an engine that can be refitted: it has a record, and with `strip_weights` no weights."""
    known = lineage.current()
    assert known is not None, "the model has to be imported while its lineage is followed"
    program, blind = program_of(imported, known), Lineage()
    graph = program.graph({}, blind)
    with lineage.following(blind):
        result = compile_graph(replace(imported, graph=graph), options, recorded)
    assert result.decisions is not None
    build = {
        "pelton": VERSION,
        "options": {"level": options.level, "precision": options.precision, "strict": options.strict},
        "target": _target_to_json(describe_target(options)[0]),
        "decisions": json.loads(json.dumps(replay.to_json(result.decisions))),  # as it will be read back
    }
    plain = result.engine.plain
    weights, refused = _tried(plain, program, build)
    meta = {name: value for name, value in plain.meta.items() if name != "weights_of"}
    pieces = [sorted(weights.intersection(names)) for names in plain.meta["weights_of"]]
    found = RefitRecord(
        program.text,
        program.folds,
        {name: _port(name, program.constants[name]) for name in weights},
        {**program.refused, **refused},
        {name: array for name, array in program.constants.items() if name not in weights},
        pieces,
        build,
    )
    base = len(plain.buffers) - len(pieces)
    absent = tuple(base + i for i, names in enumerate(pieces) if names) if options.strip_weights else ()
    plain = replace(plain, meta=meta, refit=refit_record.to_bytes(found), absent=absent)
    return replace(result, engine=Engine(plain))


def _tried(plain: EnginePlan, program: Program, build: Mapping[str, Any]) -> tuple[set[str], dict[str, str]]:
    """The weights with whose like the build comes to the same plan, and why others may not change.

    All are tried at once; if that fails, halves of them, so that a few that matter are soon found."""
    addresses = {
        name for b, names in zip(_pieces(plain), plain.meta["weights_of"]) for name in names if b.kind != "constant"
    }
    accepted = set[str]()

    def same(names: Sequence[str]) -> bool:
        changed = {name: _moved(name, program.constants[name]) for name in (*accepted, *names)}
        try:
            again = _plan(program, build, changed)
        except (Error, Undecided):
            return False
        return not _differ(plain, again) and all(
            bytes(_piece(plain, i)) == bytes(_piece(again, i))
            for i, depends in enumerate(plain.meta["weights_of"])
            if changed.keys().isdisjoint(depends)
        )

    def accept(names: Sequence[str]) -> None:
        if not names or same(names):
            accepted.update(names)
        elif len(names) > 1:
            accept(names[: len(names) // 2])
            accept(names[len(names) // 2 :])

    accept(sorted(program.weights - addresses))
    return accepted, dict.fromkeys(sorted(program.weights - accepted), DECIDES)


def _moved(name: str, array: np.ndarray) -> np.ndarray:
    """Numbers like these, the same in every build: each a little off, so that none is 0, or equal to another."""
    rng = np.random.default_rng(list(hashlib.sha256(name.encode()).digest()))
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    spread = SPREAD * (float(np.std(finite)) if finite.size else 0.0) or SPREAD
    with np.errstate(all="ignore"):
        return (wide + spread * rng.uniform(0.1, 1, wide.shape)).astype(array.dtype)


# ---- other weights ----


def refitted(plain: EnginePlan, weights: Mapping[str, Any]) -> EnginePlan:
    """The engine with these weights in place of its own, by their names in the model; it keeps the others.

    InputError for names, types and shapes that it does not have, and for weights that need others beside them;
    EngineError where it was built without a record, or a build with these would have come to another plan."""
    known = refit_record.of_plan(plain)
    if known.build.get("pelton") != VERSION:
        raise EngineError(
            f"engine {plain.label!r} was built by Pelton {known.build.get('pelton')}, and this is {VERSION}, whose"
            " kernels may read other constants: refit it with that version, or build it again"
        )
    given = _checked(known, weights)
    if len(known.pieces) != len(_pieces(plain)):
        raise EngineError(f"engine {plain.label!r} and its record for refitting do not fit together; build it again")
    _refuse_missing(plain, known, given)
    others = {name: _stand_in(p) for name, p in known.weights.items() if name not in given}
    program = Program(known.program, known.folds, known.kept, frozenset(known.weights), known.refused)
    try:
        again = _plan(program, known.build, {**others, **given})
        same = not _differ(plain, again)
    except (Error, Undecided):
        same = False
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        ArithmeticError,
        MemoryError,
        RecursionError,
    ) as e:
        raise EngineError(
            f"engine {plain.label!r} is damaged in its record for refitting ({type(e).__name__}: {e}); build it again"
        ) from None
    if not same:
        raise EngineError(
            f"with these weights, a build of {plain.label!r} would decide otherwise than it did; build an engine of"
            " the model that has them"
        )
    meta = {**plain.meta, "provenance": _provenance(plain, given)}
    return replace(plain, constants=_constants(plain, again, known, given.keys()), meta=meta, absent=())


def _checked(known: RefitRecord, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weights as arrays. InputError where they are not such as the engine has. Constants that cannot change may be
    among them, as they are."""
    if not isinstance(weights, Mapping):
        raise InputError(f"weights are arrays by name, got {type(weights).__name__}")
    given = {}
    for name, value in weights.items():
        array = np.asarray(value)
        if name in known.weights:
            port = known.weights[name]
            if array.dtype != port.numpy_dtype or array.shape != port.shape:
                raise InputError(f"weight {name!r} is {port}, got {array.dtype}{list(array.shape)}")
            given[name] = np.ascontiguousarray(array).reshape(array.shape)
        elif name not in known.refused:
            raise InputError(
                f"the engine has no weight {name!r}{near(str(name), (*known.weights, *known.refused))}; `refittable`"
                " has the names"
            )
        elif name in known.kept and not _equal(array, known.kept[name]):
            raise InputError(f"weight {name!r} cannot be refitted: {known.refused[name]}; build an engine with it")
    return given


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype.kind == "O" else one.tobytes() == other.tobytes()


def _refuse_missing(plain: EnginePlan, known: RefitRecord, given: Mapping[str, Any]) -> None:
    """InputError where constants that change depend on weights that are not given."""
    base = len(plain.buffers) - len(known.pieces)
    needed = {
        name
        for i, names in enumerate(known.pieces)
        if base + i in plain.absent or not given.keys().isdisjoint(names)
        for name in names
    }
    if missing := sorted(needed - given.keys()):
        listed = ", ".join(map(repr, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        why = (
            "it was built without weights" if plain.absent else "the build made one constant of them and of those given"
        )
        raise InputError(f"engine {plain.label!r} also needs the weights {listed}: {why}; give them, too")


def _stand_in(port: Port) -> np.ndarray:
    """Numbers in place of weights that no constant to be computed depends on."""
    return np.linspace(0.5, 1.5, int(np.prod(port.shape))).reshape(port.shape).astype(port.numpy_dtype)


def _constants(plain: EnginePlan, again: EnginePlan, known: RefitRecord, given: Iterable[str]) -> np.ndarray:
    """The constants of the engine, with those that depend on the given weights from the other plan. EngineError where
    another one differs, too."""
    whole, changed = allocate(length(plain.constants)), set(given)
    whole[:] = np.frombuffer(bytes_of(plain.constants), np.uint8)
    for i, (b, names) in enumerate(zip(_pieces(plain), known.pieces)):
        if not changed.isdisjoint(names):
            whole[b.offset : b.offset + b.size] = _piece(again, i)
        elif not names and bytes(_piece(plain, i)) != bytes(_piece(again, i)):
            raise EngineError(
                f"a constant of {plain.label!r} that should not depend on weights does ({plain.meta['constants'][i]});"
                " build an engine of the model that has them (and please report this)"
            )
    return whole


def _provenance(plain: EnginePlan, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Where the engine comes from, with a hash of all weights that it was ever refitted with, in order."""
    before = plain.meta.get("provenance") or {}
    digest = hashlib.sha256(str((before.get("refitted") or {}).get("sha256", "")).encode())
    for name, array in sorted(given.items()):
        digest.update(f"{name}\0{array.dtype}{list(array.shape)}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {**before, "refitted": {"weights": len(given), "sha256": digest.hexdigest()}}


def weights_in(model: Any) -> dict[str, np.ndarray]:
    """The weights of a model by name; ModelError for one that has none by names."""
    known = Lineage()
    with lineage.following(known):
        try:
            importers.read_weights(model)
        except ModelError:
            if not known.names:  # else it is what surrounds the weights that cannot be read without more options
                raise
    if not known.names:
        raise ModelError("this model has no weights with names, as ONNX models have; give a .npz file of them")
    return {name: array for array, name in known.names.values()}


# ---- plans ----


class _Replay(CpuBackEnd):
    """Takes recorded decisions; nothing is timed or compiled."""

    def __init__(self, options: Options, target: Target):
        self.target, self.timing = target, None
        self.runs_on, self.meta = runs_on(target.isa), {"threads": target.threads}

    def generate_code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        return choices, b""


def _plan(program: Program, build: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> EnginePlan:
    """The plan of a build with these weights and the recorded decisions, without code. Raises what builds do."""
    declare_kernels()
    options, target, known = Options(**build["options"]), _target_from_json(build["target"]), Lineage()
    graph = program.graph(weights, known)
    with lineage.following(known):
        c = start(Imported(graph, Info()), options, target)
        c = replace(c, recorded=replay.from_json(build["decisions"]), back_end=_Replay(options, target))
        return run_stages(c, "link").plain


def _differ(one: EnginePlan, other: EnginePlan) -> bool:
    """Whether two plans are not the same but for code, constants and metadata."""

    def bare(plain: EnginePlan) -> EnginePlan:
        steps = tuple(replace(s, name="", info={}) for s in plain.steps)
        return replace(
            plain, steps=steps, constants=b"", code=b"", target={}, meta={}, file="", name="", refit=b"", absent=()
        )

    return bare(one) != bare(other)


def _pieces(plain: EnginePlan) -> list[Buffer]:
    """The buffers of constants, in order."""
    return [b for b in plain.buffers if b.kind in STORED]


def _piece(plain: EnginePlan, i: int) -> np.ndarray:
    """The bytes of a piece of the constants, u8[n], computed alone where the others are not there yet."""
    b = _pieces(plain)[i]
    if isinstance(plain.constants, DeferredConstants) and not plain.constants.is_filled:
        return plain.constants.part(i, b.size)
    return np.frombuffer(bytes_of(plain.constants)[b.offset : b.offset + b.size], np.uint8)


def _port(name: str, array: np.ndarray) -> Port:
    return Port(name, DType.of(array).value, tuple(map(int, array.shape)))


def _target_to_json(target: Target) -> dict[str, Any]:
    return {**asdict(target), "half": target.half.value, "libraries": []}


def _target_from_json(found: Mapping[str, Any]) -> Target:
    return Target(**{**found, "half": DType(found["half"]), "libraries": ()})
