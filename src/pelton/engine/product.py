"""The descriptor of a batched matrix product by cuBLASLt."""

from __future__ import annotations

from typing import ClassVar

from pelton.record import record

from .work import COUNT, ENDS, FLAG, KINDS, SAID, TYPES, outside, values


@record(frozen=True)
class MatmulDescriptor:
    """D[b] = end(scale · A[b] · B[b] + C[b] + bias), A of m×k and B of k×n elements, accumulated in f32. All fields are
    whole numbers: they are the dims of a step.

    version: of the library that it was timed with, 0 before that. choice: index among the algorithms that this version
    proposes. kind: element type of A and B, out: of C, D and the bias, both indices of `KINDS`. end: the activation, an
    index of `ENDS`. bias: 1 if there is one, of n contiguous elements; added: 1 if there is a C. scale: the bits of an
    f32. Rows of a matrix are contiguous, or its columns where it is `_transposed`: `_line` is the stride from one row
    (column) to the next, `_step` from one matrix of the batch to the next, 0 where all share one; both in elements. The
    operands of a step are A, B, bias, C and D, without the absent ones.
    """

    symbol: ClassVar[str] = "cublaslt"

    version: int
    choice: int
    kind: int
    out: int
    end: int
    bias: int
    added: int
    scale: int
    batch: int
    m: int
    n: int
    k: int
    a_line: int
    a_transposed: int
    a_step: int
    b_line: int
    b_transposed: int
    b_step: int
    c_line: int
    c_step: int
    d_line: int
    d_step: int

    def dims(self) -> tuple[int, ...]:
        return values(self)

    def operands(self) -> list[tuple[str, int]]:
        """Returns, per operand, its element type, and elements from its first to one past its last."""

        def span(lines: int, length: int, line: int, step: int) -> int:
            return (self.batch - 1) * step + (lines - 1) * line + length

        a, b = (
            (self.k, self.m) if self.a_transposed else (self.m, self.k),
            ((self.n, self.k) if self.b_transposed else (self.k, self.n)),
        )
        kind, out = TYPES[self.kind], TYPES[self.out]
        operands = [(kind, span(*a, self.a_line, self.a_step)), (kind, span(*b, self.b_line, self.b_step))]
        operands += [(out, self.n)] if self.bias else []
        operands += [(out, span(self.m, self.n, self.c_line, self.c_step))] if self.added else []
        return [*operands, (out, span(self.m, self.n, self.d_line, self.d_step))]

    def rejection(self) -> str | None:
        """Returns the reason why no product has these numbers; None if they are valid."""
        limits = SAID | {
            "out": (0, len(KINDS) - 2),
            "end": (0, len(ENDS) - 1),
            "scale": (0, (1 << 32) - 1),
            "a_transposed": FLAG,
            "b_transposed": FLAG,
            **dict.fromkeys(("batch", "m", "n", "k"), COUNT),
        }
        if reason := outside(self, limits):
            return reason
        if TYPES[self.out] not in (TYPES[self.kind], "f32"):
            return f"it makes {KINDS[self.out]} of {KINDS[self.kind]}"
        lengths = {
            "a": self.m if self.a_transposed else self.k,
            "b": self.k if self.b_transposed else self.n,
            "d": self.n,
            **({"c": self.n} if self.added else {}),
        }
        for name, length in lengths.items():
            if getattr(self, name + "_line") < length:
                return f"lines of {name} have {length} elements and begin every {getattr(self, name + '_line')}"
        rows = (self.m - 1) * self.d_line + self.n
        return (
            f"matrices of d have {rows} elements and begin every {self.d_step}"
            if self.batch > 1 and self.d_step < rows
            else None
        )

    def __str__(self) -> str:
        return f"a product of {self.m}×{self.k} by {self.k}×{self.n}"
