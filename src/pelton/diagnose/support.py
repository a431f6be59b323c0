"""What would become of a model, operator by operator, and all that stands in its way: nothing is compiled, nothing is
timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pelton.compiler.build import explain_undecided
from pelton.compiler.stages import start, read_script, run_stages
from pelton.compiler.targets import describe_target
from pelton.errors import Error, ModelError
from pelton import importers
from pelton.importers.imported import Shape
from pelton.ir.dims import Undecided
from pelton.ir.graph import Value
from pelton.ir.imported import Examined, Imported, Info, ImportedNode, OnData
from pelton.ir.bindings import Broken, kind_of
from pelton.options import Options
from pelton.plan.region import Region

ADVICE = (
    "export the model again, if need be with another opset or without this operator, or put its meaning into the model"
    " as a function"
)


@dataclass(frozen=True)
class Problem:
    """Why a model cannot be built: `node` and what follows are empty where it is no node's fault."""

    reason: str
    advice: str
    node: str = ""
    operator: str = ""
    domain: str = ""
    opset: int = 0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operator:
    """How many nodes of one operator become one op with a kernel, several of these, steps on the host, or nothing that
    runs."""

    domain: str
    operator: str
    opset: int
    nodes: int
    native: int = 0
    decomposed: int = 0
    host: int = 0
    constant: int = 0
    on_host: tuple[str, ...] = ()  # names of the nodes


@dataclass(frozen=True)
class Coverage:
    """Operators by name; of those that could not be read, the kinds are not counted."""

    model: str
    opsets: Mapping[str, int]
    problems: tuple[Problem, ...]
    operators: tuple[Operator, ...]
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def diagnose(
    model: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Sequence[str] | None = None,
    *,
    strict: bool = False,
    target: str = "cpu",
    precision: str = "fp32",
    memory: int | None = None,
) -> Coverage:
    """Takes a model as far as to the kernels of a target, whose runs may take `memory` bytes (by default, what this
    machine has). ModelError where the file cannot be read at all, InputError for shapes and outputs that do not fit,
    and for a target or precision that is not available."""
    named = None if outputs is None else tuple(outputs)
    options = Options(shapes=shapes, outputs=named, strict=strict, target=target, precision=precision, memory=memory)
    seen = importers.examine(model, shapes, outputs)
    found = seen.found
    if isinstance(found, OnData):
        try:
            script = read_script(seen.source, options)
            return _planned(seen.name, script.imported_nodes, script.programs, script.info, options, scripted=True)
        except ModelError as e:
            found = e
    if isinstance(found, ModelError):
        return _refused(seen, found, shapes, outputs)
    return _planned(seen.name, seen.imported_nodes, (found,), found.info, options)


def _planned(
    name: str,
    imported_nodes: Sequence[ImportedNode],
    programs: Sequence[Imported],
    info: Info,
    options: Options,
    scripted: bool = False,
) -> Coverage:
    """Nodes of the main graph by operator, each by the worst that becomes of what was written for it."""
    problems, on_host, alive = list[Problem](), set[str](), {(n.name, n.op) for p in programs for n in p.graph.nodes}
    target, _ = describe_target(options)
    for program in programs:
        try:
            placed = run_stages(start(program, options, target), "place").placed
            on_host |= {t.node.name for t in placed.tasks if not isinstance(t.what, Region)}
        except Undecided as e:
            if scripted:  # its nodes run one by one, by reference
                on_host |= {n.name for n in program.graph.nodes}
            else:
                problems.append(Problem(*_apart(explain_undecided(program, e), "")))
        except Error as e:
            problems.append(Problem(*_apart(str(e), "")))
    counts: dict[tuple[str, str], Counter[str]] = {}
    named: dict[tuple[str, str], list[str]] = {}
    for m in imported_nodes:
        key = (m.domain, m.operator)
        live = [n.name for n in m.written if (n.name, n.op) in alive]
        kind = m.step or _kind(live, on_host)
        counts.setdefault(key, Counter())[kind] += 1
        if kind == "host":
            named.setdefault(key, []).append(m.called)
    operators = tuple(
        Operator(
            domain or "ai.onnx",
            op,
            info.opsets.get(domain, 0),
            sum(kinds.values()),
            **kinds,
            on_host=tuple(named.get((domain, op), ())),
        )
        for (domain, op), kinds in sorted(counts.items())
    )
    return Coverage(name, _format_opsets(info.opsets), tuple(problems), operators, info.warnings)


def _refused(
    seen: Examined, error: ModelError, shapes: Mapping[str, Shape] | None, outputs: Sequence[str] | None
) -> Coverage:
    """Where reading stops at the first open size that it cannot do with, all problems show once the sizes are
    numbers."""
    if seen.open:
        known = importers.examine(seen.source, {**seen.optimum, **(shapes or {})}, outputs)
        if isinstance(known.found, ModelError):
            seen, error = known, known.found
    noted = {text for node in seen.imported_nodes for text in node.problems}
    problems = [_problem(node, text, seen.opsets) for node in seen.imported_nodes for text in node.problems]
    problems += [Problem(*_apart(text, f" ({seen.name})")) for text in seen.problems if text not in noted]
    nodes = Counter((node.domain, node.operator) for node in seen.imported_nodes)
    operators = tuple(
        Operator(domain or "ai.onnx", op, seen.opsets.get(domain, 0), count)
        for (domain, op), count in sorted(nodes.items())
    )
    return Coverage(
        seen.name,
        _format_opsets(seen.opsets),
        tuple(problems) or (Problem(*_apart(str(error), "")),),
        operators,
        tuple(seen.warnings),
    )


def _kind(live: Sequence[str], on_host: set[str]) -> str:
    """What became of an operator, by the names of the nodes that are left of it."""
    if on_host.intersection(live):
        return "host"
    if not live:
        return "constant"
    return "native" if len(live) == 1 else "decomposed"


def _format_opsets(opsets: Mapping[str, int]) -> dict[str, int]:
    return {domain or "ai.onnx": version for domain, version in sorted(opsets.items())}


def _problem(node: ImportedNode, text: str, opsets: Mapping[str, int]) -> Problem:
    inputs = tuple(
        (
            str(x.type)
            if isinstance(x, Value)
            else "unknown"
            if isinstance(x, Broken)
            else "absent"
            if x is None
            else kind_of(x)
        )
        for x in node.inputs
    )
    return Problem(
        *_apart(text, f" ({node.where})"),
        node.called,
        node.operator,
        node.domain or "ai.onnx",
        opsets.get(node.domain, 0),
        inputs,
    )


def _apart(text: str, where: str) -> tuple[str, str]:
    """A message as the reason and what to do, which stands behind its last semicolon."""
    reason, semicolon, advice = text.removesuffix(where).rpartition("; ")
    return (reason, advice) if semicolon else (advice, ADVICE)
