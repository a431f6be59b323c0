"""Finds outputs that may use the memory of an input: caches that a run extends."""

from __future__ import annotations

from dataclasses import replace

from pelton.engine.plan import EnginePlan, Step

CACHE, RESULT = 0, 4  # the arguments of cache_write's kernel


def with_shared_memory(plain: EnginePlan) -> EnginePlan:
    """Marks each output that a `cache_write` extends from an input which no other step reads."""
    if "cache_write" not in {step.info.get("op") for step in plain.steps}:
        return plain
    readers: dict[int, int] = {}
    for step in plain.steps:
        for buffer in _buffers(step):
            readers[buffer] = readers.get(buffer, 0) + 1
    shares: dict[int, str] = {}
    for step in plain.steps:
        if step.info.get("op") != "cache_write" or step.alternatives:
            continue
        cache, result = (plain.buffers[step.args[i].buffer] for i in (CACHE, RESULT))
        if cache.kind == "input" and result.kind == "output" and readers[step.args[CACHE].buffer] == 1:
            shares[_number(result.offset)] = plain.inputs[_number(cache.offset)].name
    outputs = tuple(replace(p, shares=shares.get(i)) for i, p in enumerate(plain.outputs))
    return replace(plain, outputs=outputs)


def _buffers(step: Step) -> set[int]:
    """Returns the buffers that a step, or one of its alternatives, touches."""
    slices = [one for kernel in step.kernels for one in kernel.args]
    tensors = [t.slice for kernel in step.kernels for t in (*kernel.inputs, *kernel.outputs)]
    return {one.buffer for one in (*slices, *tensors)}


def _number(offset: object) -> int:
    assert isinstance(offset, int)  # a port's number
    return offset
