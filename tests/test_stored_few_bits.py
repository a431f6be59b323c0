"""Operators with weights of few bits: as documented in float64, and constants as long as the packed bits."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Case, floats, judge, node
from test_microsoft_experts import quantized_mixture
from onnx_models import MICROSOFT as MS
from onnx_models import model as onnx_model
from onnx_models import node as onnx_node
from test_microsoft_few_bits import four_bit_floats, packed

import pelton
from pelton.engine.constants import length
from pelton.errors import ModelError
from pelton.importers.onnx.load import load


def check_engine(make, most: float, op: str, few: float = 2e-5) -> None:
    """The engine beside what was expected; its constants have at most so many bits for each weight of `op`."""
    model, fed, (want,) = make(np.random.default_rng(7))
    graph = load(model).graph
    numbers = sum(n.inputs[1].type.size * 8 // n.attrs.get("bits", 4) for n in graph.nodes if n.op.name == op)
    engine = pelton.build(model, level=0, threads=1)
    (got,) = engine.run(fed).values()
    assert np.abs(got - want).max() <= few * np.abs(want).max()
    assert 0 < engine.constants.nbytes * 8 <= most * numbers


# --- blocks of scattered elements


def _scattered(of, zeros=None, bits=4, columns=70, size=32, rows=3, bias=False):
    """of: the block of each element, or a function of the generator that gives them."""

    def make(rng) -> Case:
        at = of(rng)
        inner, blocks = len(at), -(-len(at) // size)
        q, s = rng.integers(0, 1 << bits, (columns, blocks * size)), rng.uniform(0.05, 0.2, (columns, blocks))
        s, z = s.astype(np.float32), rng.integers(0, 1 << bits, (columns, blocks)).astype(np.float32)
        points = np.full_like(z, 1 << (bits - 1)) if zeros is None else z
        w = (q[:, :inner] - points[:, at]) * s.astype(float)[:, at]
        a, b = floats(rng, 2, rows, inner), packed(q, bits).reshape(columns, blocks, -1)
        c = floats(rng, columns)
        given = {None: None, "floats": z, "bytes": z.astype(np.uint8)}[zeros]
        want = a.astype(float) @ w.T + (c if bias else 0)
        operands = [("fed", a), b, s, given, at.astype(np.int32), *([c] if bias else [])]
        return node("MatMulNBits", operands, [want], K=inner, N=columns, bits=bits, block_size=size)

    return make


def by_activation(inner, size=32):
    """The order of weights by activation: each block is full but the last one."""
    return lambda rng: rng.permutation(np.arange(inner) // size)


SCATTERED = {
    "full blocks": _scattered(by_activation(256)),
    "a short block": _scattered(by_activation(333), bias=True),
    "one row": _scattered(by_activation(512), rows=1),
    "floats as zero points": _scattered(by_activation(333), zeros="floats"),
    "bytes as zero points": _scattered(by_activation(256), zeros="bytes", bits=8),
    "two bits": _scattered(by_activation(320, 16), size=16, bits=2),
    "blocks in order": _scattered(lambda rng: np.arange(256) // 32),
    "blocks backwards": _scattered(lambda rng: np.arange(250)[::-1] // 32),
    "uneven blocks": _scattered(lambda rng: rng.integers(0, 8, 256)),
    "empty and long blocks": _scattered(lambda rng: rng.choice([0, 3, 7], 250, p=[0.7, 0.1, 0.2])),
}


@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_blocks(name):
    judge(SCATTERED[name])
    # scales of 32 numbers are a bit each in f32, panels of 32 columns are filled up, and places of columns have 64 bits
    check_engine(SCATTERED[name], {"bytes as zero points": 15, "two bits": 12}.get(name, 10), "quantized_linear")


def test_blocks_in_order_need_no_gather():
    model, _, _ = SCATTERED["blocks in order"](np.random.default_rng(0))
    assert [n.op.name for n in load(model).graph.nodes] == ["quantized_linear"]


@pytest.mark.parametrize("at", [[8] * 256, [-1] * 256, [0] * 255])
def test_blocks_that_are_none(at):
    model, _, _ = _scattered(lambda rng: np.zeros(256, int))(np.random.default_rng(0))
    indices = model.graph.initializer[-1]
    indices.raw_data, indices.dims[0] = np.array(at, np.int32).tobytes(), len(at)
    with pytest.raises(ModelError, match="256 indices below 8 as g_idx"):
        load(model)


# --- codes of a table


def _numbered(kind, inner, columns, size, rows=3):
    def make(rng) -> Case:
        return four_bit_floats(rng, kind, inner=inner, columns=columns, size=size, rows=rows)

    return make


NUMBERED = {
    "nf4": _numbered(1, 320, 70, 64),
    "fp4": _numbered(0, 256, 96, 64),
    "one row": _numbered(1, 512, 70, 64, rows=1),
    "blocks of several rows": _numbered(1, 96, 70, 192),
    "blocks across rows": _numbered(0, 208, 70, 64),
    "short rows": _numbered(1, 30, 512, 60),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_codes_of_a_table(name):
    judge(NUMBERED[name])
    check_engine(NUMBERED[name], 12, "codebook_linear")


def test_blocks_that_begin_within_rows_are_unpacked():
    make = _numbered(1, 33, 64, 16)
    model, _, _ = make(np.random.default_rng(0))
    assert not any(n.op.name == "codebook_linear" for n in load(model).graph.nodes)
    judge(make)


# --- experts

MIXED = {
    "rows": dict(),
    "blocks with zero points": dict(size=16, zeros=True),
    "bytes with zero points": dict(bits=8, size=32, zeros=True),
    "rows of bytes with zero points": dict(bits=8, zeros=True),
    "two bits": dict(bits=2, size=16),
    "another router": dict(size=32, others=True, normalize=1),
    "a layer of its own": dict(size=32, apart=True),
    "one token": dict(size=32, tokens=1),
    "no biases": dict(size=32, biased=False),
}


@pytest.mark.parametrize("name", MIXED)
def test_experts(name):
    of = dict(hidden=96, inner=160) | MIXED[name]
    make = lambda rng: quantized_mixture(rng, **of)  # noqa: E731
    judge(make)
    check_engine(make, 20 if of.get("bits") == 8 else 13, "quantized_linear")


@pytest.mark.parametrize("of", [dict(inner=40), dict(hidden=40, inner=48, size=8)])
def test_experts_in_other_blocks_are_unpacked(of):
    make = lambda rng: quantized_mixture(rng, **of)  # noqa: E731
    model, _, _ = make(np.random.default_rng(0))
    assert not any(n.op.name == "quantized_linear" for n in load(model).graph.nodes)
    judge(make)


def test_hidden_values_of_other_experts_do_not_count():
    """Not even where they overflow."""
    model, fed, _ = quantized_mixture(np.random.default_rng(1), hidden=64, inner=32, size=32)
    fed["x1"] = np.tile(np.array([-9, 9, 1, 2, 3], np.float32), (6, 1))  # of experts, no token selects the first
    (want,) = pelton.build(model, level=0, threads=1).run(fed).values()
    scales = next(t for t in model.graph.initializer if t.name == "x3")
    numbers = np.frombuffer(scales.raw_data, np.float32).reshape(scales.dims).copy()
    numbers[0] = 3e38
    scales.raw_data = numbers.tobytes()
    (got,) = pelton.build(model, level=0, threads=1).run(fed).values()
    assert np.isfinite(got).all() and np.allclose(got, want, rtol=1e-6, atol=1e-6)


# --- tables that the last product reads, too


def _tied(zeros: bool, bits=4, rows=331, width=96, tied=True, out_of_range=False, rounds=False):
    """Rows of a table times the table; `tied`: both are the same; `rounds`: the product may round its rows."""

    def make(rng) -> Case:
        blocks = width // 32
        q, s = rng.integers(0, 1 << bits, (2, rows, width)), rng.uniform(0.05, 0.2, (2, rows, blocks))
        z = rng.integers(0, 1 << bits, s.shape) if zeros else np.full(s.shape, 1 << (bits - 1))
        s, which = s.astype(np.float32 if rounds else np.float16).astype(np.float32), 0 if tied else 1
        w = (q - z.repeat(32, 2)) * s.astype(float).repeat(32, 2)
        at = rng.integers(-rows, rows, (2, 5))
        at[0, 0] = rows + 3 if out_of_range else 0
        x = np.where((at < rows)[..., None], w[0][np.where(at < rows, at, 0)], 0)
        points = lambda i: {"z" + str(i): packed(z[i], bits)} if zeros else {}  # noqa: E731
        constants = dict(w0=packed(q[0], bits), s0=s[0], **points(0))
        if not tied:
            constants |= dict(w1=packed(q[1], bits), s1=s[1], **points(1))
        constants["shape"] = np.array([rows, blocks, 4 * bits])
        names = [f"{n}{which}" for n in ("s", *("z" * zeros))]
        of_product = dict(K=width, N=rows, bits=bits, block_size=32, accuracy_level=4 if rounds else 0)
        nodes = [
            onnx_node("GatherBlockQuantized", f"w0 at s0 {'z0' * zeros}", "x", bits=bits, block_size=32, domain=MS),
            onnx_node("Reshape", f"w{which} shape", "blocks"),
            onnx_node("MatMulNBits", f"x blocks {' '.join(names)}", "y", **of_product, domain=MS),
        ]
        model = onnx_model(nodes, {"at": "i64[2, tokens]"}, ["x", "y"], constants, domains={MS: 1})
        return model, dict(at=at), [x, x @ w[which].T]

    return make


TIED = {
    "middle": _tied(False),
    "zero points": _tied(True),
    "bytes": _tied(True, bits=8),
    "two bits": _tied(False, bits=2),
    "beyond the table": _tied(False, out_of_range=True),
    "rounded": _tied(True, rounds=True),
}


@pytest.mark.parametrize("name", [*TIED, "apart"])
@pytest.mark.parametrize("profiles", [False, True])
def test_tables_of_products_are_stored_once(name, profiles):
    model, fed, want = (TIED.get(name) or _tied(False, tied=False))(np.random.default_rng(5))
    tokens = dict(one={"at": (2, 1)}, many={"at": (2, "1..5..9")}) if profiles else None
    engine = pelton.build(model, level=0, threads=1, shapes={"at": (2, "1..5..9")}, profiles=tokens)
    for at in ({"at": fed["at"][:, :1]}, fed):
        got = engine.run(at)
        for i, whole in zip("xy", want):
            expected = whole[:, : at["at"].shape[1]]
            within = {"x": 2.0**-11, "y": 1e-2}[i] if name == "rounded" else 2e-5
            assert got[i].shape == expected.shape and np.abs(got[i] - expected).max() <= within * np.abs(expected).max()
    bits = {"bytes": 8}.get(name, 4)
    numbers = 331 * 96  # in panels of 16 or 32 rows, with scales of 16 bits, and zero points
    once = numbers * (bits / 8 + 2 / 32 + (name in ("zero points", "rounded") or bits == 8) / 32)
    stored = length(engine.script.constants if profiles else engine.plain.constants)
    assert once <= stored < 1.3 * once if name != "apart" else stored > 1.8 * once
