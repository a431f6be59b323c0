"""Sizes in the form that engines store, and a parser of their text."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from .dims import Atom, Dim, Size, Symbol, floordiv, maximum, minimum, mod, symbol, symbols


def parse(text: str, known: Mapping[str, Size]) -> Size:
    """Parses a size such as "3*batch + 1"; ValueError for invalid text or an unknown name."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"{text!r} is no size") from None
    try:
        return _parsed(tree, known, text)
    except RecursionError:
        raise ValueError(f"{text[:50]!r}… is too long for a size") from None
    except ZeroDivisionError:
        raise ValueError(f"{text!r} divides by zero") from None


def _parsed(tree: ast.expr, known: Mapping[str, Size], text: str) -> Size:
    def read(node: ast.expr) -> Size:
        return _parsed(node, known, text)

    match tree:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return read(left) + read(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return read(left) - read(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return read(left) * read(right)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Div(), right=right):
            return floordiv(read(left), read(right))
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return mod(read(left), read(right))
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=args, keywords=[]) if args:
            return (maximum if name == "max" else minimum)(*map(read, args))
        case ast.Call(func=ast.Name(id="mod"), args=[left, right], keywords=[]):
            return mod(read(left), read(right))
    raise ValueError(f"{text!r} is no size over {', '.join(known) or 'no names'}")


def substituted(x: Size, by: Mapping[str, Size]) -> Size:
    """Replaces some symbols of a size by other sizes."""
    known = {s.name: symbol(s.name, s.minimum, s.optimum, s.maximum) for s in symbols(x)}
    return parse(str(x), {**known, **by})


def tree(x: Size) -> Any:
    """Returns a size as nested lists for engines: numbers, names, and ["+", …], ["*", …], ["//", a, b], ["%", a, b],
    ["max", …], ["min", …]."""
    if not isinstance(x, Dim):
        return int(x)

    def atom(a: Atom) -> Any:
        return a.name if isinstance(a, Symbol) else [{"floordiv": "//", "mod": "%"}.get(a.fn, a.fn), *map(tree, a.args)]

    terms = []
    for m, c in x.terms:
        factors = [*([c] if c != 1 or not m else []), *map(atom, m)]
        terms.append(factors[0] if len(factors) == 1 else ["*", *factors])
    return terms[0] if len(terms) == 1 else ["+", *terms]
