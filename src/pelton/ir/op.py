"""The type of ops, and their registry by name, which `pelton.ops` fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import scalar as sc
from .dims import Undecided
from .types import DType, TensorType, broadcast_shapes

REGISTRY: dict[str, "Op"] = {}
FAMILIES: list[Callable[[str], "Op | None"]] = []  # build ops from names that are not in the registry
TermLike = Any  # an operand of an expansion: a Value, a Term, a number or an array


class Untyped(ValueError):
    """The types of an op's outputs depend on its data."""


@dataclass(frozen=True)
class Term:
    """An op applied to operands: a pattern where these are variables, a program where they are values."""

    op: "Op"
    args: tuple
    attrs: Mapping[str, Any]

    def __getitem__(self, index: int) -> TermOutput:
        return TermOutput(self, index)


@dataclass(frozen=True)
class TermOutput:
    """One of the outputs of a term in a program."""

    term: Term
    index: int


@dataclass(frozen=True, eq=False)
class Op:
    """An operation of the program representation, with all facts that the compiler needs.

    name, kind: `kind` is "pointwise", "structured", "composite", "nested" (graphs as attributes) or "foreign" (an
    operator of another package, which runs on the host).
    onnx: the operators of ai.onnx that are read as this op without a reader function.
    attrs: attribute → default, REQUIRED where it has none.
    onnx_names: attribute → its name in ONNX, where that differs.

    Functions, of which a pointwise op has `scalar`, a composite op `expand`, and others `infer` and `reference`:

    infer(*TensorType, **attrs): the type of the output, or a tuple of types; raises ValueError with a reason where the
    operands do not fit, Undecided where that depends on dynamic dimensions.
    reference(*ndarray, **attrs): the output as numpy computes it, or a tuple of arrays. Floats come as float64, which
    the caller rounds.
    scalar(*Scalar, **attrs): the element of the output as a scalar expression of the operands' elements.
    expand(*Value, **attrs): the op in terms of others, as a Term or a tuple of them; other kinds may return None
    without such an expansion.
    flops(*TensorType, **attrs): the number of operations.
    configure(*TensorType, **attrs): arrays that follow the operands, as constants, wherever the op is applied.
    instance(**attrs): a plugin's object, whose `reference` a host step calls between its `initialize` and `terminate`.

    For tests: examples are (type text, …, attrs dict) each; random floats are drawn from domain (low, high).

    Facts, which passes, plans and importers query instead of an op's name:

    commutative: the two operands may be exchanged.
    moves: the output holds elements of the operands, or zeros, unchanged; attributes and integers select them.
    keeps_range: the output lies between the smallest and the largest element of operand 0 and zero.
    view: the output can share the operand's memory with other strides and offsets (or the operands the output's).
    indexed: integers in operand 1 select the elements of operand 0 to read or replace.
    bits: reads the stored bits of its operand, so that no wider type may replace it.
    product: sums products of its first two operands, which GPUs may multiply as TF32.
    recurrent: a layer over time steps, which `expand` splits into one matrix product and the steps.
    dequantizes: its output represents numbers stored in few bits; with constant operands, it is not folded if a heavy
    op reads the output.
    stepwise: its expansion defines it, with every value in it rounded.
    heavy: slow by reference, or different between machines (BLAS), and therefore never folded.
    position_operand: the operand with positions or angles, which must not be computed in lower precision.
    """

    name: str
    kind: str
    onnx: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    onnx_names: Mapping[str, str] = field(default_factory=dict)
    infer: Callable | None = None
    reference: Callable | None = None
    scalar: Callable | None = None
    expand: Callable | None = None
    flops: Callable | None = None
    configure: Callable | None = None
    instance: Callable | None = None
    examples: tuple = ()
    commutative: bool = False
    domain: tuple[float, float] = (-3.0, 3.0)
    doc: str = ""
    moves: bool = False
    keeps_range: bool = False
    view: bool = False
    indexed: bool = False
    bits: bool = False
    product: bool = False
    recurrent: bool = False
    dequantizes: bool = False
    stepwise: bool = False
    heavy: bool = False
    position_operand: int | None = None

    def __call__(self, *args, **attrs) -> Term:
        return Term(self, args, attrs)

    def __repr__(self) -> str:
        return f"op {self.name}"

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes with defaults filled in; TypeError for an unknown or a missing one."""
        if self.kind == "foreign":
            if not isinstance(attrs.get("model"), str):
                raise TypeError(f"{self.name} needs the attribute 'model', a text")
            return dict(attrs)
        if unknown := attrs.keys() - self.attrs.keys():
            raise TypeError(f"{self.name} has no attribute {sorted(unknown)}")
        if missing := [k for k, v in self.attrs.items() if v is REQUIRED and k not in attrs]:
            raise TypeError(f"{self.name} needs attribute {missing}")
        return {k: attrs.get(k, v) for k, v in self.attrs.items()}

    def infer_types(self, types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Infers the output types.

        Raises ValueError or TypeError with a reason where the inputs do not fit, Undecided where that depends on
        dynamic dimensions, and Untyped where the types depend on data.
        """
        if self.scalar is None and self.infer is None:
            raise TypeError(f"{self.name} does not define its output types")
        try:
            outputs = (
                self.infer(*types, **attrs)
                if self.infer is not None
                else TensorType(
                    self.trace(tuple(t.dtype for t in types), attrs).dtype, broadcast_shapes(*(t.shape for t in types))
                )
            )
        except Undecided as e:
            raise e.reworded(f"{self.name}: {e}, got {', '.join(map(str, types))}") from None
        except (TypeError, ValueError, IndexError) as e:
            kind: type[Exception] = ValueError
            if self.infer is None and isinstance(e, TypeError):
                kind = TypeError
            elif isinstance(e, Untyped):
                kind = Untyped
            raise kind(f"{self.name}: {e}, got {', '.join(map(str, types))}") from None
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def trace(self, dtypes: tuple[DType, ...], attrs: Mapping[str, Any], operands: tuple | None = None) -> sc.Scalar:
        """Returns the scalar expression of a pointwise op; inputs are `operands`, or fresh `input` leaves."""
        if self.scalar is None:
            raise TypeError(f"{self.name} is not pointwise")
        if operands is None:
            operands = tuple(sc.Scalar("input", (i,), d) for i, d in enumerate(dtypes))
        out = self.scalar(*operands, **attrs)
        if not isinstance(out, sc.Scalar):
            raise TypeError("its scalar function returned no expression")
        return out

    def evaluate(self, arrays: tuple[np.ndarray, ...], attrs: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """Evaluates the reference, in the precision of the arrays."""
        fn = self.reference or self.scalar
        if fn is None:
            raise TypeError(f"{self.name} has no reference")
        with np.errstate(all="ignore"):
            outputs = fn(*arrays, **attrs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def operations(
        self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], attrs: Mapping[str, Any]
    ) -> int:
        """Counts the arithmetic operations of one evaluation (a multiply-add is two)."""
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
    """Returns the op of that name; KeyError if there is none."""
    match = REGISTRY.get(name) or next((op for family in FAMILIES if (op := family(name)) is not None), None)
    if match is None:
        raise KeyError(name)
    return match
