"""The order of axes of a value's tensors: transposes and reshapes that only relabel axes cost nothing.

A value may have several forms, each a tensor by the order of its axes: form (0, 2, 3, 1) of an image [batch, channels,
height, width] is TFLite's image. A transpose of the program renames the forms of its operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pelton.ir.dims import Size, Undecided

Perm = tuple[int, ...]


def identity(rank: int) -> Perm:
    return tuple(range(rank))


def channels_last(rank: int) -> Perm:
    return (0, *range(2, rank), 1)


def inverse_of(perm: Perm) -> Perm:
    return tuple(perm.index(i) for i in range(len(perm)))


def arranged(sizes: Sequence[Size], perm: Perm) -> tuple[Size, ...]:
    return tuple(sizes[a] for a in perm)


def is_relabeling(shape: Sequence[Size], before: Perm, after: Perm) -> bool:
    """True if elements lie in the same order in both forms, as only axes of size 1 change places."""
    one, other = ([a for a in perm if shape[a] != 1] for perm in (before, after))
    return one == other


def without(perm: Perm, axes: Sequence[int]) -> Perm:
    """Returns the form of a value that has lost these axes."""
    kept = [a for a in range(len(perm)) if a not in axes]
    return tuple(kept.index(a) for a in perm if a in kept)


def blocks(before: Sequence[Size], after: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Splits a reshape into independent ones: the axes before, and those that they become, in order."""
    result, i, j = list[tuple[list[int], list[int]]](), 0, 0
    try:
        while i < len(before) and j < len(after):
            ins, outs, a, b = [i], [j], before[i], after[j]
            i, j = i + 1, j + 1
            while a != b:
                if a < b:
                    ins.append(i)
                    a, i = a * before[i], i + 1
                else:
                    outs.append(j)
                    b, j = b * after[j], j + 1
            result.append((ins, outs))
    except (Undecided, IndexError):  # one block of all axes that are left
        used = [sum(len(block[side]) for block in result) for side in (0, 1)]
        ins, outs = list(range(used[0], len(before))), list(range(used[1], len(after)))
        return [*result, (ins, outs)]
    if i < len(before) or j < len(after):
        rest = (list(range(i, len(before))), list(range(j, len(after))))
        if result:
            result[-1] = (result[-1][0] + rest[0], result[-1][1] + rest[1])
        else:
            result = [rest]
    return result


def reshaped_form(before: Sequence[Size], after: Sequence[Size], perm: Perm) -> Perm | None:
    """Returns the form that a reshape makes of a form of its operand without moving elements; None if there is none."""
    parts = blocks(before, after)
    of = {a: k for k, (ins, _) in enumerate(parts) for a in ins if before[a] != 1}
    order = list[int]()  # blocks with elements, as they follow each other in the form
    seen = dict[int, list[int]]()
    for a in perm:
        if a not in of:
            continue
        k = of[a]
        if k in seen and (order[-1] != k or seen[k][-1] > a):
            return None
        if k not in seen:
            order.append(k)
        seen.setdefault(k, []).append(a)
    for k in range(len(parts)):  # blocks of ones follow the block in front of them
        if k not in seen:
            order.insert(order.index(k - 1) + 1 if k else 0, k)
    return tuple(a for k in order for a in parts[k][1])


def volume(shape: Sequence[Size]) -> int:
    """Returns the number of elements for one element along dynamic dimensions: an estimate of costs."""
    return math.prod(d for d in shape if isinstance(d, int))
