"""Einstein's sums as products of matrices: operands are contracted from left to right."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from pelton.errors import InputError
from pelton.ir.dims import Size

from .layers import Layers
from .tensor import NetworkTensor

Labelled = tuple[str, NetworkTensor]  # a letter for each axis


def einsum(net: Layers, equation: str, operands: Sequence[NetworkTensor], name: str) -> NetworkTensor:
    """Computes the tensor of an equation; InputError if it does not fit the operands."""
    inputs, output = _parsed(equation, operands)
    rest = list(zip(inputs, operands))
    sizes = dict[str, Size]()
    for letters, x in rest:
        for letter, size in zip(letters, x.shape):
            if sizes.setdefault(letter, size) != size:
                raise InputError(
                    f"einsum {equation!r} needs one size for {letter!r}, got {sizes[letter]} and {size}; sizes of 1 do"
                    " not broadcast"
                )
    term = rest.pop(0)
    while rest:
        other = rest.pop(0)
        term = _product(net, term, other, {*output, *(c for letters, _ in rest for c in letters)}, sizes)
    letters, x = _summed(net, term, set(output))
    perm = [letters.index(c) for c in output]
    return net.transpose(x, perm, name=name) if name else net.transpose(x, perm)


def _parsed(equation: str, operands: Sequence[NetworkTensor]) -> tuple[list[str], str]:
    text = equation.replace(" ", "")
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)*(->[A-Za-z]*)?", text):
        raise InputError(f"an equation of einsum must be like 'bik,bkj->bij', letters alone, got {equation!r}")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if not arrow:
        output = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    if [len(letters) for letters in inputs] != [x.rank for x in operands]:
        raise InputError(f"einsum {equation!r} does not fit {', '.join(map(repr, operands)) or 'no operands'}")
    if any(len(set(letters)) < len(letters) for letters in (*inputs, output)) or not set(output) <= set(left):
        raise InputError(f"einsum {equation!r} must have no letter twice in an operand, and name those of the result")
    return inputs, output


def _summed(net: Layers, of: Labelled, kept: set[str]) -> Labelled:
    """Sums over the letters that nothing else reads."""
    letters, x = of
    axes = tuple(i for i, c in enumerate(letters) if c not in kept)
    if not axes:
        return of
    (x,) = net.apply("reduce_sum", (x,), dict(axes=axes, keepdims=False))
    return "".join(c for c in letters if c in kept), x


def _product(net: Layers, a: Labelled, b: Labelled, kept: set[str], sizes: dict[str, Size]) -> Labelled:
    """Multiplies two matrices, batched by the letters that both have and that are kept."""
    a, b = _summed(net, a, {*b[0], *kept}), _summed(net, b, {*a[0], *kept})
    batch = "".join(c for c in a[0] if c in b[0] and c in kept)
    inner = "".join(c for c in a[0] if c in b[0] and c not in kept)
    rows, columns = ("".join(c for c in one if c not in other) for one, other in ((a[0], b[0]), (b[0], a[0])))

    def matrix(of: Labelled, first: str, second: str) -> NetworkTensor:
        letters, x = of
        x = net.transpose(x, [letters.index(c) for c in batch + first + second])
        shape = (math.prod(sizes[c] for c in part) for part in (first, second))
        return net.reshape(x, (*(sizes[c] for c in batch), *shape))

    (y,) = net.apply("matmul", (matrix(a, rows, inner), matrix(b, inner, columns)))
    return batch + rows + columns, net.reshape(y, [sizes[c] for c in batch + rows + columns])
