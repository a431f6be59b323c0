"""Layouts of tensors in memory: strides in elements per logical axis, zero padding, and functions of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pelton.ir.dims import Size, at, maximum, symbols
from pelton.ir.graph import Value

Strides = tuple[Size, ...]
Order = tuple[int, ...]  # the axes, outermost first


@dataclass(frozen=True)
class Layout:
    """The layout of a value in its own buffer; zero_padded: all other elements of the buffer are always zero."""

    strides: Strides
    zero_padded: bool = False


@dataclass(frozen=True, eq=False)
class Layouts(Mapping[Value, Strides]):
    """The layouts of values: a mapping to their strides, and the set of zero-padded ones."""

    strides: Mapping[Value, Strides]
    zero_padded: frozenset[Value] = frozenset()

    def __getitem__(self, value: Value) -> Strides:
        return self.strides[value]

    def __iter__(self) -> Iterator[Value]:
        return iter(self.strides)

    def __len__(self) -> int:
        return len(self.strides)

    def moved(self, to: Mapping[Value, Strides], zero_padded: bool = False) -> Layouts:
        """Returns a copy with these strides for these values, old or new, zero-padded or not."""
        others = self.zero_padded - to.keys()
        return Layouts({**self.strides, **to}, others | to.keys() if zero_padded else others)

    def sized(self, sizes: Mapping[str, int], to: Mapping[Value, Value]) -> Layouts:
        """Returns the layouts at these values of the symbols; `to`: replacements of values."""
        strides = {to[v]: tuple(at(s, sizes) for s in steps) for v, steps in self.strides.items()}
        return Layouts(strides, frozenset(to[v] for v in self.zero_padded))


def row_major(rank: int) -> Order:
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Returns the axis order N, spatial…, C of convolution-like kernels."""
    return (0, *range(2, rank), 1) if rank > 2 else row_major(rank)


def last_of(order: Order, rank: int) -> Order:
    """Returns the order of an operand with only the last `rank` axes, aligned as in broadcasting."""
    lead = len(order) - rank
    return tuple(a - lead for a in order if a >= lead)


def dense(shape: Sequence[Size], order: Order | None = None) -> Strides:
    """Returns the strides of a buffer without gaps, axes in this order (row-major by default)."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order if order is not None else row_major(len(shape))):
        strides[axis] = step
        step *= maximum(1, shape[axis])
    return tuple(strides)


def far(stride: Size) -> int:
    """Returns a sort key for a stride: dynamic sizes at their optimum, at least 2, to avoid ties between axes."""
    return at(stride, {s.name: max(2, s.optimum) for s in symbols(stride)})


def order_of(shape: Sequence[Size], strides: Strides) -> Order:
    """Returns the axes by descending absolute stride; axes of size one stay at their row-major position."""
    moving = sorted((a for a in range(len(shape)) if shape[a] != 1), key=lambda a: (-abs(far(strides[a])), a))
    out = list(moving)
    for a in range(len(shape)):
        if shape[a] == 1:
            out.insert(min(a, len(out)), a)
    return tuple(out)


def is_dense(shape: Sequence[Size], strides: Strides) -> bool:
    """Returns True if the tensor fills its memory without gaps or overlaps, in any order of axes."""
    step = 1
    for a in sorted((a for a in range(len(shape)) if shape[a] != 1), key=lambda a: (far(strides[a]), -a)):
        if strides[a] != step:
            return False
        step *= shape[a]
    return True


def same_memory(shape: Sequence[Size], a: Strides, b: Strides) -> bool:
    """Returns True if both strides give every element the same offset (axes of size one do not matter)."""
    return all(d == 1 or x == y for d, x, y in zip(shape, a, b))


def span(shape: Sequence[Size], strides: Strides) -> Size:
    """Returns the number of elements from the first to past the last one."""
    return 0 if 0 in shape else 1 + sum((d - 1) * s for d, s in zip(shape, strides))


def first_element(shape: Sequence[Size], strides: Strides) -> Size:
    """Returns the number of elements from the lowest address to the first one; not 0 if a stride is negative."""
    return sum((d - 1) * -s for d, s in zip(shape, strides) if s < 0)


def broadcast(shape: Sequence[Size], strides: Strides, to: Sequence[Size]) -> Strides:
    """Returns the strides of a tensor broadcast to a shape as numpy does; repeated axes get stride 0."""
    lead = len(to) - len(shape)
    return tuple(0 if i < lead or (shape[i - lead] == 1 and to[i] != 1) else strides[i - lead] for i in range(len(to)))


def reshaped(shape: Sequence[Size], strides: Strides, to: Sequence[Size]) -> Strides | None:
    """Returns the strides of a reshape without a copy, or None if it needs one."""
    if 0 in shape or tuple(strides) == dense(shape):  # for all sizes
        return dense(to)
    old = [(d, s) for d, s in zip(shape, strides) if d != 1]
    # runs of old axes that are contiguous in memory
    groups: list[list[Size]] = []
    for d, s in old:
        if groups and groups[-1][1] == d * s:
            groups[-1][0] *= d
            groups[-1][1] = s
        else:
            groups.append([d, s])
    out, axis = [0] * len(to), len(to) - 1
    while groups:
        size, step = groups.pop()
        while size != 1:
            while axis >= 0 and to[axis] == 1:
                out[axis] = step
                axis -= 1
            if axis < 0 or size % to[axis]:
                return None
            out[axis] = step
            step *= to[axis]
            size //= to[axis]
            axis -= 1
    while axis >= 0:
        if to[axis] != 1:
            return None
        axis -= 1
    # axes of size one: any stride works; use the row-major one
    for a in range(len(to) - 1, -1, -1):
        if to[a] == 1:
            out[a] = out[a + 1] * to[a + 1] if a + 1 < len(to) else 1
    return tuple(out)


def collapse(sizes: Sequence[Size], many: Sequence[Sequence[Size]]) -> tuple[list[int], list[list[int]]]:
    """Joins adjacent axes that are contiguous in all of the strides: (sizes, strides per operand)."""
    out: list[int] = []
    steps: list[list[int]] = [[] for _ in many]
    for a, d in enumerate(sizes):
        if d == 1:
            continue
        if out and all(s[-1] == d * t[a] for s, t in zip(steps, many)):
            out[-1] *= d
            for s, t in zip(steps, many):
                s[-1] = t[a]
        else:
            out.append(d)
            for s, t in zip(steps, many):
                s.append(t[a])
    return out, steps
