"""The rewriting engine: rules as pattern and replacement, applied until none matches, with a report."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from pelton.errors import BuildError
from pelton.ir import lineage
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node, Value
from pelton.ops.op import Op

from .draft import Draft, join_names
from .pattern import Applied, Bound, Family, Pattern, matches, trace
from .report import PassReport

RULES: dict[str, Rule] = {}
# the draft of the rule being applied
_draft: ContextVar[Draft] = ContextVar("draft")
# constants whose elements the rule has read
_read: ContextVar[list[np.ndarray]] = ContextVar("read")


class Rejected(Exception):
    """Raised inside a rule that does not apply to a match. Without a reason it is not reported."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Patterns (equivalent programs) and their replacement (a function from the bindings to a term).

    `inexact` marks rules that round differently, beyond folding constants; `shared` allows inner values to have other
    readers (they then stay). `examples` and `rejections` are test cases: the value of each name (see
    `pelton.passes.rewriting.example`).
    """

    name: str
    stage: str
    patterns: tuple[Pattern, ...]
    after: Callable
    inexact: bool
    shared: bool
    examples: tuple[Mapping[str, Any], ...]
    rejections: tuple[tuple[Mapping[str, Any], str], ...]
    doc: str

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        return tuple(inspect.signature(self.after).parameters.values())

    def apply(self, bound: Bound, node: Node) -> Any:
        """Calls `after` with the bindings, by the names of its parameters."""
        args: list[Any] = []
        attrs: dict[str, Any] = {}
        rest: set[Any] = {k for k in bound if isinstance(k, str)}
        for p in self._parameters:
            rest.discard(p.name)
            if p.kind is p.VAR_POSITIONAL:
                args.extend(bound[p.name])
            elif p.kind is p.VAR_KEYWORD:
                attrs.update((k, bound[k]) for k in rest)
            elif p.name == "node":
                attrs["node"] = node
            elif p.kind is p.KEYWORD_ONLY:
                attrs.update({p.name: bound[p.name]} if p.name in bound else {})
            else:
                args.append(bound.get(p.name, p.default))
        return self.after(*args, **attrs)


def rule(
    *patterns: Callable,
    stage: str = "",
    inexact: bool = False,
    shared: bool = False,
    examples: Iterable[Mapping[str, Any]] = (),
    rejections: Iterable[tuple[Mapping[str, Any], str]] = (),
):
    """Declares a rule from its patterns and the decorated function, whose parameters are the bindings by name.

    A parameter `node` receives the matched root. The function returns the replacement: a term, value, array, or a tuple
    of them for a root with several outputs. Numbers and float64 arrays are rounded once to the element type around
    them. `require` rejects with a reason, `when` without one; Undecided, of dynamic dimensions, rejects too. The stage
    is the file's name by default.
    """

    def declare(fn: Callable) -> Rule:
        if fn.__name__ in RULES:
            raise ValueError(f"rule {fn.__name__} is declared twice")
        traced = tuple(map(trace, patterns))
        for p in inspect.signature(fn).parameters.values():
            if (
                p.kind is not p.VAR_KEYWORD
                and p.default is p.empty
                and p.name != "node"
                and any(p.name not in t.names for t in traced)
            ):
                raise TypeError(f"rule {fn.__name__} uses {p.name}, which not every pattern binds")
        declared = Rule(
            fn.__name__,
            stage or fn.__module__.rpartition(".")[2],
            traced,
            fn,
            inexact,
            shared,
            tuple(examples),
            tuple(rejections),
            inspect.getdoc(fn) or "",
        )
        RULES[declared.name] = declared
        return declared

    return declare


def rules(*stages: str) -> tuple[Rule, ...]:
    """Returns the rules of these stages, in order of stages and declaration; the first match is applied."""
    return tuple(r for stage in stages for r in RULES.values() if r.stage == stage)


# --- interface for rules


def when(condition: bool) -> None:
    """Skips the match, without a report, unless the condition holds."""
    if not condition:
        skip()


def skip() -> NoReturn:
    raise Rejected


def require(condition: bool, reason: str) -> None:
    """Rejects the match, with a reason that `explain` shows, unless the condition holds."""
    if not condition:
        reject(reason)


def reject(reason: str) -> NoReturn:
    raise Rejected(reason)


def is_constant(*values: Value) -> bool:
    """True if all of them are constants."""
    return all(v in _draft.get().constants for v in values)


def may_decide(*values: Value) -> bool:
    """True if rules may depend on the numbers of these constants; False for refittable weights."""
    return not any(lineage.is_weight(_draft.get().constants.get(v)) for v in values)


def array(value: Value) -> np.ndarray:
    """Returns a constant's elements for computing, floats as float64. Rejects the match if it is not constant."""
    constant = elements(value)
    return constant.astype(np.float64) if value.type.dtype.is_float else constant


def elements(value: Value) -> np.ndarray:
    """Returns a constant's elements unchanged. Rejects the match if it is not constant."""
    constant = _draft.get().constants.get(value)
    if constant is None:
        reject(f"%{value.name} is not constant")
    _read.get().append(constant)
    return constant


def is_filled_with(value: Value, number: float) -> bool:
    """True if a value is a constant with all elements equal to this number; False for refittable weights."""
    constant = _draft.get().constants.get(value)
    return (
        constant is not None
        and not lineage.is_weight(constant)
        and constant.size > 0
        and constant.flat[0] == number
        and bool((constant == number).all())
    )


def scalar(value: Value) -> float:
    """Returns the number of a constant of rank 0; skips the match if it is none."""
    when(is_constant(value) and value.type.rank == 0)
    return array(value).item()


def producer_of(value: Value) -> Node | None:
    """Returns the node that produces a value; None for inputs and constants."""
    return _draft.get().producer.get(value)


def uses(value: Value) -> int:
    """Counts the readers of a value; a graph output counts as one."""
    return _draft.get().uses(value)


# --- the engine


def node_label(node: Node) -> str:
    """Returns the name of a node in reports: its name in the model file, else its output."""
    return node.name or "%" + node.outputs[0].name


def rewrite(graph: Graph, rules: Iterable[Rule], report: PassReport | None = None, *, strict: bool = False) -> Graph:
    """Applies rules until none matches; returns the very same graph if none did. `strict` excludes inexact rules.

    Raises BuildError with the rule's name if a replacement changes the type, or if the rules do not terminate.
    """
    draft, index = Draft(graph), _Index(r for r in rules if not (strict and r.inexact))
    report = PassReport("rewrite") if report is None else report
    refused: dict[tuple[str, Node], str] = {}
    token, reads = _draft.set(draft), _read.set([])
    patience, swept, changed = 1000 + 50 * len(draft), False, False
    try:
        while not swept:
            swept, queue = True, deque(draft.nodes)
            refused.clear()  # the last sweep sees the final nodes
            while queue:
                node = queue.popleft()
                fired = node in draft and _apply_first(node, draft, index, report, refused)
                if not fired:
                    continue
                swept, changed, patience = False, True, patience - 1
                # new nodes may match in turn
                queue.extendleft(reversed(draft.added))
                draft.added.clear()
                if patience < 0:
                    raise BuildError(
                        f"internal error: the rules do not come to rest, the last one was {fired} (please report this"
                        " model)"
                    )
    finally:
        _draft.reset(token)
        _read.reset(reads)
    for (name, node), reason in refused.items():
        report.reject(name, node_label(node), reason)
    return draft.graph() if changed else graph


class _Index:
    """The rules, indexed by the op at their root."""

    def __init__(self, rules: Iterable[Rule]):
        self._roots = [(r, p) for r in rules for p in r.patterns]
        self._of: dict[Op, list[tuple[Rule, Pattern]]] = {}

    def __getitem__(self, op: Op) -> list[tuple[Rule, Pattern]]:
        if op not in self._of:
            self._of[op] = [
                (r, p)
                for r, p in self._roots
                if p.root.op is op or (isinstance(p.root.op, Family) and p.root.op.kind == op.kind)
            ]
        return self._of[op]


def _apply_first(
    node: Node, draft: Draft, index: _Index, report: PassReport, refused: dict[tuple[str, Node], str]
) -> str:
    """Applies the first rule that matches a node; returns its name, or an empty text."""
    for r, pattern in index[node.op]:
        for bound in matches(pattern.root, node, draft):
            matched = [draft.producer[v] for k, v in bound.items() if isinstance(k, Applied)] + [node]
            known = len(draft.constants)
            _read.get().clear()
            try:
                new = r.apply(bound, node)
                if not r.shared:
                    _check_inner(matched, draft)
                name = join_names(n.name for n in sorted(matched, key=draft.position))
                if not draft.replace(node, new, name):
                    reject(
                        f"%{node.outputs[0].name} is a graph output and would become another name of an input, a"
                        " constant or an output"
                    )
            except Rejected as refusal:
                if str(refusal):
                    refused.setdefault((r.name, node), str(refusal))
                continue
            except Undecided as unknown:
                # depends on a dynamic dimension
                refused.setdefault((r.name, node), str(unknown))
                continue
            except (ValueError, TypeError) as e:
                raise BuildError(
                    f"internal error: rule {r.name} {e} (node {node_label(node)!r}; please report this model)"
                ) from e
            lineage.added(draft.constants, known, _read.get())
            report.fire(r.name, name or node_label(node))
            return r.name
    return ""


def _check_inner(matched: list[Node], draft: Draft) -> None:
    """Rejects the match if an inner value, which would disappear, has a reader outside of it."""
    for node in matched[:-1]:
        value = node.output
        require(value not in draft.outputs, f"%{value.name} is a graph output")
        for user in draft.users[value]:
            require(any(user is n for n in matched), f"%{value.name} has another reader: {node_label(user)}")
