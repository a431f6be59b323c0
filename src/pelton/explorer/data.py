"""The content of the page for an engine, as plain data for JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pelton.engine.constants import length
from pelton.engine.library import LIBRARIES
from pelton.engine.plan import SIZES, EnginePlan, Port, Step, Tensor
from pelton.engine.script import Script
from pelton.engine.sizes import at, lives, optimum_sizes, ports
from pelton.engine.times import StepTime, is_number, recorded_time, times_of

from .flow import Edge, edges, nbytes, reads, script_edges

NO_KERNEL = "no kernel supports it: runs in numpy"
MOVES_DATA = "the model moves data here"
ALIKE = 0.95  # minimum share of an engine's time from one source, to attribute the total to it
CONTROL = ("if", "loop", "scan")  # steps of scripts that run others


class Described:
    """An engine with its steps. sizes: of dynamic dimensions (default: the optimum); times: measured nanoseconds of
    each step, in the order of `steps`, if any; work: operations and bytes of the measured runs, in which steps of a
    script may have run several times, or not at all."""

    def __init__(
        self,
        plan: EnginePlan | Script,
        between: Sequence[tuple[Any, Step]] = (),
        sizes: Mapping[str, int] | None = None,
        times: Sequence[float] | None = None,
        work: Sequence[tuple[float, float]] | None = None,
    ):
        """between: the actions of a script that run no engine, each with its step."""
        self.plan, self.between, self.sizes, self.work = plan, between, dict(sizes or {}), work
        whole = [plan] if isinstance(plan, EnginePlan) else list(plan.engines)
        own = self.sizes if isinstance(plan, EnginePlan) else {}
        self.parts = [at(p, {**optimum_sizes(p), **own}) for p in whole]
        self.steps = [s for p in self.parts for s in p.steps] + [s for _, s in between]
        self.inside = len(self.steps) - len(between)  # steps of engines
        if times is not None and len(times) != len(self.steps):
            raise ValueError(f"{len(times)} times for {len(self.steps)} steps")
        self.times = (
            [recorded_time(s) for s in self.steps]
            if times is None
            else [StepTime(float(ns), "measured") for ns in times]
        )

    @property
    def source(self) -> str | None:
        """The source of nearly all of the total time; None if there is none, and the total cannot be compared with
        another engine's."""
        total, by = sum(t.ns for t in self.times), dict[str, float]()
        for t in self.times:
            by[t.source] = by.get(t.source, 0.0) + t.ns
        most = max(by, key=by.__getitem__, default="unknown")
        return most if most != "unknown" and total and by[most] >= ALIKE * total else None

    def json(self) -> dict[str, Any]:
        """Returns all data. Times are in nanoseconds, sizes in bytes; explorer/web reads these field names."""
        plan, meta = self.plan, self.plan.meta
        values = {**{s.name: s.optimum for s in plan.symbols}, **self.sizes}
        total = sum(t.ns for t in self.times)
        return {
            "name": plan.name,
            "label": os.path.basename(plan.label),  # pages are shared, folders are not
            "target": {k: v for k, v in plan.target.items() if isinstance(v, (str, int))},
            "level": _text(meta.get("level")),
            "precision": _text(meta.get("precision", "fp32")),
            "strict": bool(meta.get("strict")),
            "threads": _text(meta.get("threads")),
            "gpu": _text(meta.get("gpu")),
            "model": _model(_mapping(meta.get("model"))),
            "inputs": [_port(p, q) for p, q in zip(plan.inputs, ports(plan, values))],
            "outputs": self._outputs(),
            "symbols": [[s.name, s.minimum, values.get(s.name), s.range()] for s in plan.symbols],
            "arena": sum(p.arena for p in self.parts),
            "constants": length(plan.constants),
            "code": sum(len(p.code) for p in self.parts),
            "weights": _numbers(meta.get("weights")),
            "total": total,
            "sources": _count([t.source for t in self.times]),
            "timed": self.source,
            "steps": [self._step(i, total) for i in range(len(self.steps))],
            "edges": [[e.start, e.end, e.output] for e in self._edges()],
            "memory": [_memory(p, first) for p, first in zip(self.parts, self._firsts())],
            "notes": _notes(meta),
            "int8": _int8(meta.get("int8")),
        }

    def _firsts(self) -> list[int]:
        """Returns the number of the first step of each part."""
        firsts = [0]
        for p in self.parts[:-1]:
            firsts.append(firsts[-1] + len(p.steps))
        return firsts if self.parts else []

    def _edges(self) -> list[Edge]:
        own = [edges(p, first) for p, first in zip(self.parts, self._firsts())]
        if isinstance(self.plan, EnginePlan):
            return own[0]
        nodes = {id(action): f"s{self.inside + k}" for k, (action, _) in enumerate(self.between)}
        return script_edges(self.plan, own, nodes)

    def _outputs(self) -> list[dict[str, Any]]:
        resolved = self.parts[0].outputs if isinstance(self.plan, EnginePlan) else self.plan.outputs
        return [_port(p, q) for p, q in zip(self.plan.outputs, resolved)]

    def _is_control(self, i: int) -> bool:
        return i >= self.inside and self.steps[i].info.get("op") in CONTROL

    def _part_of(self, i: int) -> int | None:
        """Returns the part of step i; None between parts."""
        if i >= self.inside:
            return None
        return sum(first <= i for first in self._firsts()) - 1

    def _step(self, i: int, total: float) -> dict[str, Any]:
        step, time, part = self.steps[i], self.times[i], self._part_of(i)
        info, kind = step.info, self._kind(i)
        flops, moved = self.work[i] if self.work and "flops" in info else (info.get("flops"), info.get("bytes"))
        entry: dict[str, Any] = {
            "name": step.name,
            "op": _text(info.get("op")),
            "tactic": "host" if step.host else _text(info.get("tactic")),
            "kind": kind,
            "layers": layers_of(step),
            "wave": step.wave,
            "ns": time.ns,
            "source": time.source,
            "share": time.ns / (total or 1),
            "flops": flops if is_number(flops) else None,
            "bytes": moved if is_number(moved) else None,
            "part": part,
            "times": list(times_of(info).items()),
            "alternatives": [_text(a.info.get("tactic")) for a in step.alternatives],
            "tiles": [step.tiles, step.grain, step.phases, step.scratch] if not step.host else None,
        }
        reason = _text(info.get("reason"))
        if kind == "host":
            reason = "; ".join(filter(None, (NO_KERNEL if part is not None else "a step between engines", reason)))
        elif kind == "copy":
            reason = reason or MOVES_DATA
        entry["reason"] = reason
        if part is not None:
            plan = self.parts[part]
            entry["outputs"] = [_tensor(t, name) for t, name in zip(step.outputs, _names(info, len(step.outputs)))]
            entry["constants"] = _constants(step, plan)
            entry["weights"] = _weights_type(step, plan.meta)
            entry["error"] = _error(step, plan.meta)
        return entry

    def _kind(self, i: int) -> str:
        step = self.steps[i]
        if self._is_control(i):
            return "control"
        if step.host:
            return "host"
        if set(_text(step.info.get("op")).split("+")) == {"copy"}:
            return "copy"
        return "library" if step.symbol in LIBRARIES else "kernel"


def layers_of(step: Step) -> list[str]:
    """Returns the model's layers that a step computes; merged ones (joined by "+") are split."""
    names = [part for name in _list(step.info.get("layers")) for part in str(name).split("+")]
    return list(dict.fromkeys(filter(None, names)))


def layout(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Returns the order of axes in memory, such as "NHWC" for axes NCHW; for other ranks "row-major", or the axes'
    numbers from the outermost to the innermost; "…, in part" if there are gaps between elements."""
    axes = [i for i, n in enumerate(shape) if n > 1]
    order = sorted(axes, key=lambda i: -abs(strides[i]))
    dense = math.prod(shape) == 1 + sum((shape[i] - 1) * abs(strides[i]) for i in axes)
    whole = [*(i for i in range(len(shape)) if i not in axes), *order]
    if order == axes:
        name = "NCHW" if len(shape) == 4 else "row-major"
    elif len(shape) in (3, 4, 5):
        letters = {3: "NCW", 4: "NCHW", 5: "NCDHW"}[len(shape)]
        name = "".join(letters[i] for i in sorted(whole, key=lambda i: (0 if i == 0 else 1, whole.index(i))))
    else:
        name = "axes " + " ".join(map(str, order))
    return name if dense or 0 in shape else f"{name}, in part"


def _tensor(t: Tensor, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": t.dtype,
        "shape": list(t.shape),
        "layout": layout(t.shape, t.strides),
        "bytes": math.prod(t.shape) * SIZES[t.dtype],
        "buffer": t.slice.buffer,
        "offset": t.slice.offset,
    }


def _names(info: Mapping[str, Any], count: int) -> list[str]:
    """Returns the names of a step's outputs, where known."""
    names = [str(n) for n in _list(info.get("writes"))]
    return [*names[:count], *[""] * (count - len(names))]


def _port(port: Port, resolved: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "type": str(port),
        "dtype": port.dtype,
        "shape": list(resolved.shape),
        "bytes": nbytes(resolved.dtype, resolved.shape),
    }


def _constants(step: Step, plan: EnginePlan) -> list[dict[str, Any]]:
    """Returns the constants that a step reads: their origin, packing and size."""
    stored = [b for b, buffer in enumerate(plan.buffers) if buffer.kind in ("constant", "table", "text")]
    pieces = dict(zip(stored, _list(plan.meta.get("constants"))))
    rows = []
    for b in dict.fromkeys(s.buffer for s in reads(step)):
        if plan.buffers[b].kind in ("constant", "table", "text"):
            info = [str(x) for x in _list(pieces.get(b))]
            rows.append({"name": info[0] if info else "", "form": " ".join(info[1:]), "bytes": plan.buffers[b].size})
    return rows


def _memory(plan: EnginePlan, first: int) -> dict[str, Any]:
    """Describes the arena: the place of each buffer, the first and the last step that uses it, and its content."""
    waves: dict[int, list[int]] = {}
    for k, step in enumerate(plan.steps):
        waves.setdefault(step.wave, []).append(first + k)
    held: dict[int, list[str]] = {}
    by: dict[int, int] = {}
    for k, step in enumerate(plan.steps):
        for t, name in zip(step.outputs, _names(step.info, len(step.outputs))):
            held.setdefault(t.slice.buffer, []).append(name)
            by.setdefault(t.slice.buffer, first + k)
    rows = []
    for b, (begin, end) in lives(plan.steps, plan.buffers).items():
        buffer, users = plan.buffers[b], (waves[begin][0], waves[end][-1])
        named = ", ".join(filter(None, held.get(b, ()))) or "workspace of a kernel"
        rows.append([b, buffer.offset, buffer.size, *users, named, by.get(b, users[0])])
    return {"arena": plan.arena, "first": first, "steps": len(plan.steps), "buffers": rows}


def _error(step: Step, meta: Mapping[str, Any]) -> float | None:
    """Returns the error that `--check` measured for a step, relative to its largest value."""
    for pair in _list(meta.get("checked")):
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and pair[0] == step.name and is_number(pair[1]):
            return float(pair[1])
    return None


def _weights_type(step: Step, meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the entry of `meta["half"]` for the weights of a step, in half precision or not."""
    own = layers_of(step)
    for row in _list(meta.get("half")):
        if isinstance(row, Mapping) and own and str(row.get("layer", "")).split("+") == own:
            return {
                "type": _text(row.get("weights")),
                "reason": _text(row.get("reason")),
                "us": _numbers(row.get("us")),
            }
    return None


def _int8(of: Any) -> dict[str, Any] | None:
    """Returns the layers of an INT8 build: precision, reason, and microseconds in both precisions."""
    if not isinstance(of, Mapping):
        return None
    rows = [row for row in _list(of.get("layers")) if isinstance(row, Mapping)]
    return {
        "rest": _text(of.get("rest")) or "fp32",
        "accuracy": _numbers(of.get("accuracy")),
        "layers": [
            {
                "layer": _text(row.get("layer")),
                "precision": _text(row.get("precision")),
                "reason": _text(row.get("reason")),
                "macs": row.get("macs") if is_number(row.get("macs")) else None,
                "us": _numbers(row.get("us")),
            }
            for row in rows
        ],
    }


def _notes(meta: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the build's notes for people: title → lines."""
    notes = {
        "copies because of layouts": meta.get("copies"),
        "host steps": meta.get("host_steps"),
        "fusions rejected": meta.get("fusion_refusals"),
        "chains of layers that became one kernel": meta.get("chains"),
        "warnings of the import": _mapping(meta.get("model")).get("warnings"),
    }
    return {title: [str(line) for line in _list(lines)] for title, lines in notes.items() if _list(lines)}


def _model(of: Mapping[str, Any]) -> dict[str, Any]:
    named = _mapping(of.get("opsets")).items()
    return {
        "producer": _text(of.get("producer")),
        "opsets": ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in named),
    }


def _count(items: Sequence[str]) -> dict[str, int]:
    return {name: items.count(name) for name in dict.fromkeys(items)}


def _numbers(of: Any) -> dict[str, float]:
    return {str(k): v for k, v in _mapping(of).items() if is_number(v)}


def _mapping(x: Any) -> Mapping[str, Any]:
    return x if isinstance(x, Mapping) else {}


def _list(x: Any) -> Sequence[Any]:
    return x if isinstance(x, (list, tuple)) else ()


def _text(x: Any) -> str:
    return "" if x is None else str(x)
