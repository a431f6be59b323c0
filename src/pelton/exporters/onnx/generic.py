"""Generic writers of ops: as they are declared, as plugins, and from their scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.ir.op import REGISTRY
from pelton.ir.scalar import Scalar
from pelton.ir.types import BOOL, DType
from pelton.ops.foreign import CODES

from .foreign import foreign
from .schemas import Unwritable
from .writing import Writing


def write(w: Writing) -> str | Sequence[str]:
    """Writes the operator that the op declares, with the same operands and attributes; or a plugin's node."""
    op = w.node.op
    if op.kind == "foreign":
        return foreign(w)
    if op.instance is not None:
        return plugin(w)
    if len(op.onnx) != 1 or sum(op.onnx == other.onnx for other in REGISTRY.values()) > 1:
        raise Unwritable("ONNX has no operator for it")
    attrs = {op.onnx_names.get(k, k): v for k, v in w.attrs.items()}
    return w.emit_all(op.onnx[0], w.inputs, [v.type.dtype for v in w.node.outputs], **attrs)


def plugin(w: Writing) -> Sequence[str]:
    """Writes a node of the plugin's domain and type, without the operands that the plugin computes itself."""
    op, types = w.node.op, [v.type for v in w.node.inputs]
    assert op.instance is not None
    named = op.instance(**w.attrs).onnx
    if named is None:
        raise Unwritable(f"the plugin {op.name} has no `onnx`, the domain and type of its operator there")
    count = len(types)
    if op.configure is not None:
        fitting = (k for k in range(count + 1) if _configured(op.configure, types[:k], w.attrs) == count - k)
        arity = next(fitting, None)
        if arity is None:
            raise Unwritable(
                f"the plugin {op.name} does not return its configured arrays for {', '.join(map(str, types))}"
            )
        count = arity
    return w.model.emit_custom(named, w.inputs[:count], w.node)


def _configured(configure, types, attrs) -> int | None:
    """Returns the number of arrays that a plugin computes for these operands; None if it rejects them."""
    try:
        return len(configure(*types, **attrs))
    except (TypeError, ValueError, IndexError):
        return None


_NAMES = {
    **{
        fn: fn.capitalize()
        for fn in (
            "add sub mul div pow neg abs sign exp log sqrt erf tanh sin cos tan asin acos atan sinh cosh asinh acosh"
            " atanh floor ceil"
        ).split()
    },
    **dict(minimum="Min", maximum="Max", rint="Round", lt="Less", le="LessOrEqual", gt="Greater", ge="GreaterOrEqual"),
    **dict(eq="Equal", select="Where", isnan="IsNaN", isinf="IsInf"),
}
_LOGIC = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor"), "not": ("Not",) * 2}


def by_scalar(w: Writing) -> str:
    """Writes a pointwise op, primitive by primitive."""
    op = w.node.op
    if op.scalar is None:
        raise Unwritable("ONNX has no operator for it")
    inputs = tuple(v.type.dtype for v in w.node.inputs)
    made: dict[int, str] = {}

    def value(e: Scalar) -> str:
        if id(e) not in made:
            made[id(e)] = w.input(e.args[0]) if e.fn == "input" else _primitive(w, e, list(map(operand(e), e.args)))
        return made[id(e)]

    def operand(e: Scalar):
        kinds = [a.dtype for a in e.args if isinstance(a, Scalar) and not (e.fn == "select" and a is e.args[0])]
        beside = kinds[0] if kinds else e.dtype

        def named(a):
            if isinstance(a, Scalar):
                return value(a)
            return a if e.fn == "cast" else w.constant(a, beside)

        return named

    return value(op.trace(inputs, w.attrs))


def _primitive(w: Writing, e: Scalar, args: list) -> str:
    dtype = e.args[0].dtype if isinstance(e.args[0], Scalar) else w.model.dtype(args[0])
    if e.fn == "cast":
        return cast(w, args[0], e.dtype, *args[1:])
    if e.fn in _NAMES and (e.fn != "neg" or dtype.is_signed or dtype.is_float):
        return w.emit(_NAMES[e.fn], *args)
    match e.fn:
        case "neg":
            return w.emit("Sub", w.constant(0, dtype), *args)
        case "ne":
            return w.emit("Not", w.emit("Equal", *args))
        case "not":
            return w.emit("Not" if dtype is BOOL else "BitwiseNot", *args)
        case "and" | "or" | "xor":
            return w.emit(_LOGIC[e.fn][dtype is not BOOL], *args)
        case "trunc":
            return w.emit(
                "Where", w.emit("Less", *args, w.constant(0, dtype)), w.emit("Ceil", *args), w.emit("Floor", *args)
            )
        case "shl" | "shr":
            return w.emit("BitShift", *args, direction="LEFT" if e.fn == "shl" else "RIGHT")
        case "fmod" | "mod" if dtype.is_integer or e.fn == "fmod":
            return w.emit("Mod", *args, fmod=int(e.fn == "fmod"))
        case "mod":  # of floats, with the sign of the divisor
            rest, zero = w.emit("Mod", *args, fmod=1), w.constant(0, dtype)
            other = w.emit("Less", w.emit("Mul", w.emit("Sign", rest), w.emit("Sign", args[1])), zero)
            return w.emit("Where", other, w.emit("Add", rest, args[1]), rest)
    raise Unwritable(f"ONNX has no operator for {e.fn}")


def cast(w: Writing, x: str, to: DType, saturate: bool = True, round_mode: str = "up") -> str:
    """Writes a Cast with the attributes of its type."""
    byte = to.size == 1 and to.is_float and to.value.startswith("f8")
    powers = to is DType.F8E8M0FNU
    return w.emit(
        "Cast",
        x,
        gives=to,
        to=CODES[to.value],
        saturate=0 if byte and not saturate else None,
        round_mode=round_mode if powers and round_mode != "up" else None,
    )
