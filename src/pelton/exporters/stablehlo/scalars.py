"""Writes pointwise ops: their scalar expressions, primitive by primitive."""

from __future__ import annotations

from collections.abc import Callable

from pelton.ir.graph import Node
from pelton.ir.scalar import Scalar
from pelton.ir.types import BF16, BOOL, F16, F32, TensorType

from .blocks import Operations, SsaValue
from .functions import FUNCTIONS
from .casts import cast
from .literals import Inexpressible

_DIRECT = dict(
    add="add",
    sub="subtract",
    mul="multiply",
    div="divide",
    minimum="minimum",
    maximum="maximum",
    fmod="remainder",
    exp="exponential",
    log="log",
    sqrt="sqrt",
    tanh="tanh",
    sin="sine",
    cos="cosine",
    floor="floor",
    ceil="ceil",
    rint="round_nearest_even",
)
_DIRECT |= {"pow": "power", "and": "and", "or": "or", "xor": "xor", "not": "not", "neg": "negate"}
_WIDE = {"exp", "log", "sqrt", "tanh", "sin", "cos", "pow", "div", *FUNCTIONS}  # rounded once, from f32, for halves
_COMPARISONS = dict(lt="LT", le="LE", gt="GT", ge="GE", eq="EQ", ne="NE")


def pointwise(s: Operations, node: Node, *operands: SsaValue) -> SsaValue:
    """Writes a pointwise op on operands that broadcast."""
    result = node.outputs[0].type
    shaped = [s.broadcast(x, result.shape) for x in operands]
    made: dict[int, SsaValue] = {}

    def value(e: Scalar) -> SsaValue:
        if id(e) not in made:
            made[id(e)] = shaped[e.args[0]] if e.fn == "input" else _primitive(s, e, operand(e), result)
        return made[id(e)]

    def operand(e: Scalar) -> Callable[[object], SsaValue]:
        """Returns the function that writes an argument; numbers have the element type of the others."""
        kinds = [a.dtype for a in e.args if isinstance(a, Scalar) and not (e.fn == "select" and a is e.args[0])]
        beside = kinds[0] if kinds else e.dtype
        return lambda a: value(a) if isinstance(a, Scalar) else s.full(a, TensorType(beside, result.shape))

    return value(node.op.trace(tuple(v.type.dtype for v in node.inputs), node.attrs))


def _primitive(s: Operations, e: Scalar, operand: Callable, result: TensorType) -> SsaValue:
    if e.fn == "cast":
        return cast(s, operand(e.args[0]), e.dtype, *e.args[1:])
    if e.fn == "select":
        condition = e.args[0]
        held = operand(condition) if isinstance(condition, Scalar) else s.full(condition, result.with_dtype(BOOL))
        return s.select(held, *(operand(a) for a in e.args[1:]))
    args = [operand(a) for a in e.args]
    dtype = args[0].dtype
    if dtype in (F16, BF16) and e.fn in _WIDE:
        return s.convert(primitive(s, e.fn, [s.convert(x, F32) for x in args]), dtype)
    return primitive(s, e.fn, args)


def primitive(s: Operations, fn: str, args: list[SsaValue]) -> SsaValue:
    """Writes a primitive of scalar expressions on tensors of one shape."""
    x, dtype = args[0], args[0].dtype
    if fn in _COMPARISONS:
        return s.compare(_COMPARISONS[fn], *args)
    if fn in FUNCTIONS:
        return FUNCTIONS[fn](s, x)
    if fn in _DIRECT and (fn != "not" or dtype is BOOL or dtype.is_integer):
        return s.one(_DIRECT[fn], args, x.type)
    match fn:
        case "abs":
            return s.unary("abs", x) if dtype.is_float or dtype.is_signed else x
        case "sign":
            return s.unary("sign", x) if dtype.is_float or dtype.is_signed else s.binary("minimum", x, 1)
        case "trunc":
            return s.select(s.compare("LT", x, 0), s.unary("ceil", x), s.unary("floor", x))
        case "mod":
            return _modulo(s, *args)
        case "shl" | "shr":
            return _shift(s, fn, *args)
        case "isnan":
            return s.compare("NE", x, x)
        case "isinf":
            return s.compare("EQ", s.unary("abs", x), float("inf"))
    raise Inexpressible(f"StableHLO has no operation for {fn}")


def _modulo(s: Operations, a: SsaValue, b: SsaValue) -> SsaValue:
    """Writes a remainder with the sign of the divisor."""
    rest = s.one("remainder", [a, b], a.type)
    if not (a.dtype.is_float or a.dtype.is_signed):
        return rest
    other = s.binary("xor", s.compare("LT", rest, 0), s.compare("LT", b, 0))
    return s.select(s.binary("and", s.compare("NE", rest, 0), other), s.add(rest, b), rest)


def _shift(s: Operations, fn: str, a: SsaValue, b: SsaValue) -> SsaValue:
    """Writes a shift; one by a negative number, or the width or more, leaves 0, or the sign of a signed integer."""
    signed, width = a.dtype.is_signed, a.dtype.bits
    right = "shift_right_arithmetic" if signed else "shift_right_logical"
    name = "shift_left" if fn == "shl" else right
    inside = s.compare("LT", b, width)
    if signed:
        inside = s.binary("and", inside, s.compare("GE", b, 0))
    moved = s.one(name, [a, s.select(inside, b, 0)], a.type)
    if fn == "shr" and signed:
        return s.select(inside, moved, s.one(name, [a, s.full(width - 1, a)], a.type))
    return s.select(inside, moved, 0)
