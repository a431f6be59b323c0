"""What an op is, and which there are by name: `pelton.ops` declares them, programs and their texts find them here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import scalar as sc
from .dims import Undecided
from .types import DType, TensorType, broadcast_shapes

REGISTRY: dict[str, "Op"] = {}
FAMILIES: list[Callable[[str], "Op | None"]] = []  # ops without end, made by their names: those of other packages
# what expansions are made of: a Value, a Term, a number, an array (and type checkers take an applied op for what it no
# longer is)
TermLike = Any


class Untyped(ValueError):
    """The types of what an op gives cannot be told before its data is there."""


@dataclass(frozen=True)
class Term:
    """An op applied to things: a pattern where they are variables, a program where they are values."""

    op: "Op"
    args: tuple
    attrs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Op:
    """A word of the program representation. `kind` is "pointwise", "structured", "composite", "nested" or "foreign".

    What passes, plans and importers have to know of a class of ops is a fact here, declared with each of them.
    """

    name: str
    kind: str
    onnx: tuple[str, ...] = ()  # operators of ai.onnx, read as it where no reader is
    attrs: Mapping[str, Any] = field(default_factory=dict)  # name → default; REQUIRED where there is none
    onnx_names: Mapping[str, str] = field(default_factory=dict)  # attributes that ONNX names otherwise: ours → ONNX's
    # (*TensorType, **attrs) → TensorType or a tuple of them
    infer: Callable | None = None
    reference: Callable | None = None  # (*ndarray, **attrs) → ndarray or a tuple of them
    scalar: Callable | None = None  # pointwise: (*Scalar, **attrs) → Scalar
    # composite: (*Value, **attrs) → Term or a tuple of them; of others it may give None
    expand: Callable | None = None
    flops: Callable | None = None  # (*TensorType, **attrs) → operations
    examples: tuple = ()  # (type text, …, attrs dict) each
    commutative: bool = False
    domain: tuple[float, float] = (-3.0, 3.0)  # where tests draw random floats from
    doc: str = ""
    moves: bool = False  # elements of its operands or zeros, unchanged; attributes and integers say which
    view: bool = False  # strides and offsets can say where its output lies in its operand, or they in it
    indexed: bool = False  # integers in operand 1 say where in operand 0 elements are taken from, or put to
    bits: bool = False  # reads the bits of its operand as they are stored: no wider type can stand in
    product: bool = False  # sums products of its first two operands, which GPUs may compute as TF32
    recurrent: bool = False  # a layer over time steps, which `expand` splits into one product and the steps
    # stands for numbers in few bits: of constants, it is not folded on the way to a heavy op
    dequantizes: bool = False
    stepwise: bool = False  # means its expansion, with every value of that rounded
    heavy: bool = False  # slow by reference, or different between machines (BLAS): never folded
    position_operand: int | None = (
        None  # the operand that holds places or angles: rounded to a few digits they are others
    )

    def __call__(self, *args, **attrs) -> Term:
        return Term(self, args, attrs)

    def __repr__(self) -> str:
        return f"op {self.name}"

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes with defaults filled in; TypeError for an unknown or a missing one."""
        if self.kind == "foreign":
            return dict(attrs)
        unknown, missing = (
            attrs.keys() - self.attrs.keys(),
            [k for k, v in self.attrs.items() if v is REQUIRED and k not in attrs],
        )
        if unknown or missing:
            raise TypeError(
                f"{self.name} has no attribute {sorted(unknown)}"
                if unknown
                else f"{self.name} needs attribute {missing}"
            )
        return {k: attrs.get(k, v) for k, v in self.attrs.items()}

    def infer_types(self, types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Output types; ValueError or TypeError with a reason where the inputs do not fit, Undecided where that depends
        on sizes of a run."""
        if self.scalar is None and self.infer is None:
            raise TypeError(f"{self.name} does not say what types it gives")
        try:
            found = (
                self.infer(*types, **attrs)
                if self.infer is not None
                else TensorType(
                    self.trace(tuple(t.dtype for t in types), attrs).dtype, broadcast_shapes(*(t.shape for t in types))
                )
            )
        except Undecided as e:
            raise Undecided(f"{self.name}: {e}, given {', '.join(map(str, types))}", e.difference, e.relation) from None
        except (TypeError, ValueError, IndexError) as e:
            kind = (
                TypeError
                if self.infer is None and isinstance(e, TypeError)
                else Untyped
                if isinstance(e, Untyped)
                else ValueError
            )
            raise kind(f"{self.name}: {e}, given {', '.join(map(str, types))}") from None
        return found if isinstance(found, tuple) else (found,)

    def trace(self, dtypes: tuple[DType, ...], attrs: Mapping[str, Any], operands: tuple | None = None) -> sc.Scalar:
        """The scalar expression of a pointwise op; inputs are `operands`, or fresh `input` leaves."""
        if self.scalar is None:
            raise TypeError(f"{self.name} is not pointwise")
        if operands is None:
            operands = tuple(sc.Scalar("input", (i,), d) for i, d in enumerate(dtypes))
        out = self.scalar(*operands, **attrs)
        if not isinstance(out, sc.Scalar):
            raise TypeError("its scalar function gave no expression")
        return out

    def evaluate(self, arrays: tuple[np.ndarray, ...], attrs: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """The reference, in the precision of the arrays given."""
        fn = self.reference or self.scalar
        if fn is None:
            raise TypeError(f"{self.name} has no reference of its own")
        with np.errstate(all="ignore"):
            found = fn(*arrays, **attrs)
        return found if isinstance(found, tuple) else (found,)

    def operations(
        self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], attrs: Mapping[str, Any]
    ) -> int:
        """Arithmetic operations of one evaluation (a multiply-add is two)."""
        if self.flops is not None:
            return self.flops(*inputs, **attrs)
        if self.scalar is not None:
            return outputs[0].size * sc.operations(self.trace(tuple(t.dtype for t in inputs), attrs))
        return 0


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


def get(name: str) -> Op:
    """The op of that name; KeyError where there is none."""
    found = REGISTRY.get(name) or next((op for family in FAMILIES if (op := family(name)) is not None), None)
    if found is None:
        raise KeyError(name)
    return found
