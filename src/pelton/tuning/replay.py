"""Tactic replay: records the decisions of a build in a readable file, and repeats them without a clock.

Timing caches are keyed by the sources of all kernels. A replay file outlasts their refactoring, so that engines before
and after it can be compared bit for bit: it contains only the texts of regions, layouts of operands, and names of
templates and tactics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pelton.system import files
from pelton.errors import BuildError
from pelton.ir.text import key
from pelton.codegen.template import Target, Template
from pelton.plan.fuse import Fused
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region

from .chains import rejoin
from .search import Choice, Found
from .tasks import layout_texts, optimum_texts

VERSION = 1
AGAIN = "build without load_tactics=, or record the tactics again with save_tactics="

Case = tuple[
    str, tuple[str, ...], tuple[str, ...]
]  # a region, layouts of its operands, optima of its dynamic dimensions
TemplatesOf = Callable[[Region], Sequence[Template]]


@dataclass(frozen=True)
class Decisions:
    """The decisions for one program, with its regions as texts. `chains`: merged regions; `templates`: for every
    region, in order, the template that decides layouts; `kernels`: the template and tactic of every task."""

    chains: tuple[str, ...] = ()
    templates: tuple[tuple[str, str], ...] = ()
    kernels: Mapping[Case, tuple[str, str]] = field(default_factory=dict)

    def restore_chains(self, fused: Fused, target: Target, strict: bool) -> Fused:
        """Restores the recorded chains of the program."""
        return rejoin(fused, self.chains, target, strict)

    def restore_templates(self, fused: Fused, takers: TemplatesOf) -> TemplatesOf:
        """Returns for each region the recorded template, which decides layouts.

        BuildError unless exactly these regions are recorded, each with a template that takes it.
        """
        left: dict[str, list[str]] = {}
        for text, name in self.templates:
            left.setdefault(text, []).append(name)
        by: dict[Region, tuple[Template, ...]] = {}
        for r in (i for i in fused.items if isinstance(i, Region)):
            names = left.get(key(r.body))
            if not names:
                raise _error(r, "is not recorded")
            name = names.pop(0)
            by[r] = tuple(t for t in takers(r) if t.name == name)
            if not by[r]:
                raise _error(r, f"was recorded in the layouts of the template {name!r}, which rejects it in this build")
        more = [text for text, names in left.items() for _ in names]
        if more:
            raise BuildError(f"{len(more)} recorded regions are not in this program, such as {more[0]!r:.300}; {AGAIN}")
        return by.__getitem__

    def among(self, task: Task, found: Found) -> Found:
        """Returns the recorded candidate of a task; BuildError if none is recorded, or it is not a candidate."""
        recorded = self.kernels.get(case(task))
        if recorded is None:
            raise _error(task.region, f"is not recorded with operands of the strides {'; '.join(layout_texts(task))}")
        only = [(t, c) for t, c in found if (t.name, c.name) == recorded]
        if not only:
            raise _error(
                task.region, f"was recorded with the tactic {recorded[1]!r}, which is not possible in this build"
            )
        return only


@dataclass(frozen=True)
class Recorded:
    """The contents of a replay file: the decisions for the programs of a model, None for those without an engine, and
    their number of threads, which older files lack."""

    threads: int | None
    programs: Sequence[Decisions | None]


def _error(region: Region, reason: str) -> BuildError:
    return BuildError(f"{'+'.join(region.layers) or 'a step of no layer'} ({region.title()}) {reason}; {AGAIN}")


def case(task: Task) -> Case:
    """Returns the key of a task in a replay file."""
    return task.region.key, layout_texts(task), optimum_texts(task)


def record(fused: Fused, placed: Placed, choices: Mapping[int, Choice]) -> Decisions:
    """Records the decisions for a program."""
    templates = tuple((key(r.body), name) for r, name in placed.by.items())
    kernels = {case(placed.tasks[i]): (c.template.name, c.tactic.name) for i, c in choices.items()}
    return Decisions(tuple(key(r.body) for r in fused.joined), templates, kernels)


def write(path: str | Path, isa: str, recorded: Recorded) -> None:
    """Writes decisions for a target. BuildError if the file cannot be written."""
    programs = [None if p is None else to_json(p) for p in recorded.programs]
    data = {"version": VERSION, "target": isa, "threads": recorded.threads, "programs": programs}
    try:
        files.write(path, [json.dumps(data, indent=1).encode()])
    except OSError as e:
        raise BuildError(
            f"cannot write tactics to {path}: {e.strerror or e}; use another file with save_tactics="
        ) from e


def read(path: str | Path, isa: str, count: int | None = None) -> Recorded:
    """Reads the decisions for `count` programs (None: any number).

    BuildError if the file cannot be read, holds something else, or is for another target or number of programs.
    """
    try:
        data = json.loads(Path(path).read_bytes())
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r}")
        target, threads = _text(data["target"]), _threads(data.get("threads"))
        programs = [None if p is None else from_json(p) for p in _list(data["programs"])]
    except OSError as e:
        raise BuildError(
            f"cannot read the recorded tactics {path}: {e.strerror or e}; use another file with load_tactics="
        ) from e
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BuildError(f"{path} holds no recorded tactics of version {VERSION}; {AGAIN}") from None
    if target != isa:
        raise BuildError(
            f"the tactics in {path} were recorded for {target}, this build is for {isa}; use that target, or"
            " another file with load_tactics="
        )
    if count is not None and len(programs) != count:
        raise BuildError(
            f"the tactics in {path} were recorded for a model that becomes {len(programs)} programs, "
            f"this one becomes {count}; {AGAIN}"
        )
    return Recorded(threads, programs)


def to_json(of: Decisions) -> dict[str, Any]:
    """Converts decisions to JSON data."""
    kernels = [
        {"region": text.split("\n"), "layouts": layouts, "usual": sizes, "template": template, "tactic": tactic}
        for (text, layouts, sizes), (template, tactic) in of.kernels.items()
    ]
    templates = [{"region": text.split("\n"), "template": name} for text, name in of.templates]
    return {"chains": [text.split("\n") for text in of.chains], "templates": templates, "kernels": kernels}


def from_json(data: Any) -> Decisions:
    """Reads decisions from JSON data. Raises KeyError or TypeError for malformed data."""
    chains = tuple("\n".join(_texts(lines)) for lines in _list(data["chains"]))
    templates = tuple((_region(t), _text(t["template"])) for t in _list(data["templates"]))
    kernels = {
        (_region(k), _texts(k["layouts"]), _texts(k["usual"])): (_text(k["template"]), _text(k["tactic"]))
        for k in _list(data["kernels"])
    }
    return Decisions(chains, templates, kernels)


def _region(data: Any) -> str:
    return "\n".join(_texts(data["region"]))


def _threads(data: Any) -> int | None:
    if data is not None and (type(data) is not int or data < 1):
        raise TypeError(f"{data!r:.60} is no number of threads")
    return data


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"{data!r:.60} is no list")
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise TypeError(f"{data!r:.60} is no text")
    return data


def _texts(data: Any) -> tuple[str, ...]:
    return tuple(map(_text, _list(data)))
