"""Refits an engine with other weights: recomputes its constants by the stages of the build.

    record ─→ program ─┐
    other weights ─────┴→ the stages of the build, nothing timed or compiled → the same plan, or they are refused
                                                                               → constants of the weights given

The constants thereby equal those of a build.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pelton import importers
from pelton.backends.cpu.machine import target as runs_on
from pelton.codegen.template import Target
from pelton.engine import refit_record
from pelton.engine.constants import DeferredConstants, bytes_of, length
from pelton.engine.file import STORED
from pelton.engine.plan import Buffer, EnginePlan, Port
from pelton.engine.refit_record import RefitRecord
from pelton.errors import EngineError, Error, InputError, ModelError, near
from pelton.ir import lineage
from pelton.ir.dims import Undecided
from pelton.ir.imported import Imported, Info
from pelton.ir.lineage import Lineage
from pelton.ir.types import DType
from pelton.options import Options
from pelton.plan.placed import Placed
from pelton.system.memory import allocate
from pelton.tuning import replay
from pelton.version import VERSION

from .refit_program import RefitProgram
from .stages import run_stages, start
from .targets.interface import Choices
from .targets.cpu import CpuBackEnd


# ---- other weights ----


def refitted(plain: EnginePlan, weights: Mapping[str, Any]) -> EnginePlan:
    """Returns the engine with these weights in place of its own, by their names in the model; it keeps the others.

    InputError for unknown names, wrong types and shapes, and weights that require others as well. EngineError if the
    engine was built without a record, or a build with these weights would reach another plan."""
    known = refit_record.of_plan(plain)
    if known.build.get("pelton") != VERSION:
        raise EngineError(
            f"engine {plain.label!r} was built by Pelton {known.build.get('pelton')}, and this is {VERSION}, whose"
            " kernels may read other constants: refit it with that version, or build it again"
        )
    arrays = _checked(known, weights)
    if len(known.pieces) != len(pieces_of(plain)):
        raise EngineError(f"engine {plain.label!r} and its record for refitting do not fit together; build it again")
    _refuse_missing(plain, known, arrays)
    others = {name: _stand_in(p) for name, p in known.weights.items() if name not in arrays}
    program = RefitProgram(known.program, known.folds, known.kept, frozenset(known.weights), known.refused)
    try:
        again = plan_of(program, known.build, {**others, **arrays})
        same = not differ(plain, again)
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
    meta = {**plain.meta, "provenance": _provenance(plain, arrays)}
    return replace(plain, constants=_constants(plain, again, known, arrays.keys()), meta=meta, absent=())


def _checked(known: RefitRecord, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the weights as arrays; InputError if they do not match the engine's. Fixed constants are allowed if
    equal."""
    if not isinstance(weights, Mapping):
        raise InputError(f"weights are arrays by name, got {type(weights).__name__}")
    arrays = {}
    for name, value in weights.items():
        array = np.asarray(value)
        if name in known.weights:
            port = known.weights[name]
            if array.dtype != port.numpy_dtype or array.shape != port.shape:
                raise InputError(f"weight {name!r} is {port}, got {array.dtype}{list(array.shape)}")
            arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        elif name not in known.refused:
            raise InputError(
                f"the engine has no weight {name!r}{near(str(name), (*known.weights, *known.refused))}; `refittable`"
                " has the names"
            )
        elif name in known.kept and not _equal(array, known.kept[name]):
            raise InputError(f"weight {name!r} cannot be refitted: {known.refused[name]}; build an engine with it")
    return arrays


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype.kind == "O" else one.tobytes() == other.tobytes()


def _refuse_missing(plain: EnginePlan, known: RefitRecord, given: Mapping[str, Any]) -> None:
    """Raises InputError if constants that change depend on missing weights."""
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
            "it was built without weights"
            if plain.absent
            else "the build merged them with the replaced weights into one constant"
        )
        raise InputError(f"engine {plain.label!r} also needs the weights {listed}: {why}; add them")


def _stand_in(port: Port) -> np.ndarray:
    """Returns placeholder numbers for weights that affect no recomputed constant."""
    return np.linspace(0.5, 1.5, int(np.prod(port.numbers))).reshape(port.numbers).astype(port.numpy_dtype)


def _constants(plain: EnginePlan, again: EnginePlan, known: RefitRecord, given: Iterable[str]) -> np.ndarray:
    """Returns the constants of the engine, replacing those that depend on the given weights by the other plan's.
    EngineError if any other constant differs."""
    whole, changed = allocate(length(plain.constants)), set(given)
    whole[:] = np.frombuffer(bytes_of(plain.constants), np.uint8)
    for i, (b, names) in enumerate(zip(pieces_of(plain), known.pieces)):
        if not changed.isdisjoint(names):
            whole[b.offset : b.offset + b.size] = piece(again, i)
        elif not names and bytes(piece(plain, i)) != bytes(piece(again, i)):
            raise EngineError(
                f"a constant of {plain.label!r} depends on weights unexpectedly ({plain.meta['constants'][i]});"
                " build an engine from the model with these weights, and please report this"
            )
    return whole


def _provenance(plain: EnginePlan, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the engine's provenance with a hash of all weights of all its refits, in order."""
    before = plain.meta.get("provenance") or {}
    digest = hashlib.sha256(str((before.get("refitted") or {}).get("sha256", "")).encode())
    for name, array in sorted(given.items()):
        digest.update(f"{name}\0{array.dtype}{list(array.shape)}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {**before, "refitted": {"weights": len(given), "sha256": digest.hexdigest()}}


def weights_in(model: Any) -> dict[str, np.ndarray]:
    """Reads the weights of a model by name; ModelError for a model without named weights."""
    known = Lineage()
    with lineage.following(known):
        try:
            importers.read_weights(model)
        except ModelError:
            if not known.names:  # else the failure concerns the rest of the model, which needs more options
                raise
    if not known.names:
        raise ModelError("this model has no named weights, unlike ONNX models; use a .npz file")
    return {name: array for array, name in known.names.values()}


# ---- plans ----


class _Replay(CpuBackEnd):
    """A back end that repeats recorded decisions; nothing is timed or compiled."""

    alternatives = 0

    def __init__(self, options: Options, target: Target):
        self.target, self.timing = target, None
        self.runs_on, self.meta = runs_on(target.isa), {"threads": target.threads}

    def generate_code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        return choices, b""

    def check_kernels(self, plain: EnginePlan, placed: Placed, choices: Choices) -> EnginePlan:
        return plain


def plan_of(program: RefitProgram, build: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> EnginePlan:
    """Plans a build with these weights and the recorded decisions, without code. Raises errors of builds."""
    options, target, known = Options(**build["options"]), _target_from_json(build["target"]), Lineage()
    graph = program.graph(weights, known)
    with lineage.following(known):
        c = start(Imported(graph, Info()), options, target)
        c = replace(c, recorded=replay.from_json(build["decisions"]), back_end=_Replay(options, target))
        return run_stages(c, "link").plain


def differ(one: EnginePlan, other: EnginePlan) -> bool:
    """True if two plans differ in more than code, constants and metadata."""

    def bare(plain: EnginePlan) -> EnginePlan:
        steps = tuple(replace(s, name="", info={}) for s in plain.steps)
        return replace(
            plain, steps=steps, constants=b"", code=b"", target={}, meta={}, file="", name="", refit=b"", absent=()
        )

    return bare(one) != bare(other)


def pieces_of(plain: EnginePlan) -> list[Buffer]:
    """Returns the buffers of constants, in order."""
    return [b for b in plain.buffers if b.kind in STORED]


def piece(plain: EnginePlan, i: int) -> np.ndarray:
    """Returns the bytes of a piece of the constants, u8[n]; computes it alone if the others are still deferred."""
    b = pieces_of(plain)[i]
    if isinstance(plain.constants, DeferredConstants) and not plain.constants.is_filled:
        return plain.constants.part(i, b.size)
    return np.frombuffer(bytes_of(plain.constants)[b.offset : b.offset + b.size], np.uint8)


def _target_from_json(found: Mapping[str, Any]) -> Target:
    return Target(**{**found, "half": DType(found["half"]), "libraries": ()})
