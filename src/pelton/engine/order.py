"""Dependencies between steps: on the writers of their operands, and on all users of memory that they reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .plan import Step

Span = tuple[int, int]  # from, to, in bytes


def waits(steps: Sequence[Step], spans: Mapping[int, Span], scratch: Sequence[Span]) -> list[list[int]]:
    """Returns, for each kernel, the earlier ones that it waits for, by number, without those that another of them
    already waits for.

    spans: ranges of the buffers that share memory; scratch: each step's own. Steps of one wave never wait for each
    other, and no element of a buffer is written twice: the parts of a joined buffer may be written at once. A step
    without declared outputs may write to all its operands.
    """
    waits: list[list[int]] = []
    after: list[int] = []  # all that each waits for, as the bits of a number
    wrote, used = Counter[int](), Counter[int]()  # buffer → steps, as such bits
    beside = _overlapping(spans)
    before = this = 0  # the steps of earlier waves, those of this one
    for i, step in enumerate(steps):
        if i and step.wave != steps[i - 1].wave:
            before, this = before | this, 0
        operands, written = Counter(a.buffer for a in step.args), Counter(t.slice.buffer for t in step.outputs)
        need = 0
        for b, times in operands.items():
            need |= wrote[b] if times > written[b] else 0
            need |= used[b] if not written else 0
            for other in beside.get(b, ()):
                need |= used[other]
        for k in range(i) if scratch[i][0] < scratch[i][1] else ():
            if scratch[k][0] < scratch[i][1] and scratch[i][0] < scratch[k][1]:
                need |= 1 << k
        need &= before
        direct, left = list[int](), need
        while left:
            last = left.bit_length() - 1
            direct.append(last)
            left &= ~(after[last] | 1 << last)
            need |= after[last]
        waits.append(direct[::-1])
        after.append(need)
        for b in operands:
            used[b] |= 1 << i
        for b in written or operands:
            wrote[b] |= 1 << i
        this |= 1 << i
    return waits


def _overlapping(spans: Mapping[int, Span]) -> dict[int, list[int]]:
    """Returns buffer → the others that overlap it in memory."""
    keys = np.array(list(spans), np.int64)
    begin, end = np.array(list(spans.values()), np.int64).reshape(-1, 2).T
    common = (begin[:, None] < end) & (begin < end[:, None]) & (begin < end) & (begin < end)[:, None]
    np.fill_diagonal(common, False)
    return {int(keys[i]): keys[row].tolist() for i, row in enumerate(common) if row.any()}
