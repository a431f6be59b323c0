"""Finds outputs that may use the memory of an input: caches that a run extends, states that it updates, and on
micro-controllers what a kernel adds to."""

from __future__ import annotations

from dataclasses import replace

from pelton.codegen.template import Kernel, Template
from pelton.engine.plan import EnginePlan, Step
from pelton.ir.dims import is_known
from pelton.plan.placed import Task

# op → the operand and the argument of its kernel that may be the same memory, and the number of its result
IN_PLACE = {"cache_write": (0, 4, 0), "delta_rule": (5, 7, 1)}


def with_shared_memory(plain: EnginePlan) -> EnginePlan:
    """Marks each output that a step of `IN_PLACE` makes from an input which no other step reads."""
    if not IN_PLACE.keys() & {step.info.get("op") for step in plain.steps}:
        return plain
    readers: dict[int, int] = {}
    for step in plain.steps:
        for buffer in _buffers(step):
            readers[buffer] = readers.get(buffer, 0) + 1
    shares: dict[int, str] = {}
    for step in plain.steps:
        arguments = IN_PLACE.get(str(step.info.get("op")))
        if arguments is None or step.host or step.alternatives:
            continue
        before, after = (plain.buffers[step.args[i].buffer] for i in arguments[:2])
        if before.kind == "input" and after.kind == "output" and readers[step.args[arguments[0]].buffer] == 1:
            shares[_number(after.offset)] = plain.inputs[_number(before.offset)].name
    outputs = tuple(replace(p, shares=shares.get(i)) for i, p in enumerate(plain.outputs))
    return replace(plain, outputs=outputs)


def overwritten(task: Task, kernel: Kernel, template: Template) -> list[tuple[int, int]]:
    """Returns (operand, result) for each operand of a kernel whose memory its result may use, as positions among its
    arguments: the tail reads an element of it, and then stores the result's element at the same place."""
    region, pairs = task.region, list[tuple[int, int]]()
    if not template.each_once or region.pieces:
        return pairs
    by_anchors = {v for n in region.anchors for v in n.inputs}
    places = {v: i for i, v in enumerate(kernel.operands) if v in task.layouts}
    for y in region.body.outputs:
        for e in region.body.inputs:
            alike = e.type.shape == y.type.shape and e.type.dtype.size == y.type.dtype.size
            if not alike or e in by_anchors or not {e, y} <= places.keys() or not is_known(*e.type.shape):
                continue
            if task.layouts[e] == task.layouts[y] and 0 not in task.layouts[y]:
                pairs.append((places[e], places[y]))
    return pairs


def _buffers(step: Step) -> set[int]:
    """Returns the buffers that a step, or one of its alternatives, touches."""
    slices = [one for kernel in step.kernels for one in kernel.args]
    tensors = [t.slice for kernel in step.kernels for t in (*kernel.inputs, *kernel.outputs)]
    return {one.buffer for one in (*slices, *tensors)}


def _number(offset: object) -> int:
    assert isinstance(offset, int)  # a port's number
    return offset
