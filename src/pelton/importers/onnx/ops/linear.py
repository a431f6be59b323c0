"""Readers of matrix products: MatMul, Gemm, Einsum and their integer and fused variants."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from pelton.ir.dims import Size, equal, is_known
from pelton.ir.graph import Value
from pelton.ir.types import I32

from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads


@reads("MatMul")
def matmul(n: Reading) -> Binding:
    """Multiplies matrices; a vector becomes a matrix of one row or column, and the result loses that axis."""
    a, b = n.inputs
    if min(a.type.rank, b.type.rank) != 1:
        return n.emit("matmul", a, b)
    left, right = (
        n.reshape(v, shape) if v.type.rank == 1 else v for v, shape in ((a, (1, a.type.size)), (b, (b.type.size, 1)))
    )
    y = n.emit("matmul", left, right)
    return n.reshape(y, (*y.type.shape[:-2], *a.type.shape[-2:-1], *(b.type.shape[-1:] if b.type.rank > 1 else ())))


def transpose_last_axes(n: Reading, x: Value) -> Value:
    """Exchanges the last two axes of x; transposes constants during import."""
    r = x.type.rank
    return x if r < 2 else n.transpose(x, (*range(r - 2), r - 1, r - 2))


def scale_by(n: Reading, x: Value, factor: float) -> Value:
    return x if factor == 1 else n.emit("mul", x, n.like(x, factor))


@reads("Gemm")
def gemm(n: Reading) -> Binding:
    a, b, c = n.input(0), n.input(1), n.optional(2)
    if a.type.rank != 2 or b.type.rank != 2:
        raise n.refuse(f"Gemm needs two matrices, got {a.type} and {b.type}")
    a, b = transpose_last_axes(n, a) if n.flag("transA") else a, transpose_last_axes(n, b) if n.flag("transB") else b
    y = scale_by(n, n.emit("matmul", a, b), n.attr("alpha"))
    return y if c is None or n.attr("beta") == 0 else n.emit("add", y, scale_by(n, c, n.attr("beta")))


@reads("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(n: Reading) -> Binding:
    """Multiplies matrices; transBatch moves the first axis behind the batches, before trans exchanges the last two."""
    a, b = (_move_batch(n, x, n.flag(f"transBatch{name}")) for name, x in zip("AB", n.inputs))
    a, b = transpose_last_axes(n, a) if n.flag("transA") else a, transpose_last_axes(n, b) if n.flag("transB") else b
    return scale_by(n, n.emit("matmul", a, b), n.attr("alpha", 1.0))


def _move_batch(n: Reading, x: Value, move: bool) -> Value:
    r = x.type.rank
    return n.transpose(x, (*range(1, r - 1), 0, r - 1)) if move and r > 2 else x


@reads("MatMulInteger")
def matmul_integer(n: Reading) -> Binding:
    """Reads zero points per tensor, per row of A or per column of B."""
    a, b = subtract_zero_point(n, 0, 2, by_row=True), subtract_zero_point(n, 1, 3)
    return n.emit("matmul", a, b)


def subtract_zero_point(n: Reading, i: int, zero: int, by_row: bool = False) -> Value:
    """Converts an 8-bit operand to 32-bit integers around zero."""
    x, z = n.cast(n.input(i), I32), n.optional(zero)
    if z is None:
        return x
    z = n.cast(z, I32)
    if by_row and z.type.rank == 1 and z.type.size > 1:
        z = n.reshape(z, (*z.type.shape, 1))
    return n.emit("sub", x, z)


# --- Einsum


@reads("Einsum")
def einsum(n: Reading) -> Binding:
    """Contracts operands from left to right, each step a sum, a product of matrices or a pointwise product."""
    terms, out = _parse_equation(n, [v.type.rank for v in n.inputs])
    operands = [_take_diagonal(n, term, value) for term, value in zip(terms, n.inputs)]
    sizes: dict[str, Size] = {}
    for term, value in operands:
        for letter, size in zip(term, value.type.shape):
            if sizes.setdefault(letter, size) != size:
                if 1 not in (sizes[letter], size):
                    equal(sizes[letter], size)  # raises Undecided if it depends on dynamic dimensions
                    raise n.refuse(
                        f"Einsum {n.attr('equation')!r} needs equal sizes for one letter, got {sizes[letter]} and"
                        f" {size}"
                    )
                sizes[letter] = size if sizes[letter] == 1 else sizes[letter]
    operands = [_squeeze_ones(n, term, value, sizes) for term, value in operands]
    term, value = operands[0]
    for i, other in enumerate(operands[1:], 1):
        term, value = _contract(n, (term, value), other, set("".join(t for t, _ in operands[i + 1 :])) | set(out))
    term, value = _sum_unused(n, term, value, set(out))
    return n.transpose(value, [term.index(letter) for letter in out])


def _take_diagonal(n: Reading, term: str, x: Value) -> tuple[str, Value]:
    """Merges repeated letters of an operand: flattens two axes and takes every (size + 1)-th element."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            i, j = [k for k, c in enumerate(term) if c == letter][:2]
            rest = [k for k in range(len(term)) if k not in (i, j)]
            a, b = x.type.shape[i], x.type.shape[j]
            if not equal(a, b):
                raise n.refuse(
                    f"Einsum {n.attr('equation')!r} reads a diagonal, which needs axes of equal size, got {a} and {b}"
                )
            x = n.transpose(x, (*rest, i, j))
            x = n.reshape(x, (*x.type.shape[:-2], a * b))
            if is_known(a):
                x = n.emit("slice", x, starts=(0,), ends=(a * b,), axes=(len(rest),), steps=(a + 1,))
            else:
                x = n.emit("gather", x, n.emit("mul", n.count(a), n.sizes(a + 1)), axis=len(rest))
            term = "".join(term[k] for k in rest) + letter
    return term, x


def _squeeze_ones(n: Reading, term: str, x: Value, sizes: dict[str, Size]) -> tuple[str, Value]:
    """Removes axes of size 1 that broadcast along those of other operands."""
    kept = [k for k, letter in enumerate(term) if x.type.shape[k] != 1 or sizes[letter] == 1]
    return "".join(term[k] for k in kept), n.reshape(x, [x.type.shape[k] for k in kept])


def _parse_equation(n: Reading, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the letters of every operand and of the result, with ellipses expanded to letters."""
    equation = n.attr("equation").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    unused = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    dots = max((rank - len(t) + 3 for t, rank in zip(terms, ranks) if "..." in t), default=0)
    if len(terms) != len(ranks) or not 0 <= dots <= len(unused):
        raise n.refuse(f"Einsum {equation!r} does not fit operands of ranks {list(ranks)}")
    extra = "".join(unused[:dots])
    expanded = [
        t.replace("...", extra[len(extra) - (rank - len(t) + 3) :]) if "..." in t else t
        for t, rank in zip(terms, ranks)
    ]
    if any(len(t) != rank or not t.isalpha() and t for t, rank in zip(expanded, ranks)):
        raise n.refuse(f"Einsum {equation!r} does not fit operands of ranks {list(ranks)}")
    every = "".join(expanded)
    result = (
        out.replace("...", extra)
        if arrow
        else extra + "".join(sorted(c for c in set(every) - set(extra) if every.count(c) == 1))
    )
    if len(set(result)) < len(result) or not set(result) <= set(every):
        raise n.refuse(f"Einsum {equation!r} has letters in its result that no operand has")
    return expanded, result


def _sum_unused(n: Reading, term: str, value: Value, kept: set[str]) -> tuple[str, Value]:
    """Sums over the letters that neither the result nor later operands use."""
    axes = tuple(i for i, letter in enumerate(term) if letter not in kept)
    if not axes:
        return term, value
    return "".join(letter for letter in term if letter in kept), n.emit("reduce_sum", value, axes=axes, keepdims=False)


def _contract(n: Reading, left: tuple[str, Value], right: tuple[str, Value], later: set[str]) -> tuple[str, Value]:
    """Contracts two operands; letters are batch, rows, columns or inner (summed over)."""
    (a, x), (b, y) = _sum_unused(n, *left, later | set(right[0])), _sum_unused(n, *right, later | set(left[0]))
    size = {**dict(zip(a, x.type.shape)), **dict(zip(b, y.type.shape))}
    batch = [c for c in a if c in b and c in later]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    inner = [c for c in a if c in b and c not in later]

    def shape(letters: Sequence[str]) -> tuple[Size, ...]:
        return tuple(size[c] for c in letters)

    x = n.transpose(x, [a.index(c) for c in (*batch, *rows, *inner)])
    if not inner:  # no sum: a pointwise product
        y = n.transpose(y, [b.index(c) for c in (*batch, *columns)])
        product = n.emit(
            "mul",
            n.reshape(x, shape(batch + rows) + (1,) * len(columns)),
            n.reshape(y, shape(batch) + (1,) * len(rows) + shape(columns)),
        )
        return "".join(batch + rows + columns), product
    y = n.transpose(y, [b.index(c) for c in (*batch, *inner, *columns)])
    m, k, p = (math.prod(shape(letters)) for letters in (rows, inner, columns))
    product = n.emit("matmul", n.reshape(x, (*shape(batch), m, k)), n.reshape(y, (*shape(batch), k, p)))
    return "".join(batch + rows + columns), n.reshape(product, shape(batch + rows + columns))
