"""Damaged TFLite files: bytes, offsets and sizes changed, truncated, or copied over each other."""

from __future__ import annotations

import functools
import random
import struct

import numpy as np
from tflite_detection import detector
from tflite_models import ModelWriter

from pelton.importers.network import imported
from pelton.importers.tflite import read, unread
from pelton.ir.imported import OnData
from pelton.partition.partition import partition_model

from . import cases

ODD = (0, 1, 2, 4, 127, 128, 255, 256, 65535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 4)
PLANNED = 4  # of so many damaged files that can be read, one is planned


@functools.cache
def originals() -> tuple[bytes, ...]:
    """Small models with what files have: quantization, sparse constants, variables, subgraphs, signatures."""
    from tflite_blocks import fully_connected
    from tflite_operators import CASES
    from tflite_values_computed import VALUES

    drawn = [
        c for c in CASES if c.op in ("CONV_2D", "TRANSPOSE_CONV", "STRIDED_SLICE", "PAD", "RESHAPE", "SPLIT_V", "TILE")
    ]
    plain = [c.model(c.results(c.feeds())) for c in drawn]
    plain += [c.model() for c in VALUES if c.op in ("TOPK_V2", "TRANSPOSE", "STRIDED_SLICE", "WHERE")]
    plain += [fully_connected(block=32, zeros=zeros)[0] for zeros in (False, True)]
    return (*plain, _stateful(), _sparse(), _loop(), detector(1)[0])


def _stateful() -> bytes:
    w = ModelWriter()
    x = w.main.input((1, 3), signature=(-1, 3), name="x")
    handle, value, truth = w.main.tensor((), "resource"), w.main.tensor((1, 3)), w.main.constant(np.asarray(True))
    y, z = w.main.tensor((1, 3)), w.main.output((1, 3), name="z")
    w.main.op("CALL_ONCE", [], [], "CallOnceOptions", subgraph=1)
    w.main.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="total")
    w.main.op("READ_VARIABLE", [handle], [value])
    w.main.op("ADD", [x, value], [y], "AddOptions", activation=1)
    w.main.op("ASSIGN_VARIABLE", [handle, y], [])
    w.main.op("IF", [truth, y], [z], "IfOptions", then=2, other=2)
    first, branch = w.subgraph("first"), w.subgraph("branch")
    there, constant = first.tensor((), "resource"), first.constant(np.ones((1, 3), np.float32))
    first.op("VAR_HANDLE", [], [there], "VarHandleOptions", shared_name="total")
    first.op("ASSIGN_VARIABLE", [there, constant], [])
    branch.op("NEG", [branch.input((1, 3))], [branch.output((1, 3))])
    w.signature("main", 0, {"x": x}, {"z": z})
    return w.bytes()


def _loop() -> bytes:
    w = ModelWriter()
    x, limit, count = w.main.input((1, 3)), w.main.input((), "i32"), w.main.constant(np.asarray(0, np.int32))
    results = w.main.tensor((), "i32"), w.main.tensor((), "i32"), w.main.output((1, 3))
    w.main.op("WHILE", [count, limit, x], results, "WhileOptions", condition=1, body=2)
    condition, body = w.subgraph("condition"), w.subgraph("body")
    i, most, _ = condition.input((), "i32"), condition.input((), "i32"), condition.input((1, 3))
    condition.op("LESS", [i, most], [condition.output((), "bool")])
    i, most, value = body.input((), "i32"), body.input((), "i32"), body.input((1, 3))
    body.op("ADD", [i, body.constant(np.asarray(1, np.int32))], [body.output((), "i32")], "AddOptions")
    body.outputs.append(most)
    body.op("NEG", [value], [body.output((1, 3))])
    return w.bytes()


def _sparse() -> bytes:
    w = ModelWriter()
    x, y = w.main.input((3, 4)), w.main.output((3, 4))
    axes = [dict(format=0, size=3), dict(format=1, segments_type=3, indices_type=3)]
    axes[1] |= {k: ("Uint8Vector", dict(values=v)) for k, v in (("segments", [0, 2, 2, 4]), ("indices", [2, 3, 0, 1]))}
    stored = np.asarray([1, 2, 3, 4], np.float32)
    t = w.main.tensor((3, 4), data=stored, sparsity=dict(order=[0, 1], axes=axes))
    w.main.op("ADD", [x, t], [y], "AddOptions")
    return w.bytes()


def damaged(seed: int) -> bytes:
    rng = random.Random(seed)
    data = bytearray(rng.choice(originals()))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if len(data) <= 8:
            break
        at = rng.randrange(8, len(data))
        how = rng.randrange(6)
        if how == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 1:
            at &= ~3
            data[at : at + 4] = struct.pack("<I", rng.choice(ODD))
        elif how == 2:  # a little more or less
            at &= ~3
            value = int.from_bytes(data[at : at + 4], "little") + rng.randrange(-8, 9)
            data[at : at + 4] = struct.pack("<I", value % (1 << 32))
        elif how == 3:
            other, size = rng.randrange(len(data)), rng.choice((2, 4, 8, 32))
            data[at : at + size] = data[other : other + size]
        elif how == 4:
            data[at : at + 2] = struct.pack("<H", rng.choice(ODD) % 65536)
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def case(seed: int) -> str:
    """The case of damaged TFLite files: "read", "planned", a "script", or refused."""
    data = damaged(seed)
    try:
        net = read(data)
    except OnData:
        partition_model(unread(data))
        return "script"
    if seed % PLANNED:
        return "read"
    cases.planned(imported(net))
    return "planned"
