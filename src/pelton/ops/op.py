"""Declares operators, each once, as pointwise, structured, composite or nested."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pelton.ir.dims import Size, Undecided, equal
from pelton.ir.op import REGISTRY, REQUIRED, Op, Term, TermLike, Untyped, get

# re-exported for declarations and applications of ops
__all__ = ["REGISTRY", "REQUIRED", "Op", "Term", "TermLike", "Untyped", "get"]


def expect(ok: bool, reason: str) -> None:
    """Raises ValueError unless `ok`; its message is "<op>: ", the reason, and the types."""
    if not ok:
        raise ValueError(reason)


def expect_equal(a: Size | tuple[Size, ...], b: Size | tuple[Size, ...], reason: str) -> None:
    """Raises ValueError unless sizes or shapes are equal; dynamic dimensions must be equal in every run."""
    one, other = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    expect(len(one) == len(other), reason)
    needed = tuple(x - y for x, y in zip(one, other))
    for x, y in zip(one, other):
        try:
            expect(equal(x, y), reason)
        except Undecided as e:
            raise Undecided(f"{reason} ({e})", e.difference, e.relation, needed) from None


def expect_at_least(size: Size, minimum: int, reason: str) -> None:
    """Raises ValueError if a size is below a minimum; a dynamic dimension must not be in any run."""
    try:
        expect(size >= minimum, reason)
    except Undecided:
        raise Undecided(reason, size - minimum, ">=", (size - minimum,)) from None


def _declared_attrs(fn: Callable) -> dict[str, Any]:
    return {
        p.name: REQUIRED if p.default is p.empty else p.default
        for p in inspect.signature(fn).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


def _register(op: Op) -> Op:
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name} is declared twice")
    REGISTRY[op.name] = op
    return op


def _names(onnx) -> tuple[str, ...]:
    return (onnx,) if isinstance(onnx, str) else tuple(onnx or ())


def pointwise(onnx=None, *, examples=(), commutative=False, domain=(-3.0, 3.0), **facts: Any):
    """Declares a pointwise op from a scalar function; keyword-only parameters are its attributes.

    Inputs broadcast as in numpy; the output's element type is that of the traced expression.
    `facts` are fields of `Op`, such as moves=True.
    """

    def declare(fn: Callable) -> Op:
        arity = sum(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(fn).parameters.values())
        default = (tuple(["f32[5, 13]"] * arity),) + (
            (("f32[2, 3, 9]",) + ("f32[3, 1]",) * (arity - 1),) if arity > 1 else ()
        )
        return _register(
            Op(
                fn.__name__.rstrip("_"),
                "pointwise",
                _names(onnx),
                _declared_attrs(fn),
                scalar=fn,
                examples=tuple(examples) or default,
                commutative=commutative,
                domain=domain,
                doc=inspect.getdoc(fn) or "",
                **facts,
            )
        )

    return declare


def _from_class(kind: str, cls: type, onnx, examples, **more) -> Op:
    member = {k: v for k, v in vars(cls).items() if inspect.isfunction(v)}
    return _register(
        Op(
            cls.__name__.rstrip("_"),
            kind,
            _names(onnx),
            _declared_attrs(member["infer"]),
            infer=member["infer"],
            reference=member.get("reference"),
            expand=member.get("expand"),
            flops=member.get("flops"),
            examples=tuple(examples),
            doc=inspect.getdoc(cls) or "",
            **more,
        )
    )


def structured(onnx=None, *, examples=(), domain=(-3.0, 3.0), **facts: Any):
    """Declares an op from a class with `infer(*types, *, attrs)` and `reference(*arrays, *, attrs)`.

    Optional: `flops(*types, *, attrs)`, and `expand(*values, *, attrs)`, an expression of simpler ops, or None, for
    nodes without a kernel. `facts` are fields of `Op`, such as moves=True.
    """
    return lambda cls: _from_class("structured", cls, onnx, examples, domain=domain, **facts)


def nested(*, examples=()):
    """Declares an op with graphs as attributes; its `reference` receives them as functions of arrays."""
    return lambda cls: _from_class("nested", cls, None, examples)


def composite(onnx=None, *, examples=(), domain=(-3.0, 3.0), **facts: Any):
    """Declares an op by an expansion: `infer`, `expand(*values, *, attrs) -> Term`, optionally a `reference`.

    Numbers and float64 arrays in an expansion take the element type of the other operands. `facts` are fields of `Op`,
    such as moves=True.
    """
    return lambda cls: _from_class("composite", cls, onnx, examples, domain=domain, **facts)
