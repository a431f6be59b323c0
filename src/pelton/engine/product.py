"""A product of matrices by cuBLASLt."""

from __future__ import annotations

from typing import ClassVar

from pelton.record import record

from .work import COUNT, ENDS, FLAG, KINDS, SAID, TYPES, outside, values


@record(frozen=True)
class MatmulDescriptor:
    """D[b] = end(scale · A[b] · B[b] + C[b] + bias), of m×k by k×n elements, summed in f32. All numbers, so that the
    dims of a step can be these.

    version: the library's that it was timed with, 0 before that. choice: which algorithm of those that this version
    proposes for this product. kind: of A and B, out: of all others. bias: whether there is one, n elements side by
    side; added: whether there is a C. scale: the bits of an f32. Lines of a matrix, whose elements lie side by side,
    are its rows, or its columns where it is turned: `_line` elements from one line to the next, `_step` from one matrix
    of the batch to the next, 0 for one and the same. The operands of a step are A, B, the bias, C and D, as far as
    there are such.
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
    a_turned: int
    a_step: int
    b_line: int
    b_turned: int
    b_step: int
    c_line: int
    c_step: int
    d_line: int
    d_step: int

    def dims(self) -> tuple[int, ...]:
        return values(self)

    def operands(self) -> list[tuple[str, int]]:
        """Of each operand its element type, and the elements from its first to past its last."""

        def span(lines: int, length: int, line: int, step: int) -> int:
            return (self.batch - 1) * step + (lines - 1) * line + length

        a, b = (
            (self.k, self.m) if self.a_turned else (self.m, self.k),
            ((self.n, self.k) if self.b_turned else (self.k, self.n)),
        )
        kind, out = TYPES[self.kind], TYPES[self.out]
        found = [(kind, span(*a, self.a_line, self.a_step)), (kind, span(*b, self.b_line, self.b_step))]
        found += [(out, self.n)] if self.bias else []
        found += [(out, span(self.m, self.n, self.c_line, self.c_step))] if self.added else []
        return [*found, (out, span(self.m, self.n, self.d_line, self.d_step))]

    def wrong(self) -> str | None:
        """What no product says; None where all is well."""
        limits = SAID | {
            "out": (0, len(KINDS) - 2),
            "end": (0, len(ENDS) - 1),
            "scale": (0, (1 << 32) - 1),
            "a_turned": FLAG,
            "b_turned": FLAG,
            **dict.fromkeys(("batch", "m", "n", "k"), COUNT),
        }
        if reason := outside(self, limits):
            return reason
        if TYPES[self.out] not in (TYPES[self.kind], "f32"):
            return f"it makes {KINDS[self.out]} of {KINDS[self.kind]}"
        lengths = {
            "a": self.m if self.a_turned else self.k,
            "b": self.k if self.b_turned else self.n,
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
