"""Checks if a model can be built, and how each of its operators would run, without compiling or timing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pelton.builder.build import explain_undecided
from pelton.compiler.stages import start, read_script, run_stages
from pelton.compiler.targets import describe_target
from pelton.errors import Error, ModelError
from pelton import importers
from pelton.importers.imported import Shape
from pelton.engine.chain import is_chain
from pelton.ir.dims import Undecided
from pelton.ir.graph import Value
from pelton.ir.imported import Examined, Imported, Info, ImportedNode, OnData
from pelton.ir.bindings import Broken, kind_of
from pelton.ir.types import DType
from pelton.options import Options
from pelton.plan.region import Region

ADVICE = (
    "export the model again, if need be with another opset or without this operator, or put its meaning into the model"
    " as a function"
)


@dataclass(frozen=True)
class Problem:
    """The reason why a model cannot be built; `node` and the fields after it are empty if no node is the cause."""

    reason: str
    advice: str
    node: str = ""
    operator: str = ""
    domain: str = ""
    opset: int = 0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operator:
    """The numbers of one operator's nodes that become one op with a kernel, several, host steps, or constants."""

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
    """The result of the check: True if the model can be built, and its operators by name; kinds are counted only if it
    can. `needs_python`: parts of its engine that no other language can run, empty for an engine that C runs."""

    model: str
    opsets: Mapping[str, int]
    problems: tuple[Problem, ...]
    operators: tuple[Operator, ...]
    warnings: tuple[str, ...] = ()
    needs_python: tuple[str, ...] = ()

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
    """Compiles a model up to the choice of kernels for a target; runs may use `memory` bytes (default: this machine's).

    Raises ModelError if the file cannot be read at all, InputError for shapes and outputs that do not fit the model,
    and for a target or precision that is not available.
    """
    named = None if outputs is None else tuple(outputs)
    options = Options(shapes=shapes, outputs=named, strict=strict, target=target, precision=precision, memory=memory)
    seen = importers.examine(model, shapes, outputs)
    outcome = seen.found
    if isinstance(outcome, OnData):
        try:
            script = read_script(seen.source, options, outcome)
            read = seen.name, script.imported_nodes, script.programs, script.info
            return _coverage(*read, options, scripted=True, chained=is_chain(script.main))
        except ModelError as e:
            outcome = e
    if isinstance(outcome, ModelError):
        return _coverage_of_unreadable(seen, outcome, shapes, outputs)
    return _coverage(seen.name, seen.imported_nodes, (outcome,), outcome.info, options)


def _coverage(
    name: str,
    imported_nodes: Sequence[ImportedNode],
    programs: Sequence[Imported],
    info: Info,
    options: Options,
    scripted: bool = False,
    chained: bool = False,
) -> Coverage:
    """Returns the coverage of a readable model: the kind of a node is the worst of its ops'."""
    alive = {(i, n.name, n.op) for i, program in enumerate(programs) for n in program.graph.nodes}
    problems, on_host = list[Problem](), set[tuple[int, str]]()
    target, _ = describe_target(options)
    for i, program in enumerate(programs):
        try:
            placed = run_stages(start(program, options, target), "place").placed
            on_host |= {(i, t.node.name) for t in placed.tasks if not isinstance(t.what, Region)}
        except Undecided as e:
            if scripted:  # its nodes run one by one, by reference
                on_host |= {(i, n.name) for n in program.graph.nodes}
            else:
                problems.append(Problem(*_split_message(explain_undecided(program, e), "")))
        except Error as e:
            problems.append(Problem(*_split_message(str(e), "")))
    counts: dict[tuple[str, str], Counter[str]] = {}
    named: dict[tuple[str, str], list[str]] = {}
    for m in imported_nodes:
        key = (m.domain, m.operator)
        live = [(m.program, n.name) for n in m.written if (m.program, n.name, n.op) in alive]
        kind = m.step or _kind(live, on_host)
        counts.setdefault(key, Counter())[kind] += 1
        if kind == "host":
            named.setdefault(key, []).append(m.label)
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
    native = ("NonMaxSuppression",) if chained else ()
    steps = [f"{o.operator} {label!r}" for o in operators if o.operator not in native for label in o.on_host]
    strings = [p.name for program in programs for p in program.graph.inputs if p.type.dtype is DType.STRING]
    needs_python = (
        *(["a script, because of data-dependent control flow"] if scripted and not chained else []),
        *(f"step {step}, which has no kernel" for step in steps),
        *(f"input {name!r}, which has strings" for name in strings),
    )
    return Coverage(name, _format_opsets(info.opsets), tuple(problems), operators, info.warnings, needs_python)


def _coverage_of_unreadable(
    seen: Examined, error: ModelError, shapes: Mapping[str, Shape] | None, outputs: Sequence[str] | None
) -> Coverage:
    """Returns the coverage of an unreadable model. Reading stops at the first unsupported dynamic dimension, so the
    model is read again with the optimum sizes, which shows all problems."""
    if seen.open:
        known = importers.examine(seen.source, {**seen.optimum, **(shapes or {})}, outputs)
        if isinstance(known.found, ModelError) and not isinstance(known.found, OnData):
            seen, error = known, known.found
    problems = list[Problem]()
    if not isinstance(seen.found, OnData):  # else the error is the obstacle to a script
        noted = {text for node in seen.imported_nodes for text in node.problems}
        problems = [_problem_of_node(node, text, seen.opsets) for node in seen.imported_nodes for text in node.problems]
        problems += [Problem(*_split_message(text, f" ({seen.name})")) for text in seen.problems if text not in noted]
    nodes = Counter((node.domain, node.operator) for node in seen.imported_nodes)
    operators = tuple(
        Operator(domain or "ai.onnx", op, seen.opsets.get(domain, 0), count)
        for (domain, op), count in sorted(nodes.items())
    )
    return Coverage(
        seen.name,
        _format_opsets(seen.opsets),
        tuple(problems) or (Problem(*_split_message(str(error), "")),),
        operators,
        tuple(seen.warnings),
    )


def _kind(live: Sequence[tuple[int, str]], on_host: set[tuple[int, str]]) -> str:
    """Returns how an operator runs, from the programs and names of its remaining nodes."""
    if on_host.intersection(live):
        return "host"
    if not live:
        return "constant"
    return "native" if len(live) == 1 else "decomposed"


def _format_opsets(opsets: Mapping[str, int]) -> dict[str, int]:
    return {domain or "ai.onnx": version for domain, version in sorted(opsets.items())}


def _problem_of_node(node: ImportedNode, text: str, opsets: Mapping[str, int]) -> Problem:
    reason, advice = _split_message(text, f" ({node.where})")
    domain, opset = node.domain or "ai.onnx", opsets.get(node.domain, 0)
    return Problem(reason, advice, node.label, node.operator, domain, opset, tuple(map(_format_input, node.inputs)))


def _format_input(x: Any) -> str:
    """Formats a node's input: a type, or its substitute."""
    if isinstance(x, Value):
        return str(x.type)
    if isinstance(x, Broken):
        return "unknown"
    return "absent" if x is None else kind_of(x)


def _split_message(text: str, where: str) -> tuple[str, str]:
    """Returns (reason, advice) of a message, whose advice follows its last semicolon; drops `where` from its end."""
    reason, semicolon, advice = text.removesuffix(where).rpartition("; ")
    return (reason, advice) if semicolon else (advice, ADVICE)
