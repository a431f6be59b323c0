"""Builds refittable engines: independent of the weights' values, with a record for other weights.

model → its program, weights apart → stages → engine ─┬─ the same stages with other numbers: the same plan?
                                                      └─ record: program, decisions, weights for which it was
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pelton.codegen.template import Target
from pelton.engine import refit_record
from pelton.engine.plan import EnginePlan, Port
from pelton.engine.refit_record import RefitRecord
from pelton.errors import Error
from pelton.ir import lineage
from pelton.ir.dims import Undecided
from pelton.ir.imported import Imported
from pelton.ir.lineage import Lineage
from pelton.ir.types import DType
from pelton.options import Options
from pelton.runtime import Engine
from pelton.tuning import replay
from pelton.version import VERSION

from .compile import BuildResult, compile_graph
from .refit import differ, piece, pieces_of, plan_of
from .refit_program import RefitProgram, program_of
from .targets import describe_target

SPREAD = 0.05  # change of weights in the trial, in standard deviations
DECIDES = "by other numbers the build would decide otherwise"


def compile_refittable(imported: Imported, options: Options, recorded: replay.Decisions | None) -> BuildResult:
    """Compiles like `compile_graph`, with a record for refitting, and with `strip_weights` without weights."""
    known = lineage.current()
    assert known is not None, "the model must be imported while its lineage is followed"
    program, blind = program_of(imported, known), Lineage()
    graph = program.graph({}, blind)
    with lineage.following(blind):
        result = compile_graph(replace(imported, graph=graph), options, recorded)
    assert result.decisions is not None
    build = {
        "pelton": VERSION,
        "options": {"level": options.level, "precision": options.precision, "strict": options.strict},
        "target": _target_to_json(describe_target(options)[0]),
        "decisions": json.loads(json.dumps(replay.to_json(result.decisions))),  # as read back later
    }
    plain = result.engine.plain
    weights, refused = _tried(plain, program, build)
    meta = {name: value for name, value in plain.meta.items() if name != "weights_of"}
    pieces = [sorted(weights.intersection(names)) for names in plain.meta["weights_of"]]
    record = RefitRecord(
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
    plain = replace(plain, meta=meta, refit=refit_record.to_bytes(record), absent=absent)
    return replace(result, engine=Engine(plain))


def _tried(plain: EnginePlan, program: RefitProgram, build: Mapping[str, Any]) -> tuple[set[str], dict[str, str]]:
    """Returns the weights that may change without a change of the plan, and the reasons against the others.

    Tries all at once; on failure, halves of them, which soon isolates the few that matter."""
    addresses = {
        name for b, names in zip(pieces_of(plain), plain.meta["weights_of"]) for name in names if b.kind != "constant"
    }
    accepted = set[str]()

    def same(names: Sequence[str]) -> bool:
        changed = {name: _moved(name, program.constants[name]) for name in (*accepted, *names)}
        try:
            again = plan_of(program, build, changed)
        except (Error, Undecided):
            return False
        return not differ(plain, again) and all(
            bytes(piece(plain, i)) == bytes(piece(again, i))
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
    """Perturbs each number slightly, the same in every build: none is 0, and no two are equal."""
    rng = np.random.default_rng(list(hashlib.sha256(name.encode()).digest()))
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    spread = SPREAD * (float(np.std(finite)) if finite.size else 0.0) or SPREAD
    with np.errstate(all="ignore"):
        return (wide + spread * rng.uniform(0.1, 1, wide.shape)).astype(array.dtype)


def _port(name: str, array: np.ndarray) -> Port:
    return Port(name, DType.of(array).value, tuple(map(int, array.shape)))


def _target_to_json(target: Target) -> dict[str, Any]:
    return {**asdict(target), "half": target.half.value, "libraries": []}
