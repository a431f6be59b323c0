"""Scripts that run in C: profiles; engines in sequence, and suppression of boxes between them (`native/chain.h`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.targets import is_gpu

from .plan import SIZES, UNBOUNDED, Buffer, DynamicDimension, EnginePlan, Port
from .plan_tables import DTYPES, Tables, with_hash
from .script import SOURCES, Action, Block, Feed, HostAction, RunAction, Script

MOST_AXES = 8
BOXES = 5  # boxes, scores, and three numbers
FROM_INPUT, FROM_CONSTANTS, FROM_ACTION = range(3)
RUN_ENGINE, SUPPRESS, RESULTS = range(3)
HEAD = np.dtype([(name, "<i4") for name in ("arrays", "actions", "items", "profiles")])
ARRAY = np.dtype(
    [
        *((name, "<i4") for name in ("source", "input", "dtype", "rank")),
        ("offset", "<i8"),
        ("shape", "<i8", (MOST_AXES,)),
    ]
)
ACTION = np.dtype([(name, "<i4") for name in ("kind", "engine", "first", "reads", "writes", "center")])
ITEM = np.dtype([("array", "<i4"), ("source", "<i4"), ("at", "<i8")])


def chain(script: Script) -> dict[str, bytes]:
    """Returns the sections of a script for C: "chain", and "plan" with its ports; none if it needs Python."""
    builder = _Chain(script)
    return builder.sections() if builder.is_native() else {}


def is_chain(main: Block) -> bool:
    """Returns True if a block consists of engines and suppressions of boxes, in sequence."""
    return all(isinstance(a, RunAction) or _is_suppression(a) for a in main.steps)


def _is_suppression(action: Action) -> bool:
    return isinstance(action, HostAction) and action.call == "non_max_suppression"


class _Chain:
    def __init__(self, script: Script):
        self.script = script
        self.arrays: dict[str, tuple[Any, ...]] = {}
        self.items: list[tuple[int, int, int]] = []
        self.actions: list[tuple[int, ...]] = []
        for i, (name, port) in enumerate(zip(script.main.inputs, script.inputs)):
            self.arrays[name] = (FROM_INPUT, i, port.dtype, len(port.shape), 0, ())
        for name, c in sorted(script.arrays.items()):  # in the order of the file
            self.arrays[name] = (FROM_CONSTANTS, 0, c.dtype, len(c.shape), c.offset, c.shape)

    def is_native(self) -> bool:
        """Returns True if C can run all of it; its rows then exist."""
        ports = (*self.script.inputs, *self.script.outputs)
        if is_gpu(self.script.target) or any(s.host for e in self.script.engines for s in e.steps):
            return False
        if any(len(p.shape) > MOST_AXES or p.dtype == "string" for p in ports):
            return False
        if any(p.indices is not None for p in ports) and not self.script.profiles:
            return False
        if any((self.script.meta.get("forms") or {}).values()):
            return False
        if self.script.profiles:  # C knows their arrays: the ports
            self.arrays.clear()
            known = {*self.script.sizes, *(s.name for s in self.script.symbols)}
            return all(d in known for p in ports for d in p.shape if isinstance(d, str))
        return all(map(self._act, self.script.main.steps)) and self._end()

    def _act(self, action: Action) -> bool:
        if isinstance(action, RunAction):
            engine = self.script.engines[action.engine]
            made = {
                n: (FROM_ACTION, 0, p.dtype, len(p.shape), 0, ()) for n, p in zip(action.outputs, engine.outputs) if n
            }
            return self._add(RUN_ENGINE, action.engine, action.feeds, action.outputs, made)
        if isinstance(action, HostAction) and _is_suppression(action):
            inputs = (*action.inputs, *[""] * (BOXES - len(action.inputs)))
            made = {action.outputs[0]: (FROM_ACTION, 0, "i64", 2, 0, ())}
            center = bool(json.loads(action.text or "{}").get("center", False))
            return self._add(SUPPRESS, 0, tuple(map(Feed, inputs)), action.outputs, made, center)
        return False

    def _end(self) -> bool:
        return self._add(RESULTS, 0, tuple(map(Feed, self.script.main.outputs)), (), {})

    def _add(
        self,
        kind: int,
        engine: int,
        feeds: tuple[Feed, ...],
        outputs: tuple[str, ...],
        made: Mapping[str, Any],
        center: bool = False,
    ) -> bool:
        if any(f.name and f.name not in self.arrays for f in feeds) or any(n in self.arrays for n in made):
            return False
        number = {name: i for i, name in enumerate(self.arrays)}
        first = len(self.items)
        self.items += [(number[f.name] if f.name else -1, SOURCES.index(f.source), f.at) for f in feeds]
        self.arrays.update(made)
        number = {name: i for i, name in enumerate(self.arrays)}
        self.items += [(number.get(n, -1) if n else -1, 0, 0) for n in outputs]
        self.actions.append((kind, engine, first, len(feeds), len(outputs), int(center)))
        return all(row[2] in DTYPES and row[2] in SIZES and row[3] <= MOST_AXES for row in self.arrays.values())

    def sections(self) -> dict[str, bytes]:
        rows = [
            (source, i, DTYPES.index(dtype), rank, offset, (*shape, *[0] * (MOST_AXES - len(shape))))
            for source, i, dtype, rank, offset, shape in self.arrays.values()
        ]
        head = np.array((len(rows), len(self.actions), len(self.items), len(self.script.profiles)), HEAD)
        parts = (head, np.array(rows, ARRAY), np.array(self.items, ITEM), np.array(self.actions, ACTION))
        return {
            "plan": with_hash(Tables(self._ports()).encode(), hashlib.sha256().digest()),
            "chain": b"".join(p.tobytes() for p in parts),
        }

    def _ports(self) -> EnginePlan:
        """Returns an engine without steps, with the script's inputs and outputs; data-dependent sizes become
        symbols."""
        script = self.script
        known = {*script.sizes, *(s.name for s in script.symbols)}
        decided = {d for p in script.outputs for d in p.shape if isinstance(d, str) and d not in known}
        more: dict[Any, Any] = {f"bytes of output {i}": _bytes(p, script.sizes) for i, p in enumerate(script.outputs)}
        return EnginePlan(
            name=script.name,
            inputs=script.inputs,
            outputs=script.outputs,
            buffers=tuple(Buffer("output", i, name) for i, name in enumerate(more)),
            steps=(),
            arena=0,
            constants=script.constants,
            code=b"",
            target=script.target,
            meta=script.meta,
            symbols=(*script.symbols, *(DynamicDimension(d, 0, 0, UNBOUNDED) for d in sorted(decided))),
            sizes={**script.sizes, **{d: d for d in decided}, **{s.name: s.name for s in script.symbols}, **more},
        )


def _bytes(p: Port, sizes: Mapping[str, Any]) -> list[Any]:
    return ["*", SIZES[p.dtype], *(sizes.get(d, d) if isinstance(d, str) else d for d in p.shape)]
