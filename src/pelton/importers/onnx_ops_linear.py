"""Readers of matrix products: MatMul, Gemm, Einsum and their integer and fused relatives."""
from __future__ import annotations

import math
import string
from collections.abc import Sequence

from pelton.ir.dims import Size, equal
from pelton.ir.graph import Value
from pelton.ir.types import I32

from .onnx_reading import MICROSOFT, Reading, Thing, reads


@reads("MatMul")
def matmul(n: Reading) -> Thing:
    return n.emit("matmul", *n.inputs)


def swapped(n: Reading, x: Value) -> Value:
    """x with its last two axes exchanged; constants are transposed at once."""
    r = x.type.rank
    return x if r < 2 else n.transpose(x, (*range(r - 2), r - 1, r - 2))


def scaled(n: Reading, x: Value, factor: float) -> Value:
    return x if factor == 1 else n.emit("mul", x, n.like(x, factor))


@reads("Gemm")
def gemm(n: Reading) -> Thing:
    a, b, c = n.input(0), n.input(1), n.optional(2)
    if a.type.rank != 2 or b.type.rank != 2:
        raise n.refuse(f"Gemm needs two matrices, got {a.type} and {b.type}")
    a, b = swapped(n, a) if n.flag("transA") else a, swapped(n, b) if n.flag("transB") else b
    y = scaled(n, n.emit("matmul", a, b), n.attr("alpha"))
    return y if c is None or n.attr("beta") == 0 else n.emit("add", y, scaled(n, c, n.attr("beta")))


@reads("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(n: Reading) -> Thing:
    """transBatch moves the first axis behind the batches, before trans exchanges the last two."""
    a, b = (_batched(n, x, n.flag(f"transBatch{name}")) for name, x in zip("AB", n.inputs))
    a, b = swapped(n, a) if n.flag("transA") else a, swapped(n, b) if n.flag("transB") else b
    return scaled(n, n.emit("matmul", a, b), n.attr("alpha", 1.0))


def _batched(n: Reading, x: Value, moved: bool) -> Value:
    r = x.type.rank
    return n.transpose(x, (*range(1, r - 1), 0, r - 1)) if moved and r > 2 else x


@reads("MatMulInteger")
def matmul_integer(n: Reading) -> Thing:
    """Zero points are per tensor, per row of A or per column of B."""
    a, b = without_zero_point(n, 0, 2, by_row=True), without_zero_point(n, 1, 3)
    return n.emit("matmul", a, b)


def without_zero_point(n: Reading, i: int, zero: int, by_row: bool = False) -> Value:
    """An 8-bit operand as 32-bit integers around zero."""
    x, z = n.cast(n.input(i), I32), n.optional(zero)
    if z is None:
        return x
    z = n.cast(z, I32)
    if by_row and z.type.rank == 1 and z.type.size > 1:
        z = n.reshape(z, (*z.type.shape, 1))
    return n.emit("sub", x, z)


# --- Einsum

@reads("Einsum")
def einsum(n: Reading) -> Thing | tuple[Thing, ...]:
    """Operands are contracted from left to right, each step a sum, a product of matrices or a pointwise product."""
    found = _terms(n, [v.type.rank for v in n.inputs])
    if found is None:
        return n.foreign()
    terms, out = found
    sizes: dict[str, Size] = {}
    for term, value in zip(terms, n.inputs):
        for letter, size in zip(term, value.type.shape):
            if sizes.setdefault(letter, size) != size:
                if 1 in (sizes[letter], size):            # broadcasting inside of an ellipsis
                    return n.foreign()
                equal(sizes[letter], size)                    # says what it depends on, if it does
                raise n.refuse(f"Einsum {n.attr('equation')!r} needs equal sizes for one letter, got {sizes[letter]} and {size}")
    term, value = terms[0], n.input(0)
    for i in range(1, len(terms)):
        term, value = _contract(n, (term, value), (terms[i], n.input(i)), set("".join(terms[i + 1:])) | set(out))
    term, value = _summed(n, term, value, set(out))
    return n.transpose(value, [term.index(letter) for letter in out])


def _terms(n: Reading, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """The letters of every operand and of the result, ellipses spelled out; None for diagonals."""
    equation = n.attr("equation").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    spare = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    dots = max((rank - len(t) + 3 for t, rank in zip(terms, ranks) if "..." in t), default=0)
    if len(terms) != len(ranks) or not 0 <= dots <= len(spare):
        raise n.refuse(f"Einsum {equation!r} does not fit operands of ranks {list(ranks)}")
    extra = "".join(spare[:dots])
    spelled = [t.replace("...", extra[len(extra) - (rank - len(t) + 3):]) if "..." in t else t for t, rank in zip(terms, ranks)]
    if any(len(t) != rank or not t.isalpha() and t for t, rank in zip(spelled, ranks)):
        raise n.refuse(f"Einsum {equation!r} does not fit operands of ranks {list(ranks)}")
    every = "".join(spelled)
    result = out.replace("...", extra) if arrow else extra + "".join(sorted(c for c in set(every) - set(extra) if every.count(c) == 1))
    if any(len(set(t)) < len(t) for t in spelled):
        return None
    if len(set(result)) < len(result) or not set(result) <= set(every):
        raise n.refuse(f"Einsum {equation!r} has letters in its result that no operand has")
    return spelled, result


def _summed(n: Reading, term: str, value: Value, kept: set[str]) -> tuple[str, Value]:
    """Letters that nobody reads any more summed away."""
    axes = tuple(i for i, letter in enumerate(term) if letter not in kept)
    if not axes:
        return term, value
    return "".join(letter for letter in term if letter in kept), n.emit("reduce_sum", value, axes=axes, keepdims=False)


def _contract(n: Reading, left: tuple[str, Value], right: tuple[str, Value], later: set[str]) -> tuple[str, Value]:
    """Two operands into one: batch letters, rows, columns, and what is summed over."""
    (a, x), (b, y) = _summed(n, *left, later | set(right[0])), _summed(n, *right, later | set(left[0]))
    size = {**dict(zip(a, x.type.shape)), **dict(zip(b, y.type.shape))}
    batch = [c for c in a if c in b and c in later]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    inner = [c for c in a if c in b and c not in later]

    def shape(letters: Sequence[str]) -> tuple[Size, ...]:
        return tuple(size[c] for c in letters)

    x = n.transpose(x, [a.index(c) for c in (*batch, *rows, *inner)])
    if not inner:                                          # nothing is summed: a pointwise product
        y = n.transpose(y, [b.index(c) for c in (*batch, *columns)])
        product = n.emit("mul", n.reshape(x, shape(batch + rows) + (1,) * len(columns)), n.reshape(y, shape(batch) + (1,) * len(rows) + shape(columns)))
        return "".join(batch + rows + columns), product
    y = n.transpose(y, [b.index(c) for c in (*batch, *inner, *columns)])
    m, k, p = (math.prod(shape(letters)) for letters in (rows, inner, columns))
    product = n.emit("matmul", n.reshape(x, (*shape(batch), m, k)), n.reshape(y, (*shape(batch), k, p)))
    return "".join(batch + rows + columns), n.reshape(product, shape(batch + rows + columns))
