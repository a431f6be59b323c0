"""Kernels of recurrent layers."""

from __future__ import annotations

import dataclasses

import kernel_harness
import numpy as np
import pytest
from kernel_harness import CASES, Case, check, declare, program, region_of, varying, walk
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import MICROSOFT, model

import pelton
from pelton.ir.types import F16
from pelton.codegen.c.templates.rnn_int8 import in_bytes
from pelton.codegen.template import TEMPLATES

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def halves(r: np.ndarray) -> np.ndarray:
    """Weights that are what they are in half precision, too."""
    return r.astype(np.float16).astype(np.float32)


def bytes_by_scale(rng: np.random.Generator, directions: int, width: int, hidden: int, per_row: bool) -> np.ndarray:
    """Weights of a byte by a scale of each direction or row, as a quantizer leaves them: the largest are ±127."""
    w = rng.integers(-127, 128, (directions, width, hidden)).astype(np.float32)
    w[..., 0] = rng.choice([-127, 127], w.shape[:2])
    scale = rng.uniform(0.5, 1, (directions, width if per_row else 1, 1)).astype(np.float32)
    return w * (scale / np.float32(60 * np.sqrt(hidden)))


def steps(
    op,
    time,
    batch,
    hidden,
    direction="forward",
    keep=("y", "last_h", "last_c"),
    orders=None,
    peepholes=False,
    fed=False,
    weights=None,
    **attrs,
):
    """A case of <op>_steps; of its outputs only those in `keep` are read. fed: the recurrent weights are an input."""
    rng = np.random.default_rng(0)
    d, width = 2 if direction == "bidirectional" else 1, GATES[op] * hidden
    state = f"f32[{d}, {batch}, {hidden}]"
    operands = dict(
        g=f"f32[{time}, {batch}, {d * width}]", r=halves(rng.standard_normal((d, width, hidden)) / np.sqrt(hidden))
    )
    if weights is not None:
        operands["r"] = bytes_by_scale(rng, d, width, hidden, weights == "rows")
    given = dict(r=operands["r"]) if fed else {}
    if fed:
        operands["r"] = f"f32[{d}, {width}, {hidden}]"
    if op == "gru":
        operands["b"] = rng.standard_normal((d, hidden)).astype(np.float32)
    operands["h"] = state
    if op == "lstm":
        operands |= dict(c=state, p=f"f32[{d}, {3 * hidden}]" if peepholes else np.zeros((d, 3 * hidden), np.float32))
    outputs = ("y", "last_h", "last_c")[: 3 if op == "lstm" else 2]
    graph = program(
        (" ".join(outputs), f"{op}_steps", " ".join(operands), dict(direction=direction, **attrs)), **operands
    )
    name = "-".join([op, f"{time}x{batch}x{hidden}", direction, *keep, *attrs, *["fed"] * fed, weights or ""])
    return Case(name, graph.replace(outputs=tuple(v for v in graph.outputs if v.name in keep)), orders or {}, given)


def cases(op, *variants):
    """The awkward sizes, and what is the op's own."""
    turned = dict(g=(1, 0, 2), h=(1, 0, 2), c=(1, 0, 2))
    return [
        steps(op, 7, 1, 19),
        steps(op, 4, 1, 24, "reverse"),
        steps(op, 3, 1, 70, "bidirectional", ("y",)),
        steps(op, 1, 2, 33),
        steps(op, 2, 2, 150),
        steps(op, 3, 3, 8, "bidirectional", ("last_h",)),
        steps(op, 3, 4, 19, "bidirectional", orders=turned),
        steps(op, 5, 7, 17, "reverse", ("y", "last_h")),
        steps(op, 2, 13, 40, clip=0.5),
        steps(op, 4, 1, 1, "bidirectional"),
        *(steps(op, *size, **v) for v in variants for size in ((4, 1, 21), (3, 5, 33, "bidirectional"))),
    ]


def of_any_length(op, inputs, operands, outputs):
    """A case of <op>_steps whose time and batch a run decides."""
    r = halves(np.random.default_rng(0).standard_normal((2, GATES[op] * 19, 19)) / 4)
    body = (
        f"%r = constant f32{list(r.shape)}",
        f'{outputs} = {op}_steps(%g, %r, {operands}) {{direction="bidirectional"}}',
    )
    return [
        varying(
            f"%g: f32[{time}, {batch}, {2 * r.shape[1]}], %h: f32[2, {batch}, 19]{inputs.format(batch)}", *body, r=r
        )
        for time, batch in (("n", "m"), ("m", "n"))
    ]


declare(
    "lstm",
    *of_any_length("lstm", ", %c: f32[2, {}, 19], %p: f32[2, 57]", "%h, %c, %p", "%y, %last_h, %last_c"),
    *cases("lstm", dict(peepholes=True), dict(input_forget=True, peepholes=True, clip=0.3), dict(keep=("last_c",))),
)
declare(
    "gru",
    *of_any_length("gru", ", %b: f32[2, 19]", "%b, %h", "%y, %last_h"),
    *cases("gru", dict(linear_before_reset=True), dict(linear_before_reset=True, clip=0.3)),
    steps("gru", 2, 1, 150, linear_before_reset=True),
    steps("gru", 3, 2, 70, linear_before_reset=True),
)
declare("rnn", *of_any_length("rnn", "", "%h", "%y, %last_h"), *cases("rnn", dict(activation="Relu")))
for op in GATES:
    declare(f"{op}_half", *CASES[op][::3])
    declare(
        op,
        steps(op, 3, 2, 70, "bidirectional", fed=True),
        steps(op, 4, 5, 19, fed=True),
        steps(op, 2, 1, 24, "reverse", fed=True),
    )
declare(
    "lstm_bytes",
    steps("lstm", 7, 1, 19, weights="direction"),
    steps("lstm", 4, 1, 24, "reverse", weights="rows"),
    steps("lstm", 3, 3, 70, "bidirectional", ("y",), weights="direction", peepholes=True),
    steps("lstm", 3, 4, 33, "bidirectional", weights="rows", orders=dict(g=(1, 0, 2), h=(1, 0, 2), c=(1, 0, 2))),
    steps("lstm", 2, 1, 150, weights="direction", clip=0.5),
    steps("lstm", 2, 2, 1, weights="rows"),
    steps("lstm", 3, 1, 600, weights="direction"),
)
declare("gru", steps("gru", 3, 2, 37, "bidirectional", fed=True, linear_before_reset=True))


@pytest.mark.parametrize(
    "template, case", walk("lstm", "gru", "rnn", "lstm_half", "gru_half", "rnn_half", "lstm_bytes")
)
def test_steps(template, case):
    check(template, case, most=2)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("lstm", {}),
        ("lstm", dict(peepholes=True)),
        ("gru", {}),
        ("gru", dict(linear_before_reset=True)),
        ("rnn", {}),
        ("gru_half", {}),
        ("lstm_bytes", dict(weights="rows")),
    ],
)
@pytest.mark.parametrize(
    "size",
    [
        (5, 1, 150),
        (4, 2, 211, "reverse"),
        (3, 1, 209, "bidirectional"),
        (1, 1, 150),
        (4, 1, 190, "forward", ("last_h",)),
    ],
)
@pytest.mark.parametrize("fed", [False, True])
def test_threads_without_rows_have_shares_of_the_units(op, attrs, size, fed, monkeypatch):
    """Steps of several phases; `check` runs their tiles in order and backwards."""
    template, every = TEMPLATES[op], TEMPLATES[op].tactics
    monkeypatch.setattr(kernel_harness, "TARGET", dataclasses.replace(kernel_harness.TARGET, threads=7))
    monkeypatch.setattr(template, "tactics", lambda *args: (t for t in every(*args) if t["SPLIT"] > 1))
    case = steps(op.partition("_")[0], *size, fed=fed, **attrs)
    if fed and "_" in op:
        pytest.skip("weights in few bits are constants")
    assert check(template, case, most=2) >= 1


@pytest.mark.parametrize("length", ["n", 6])
def test_a_recurrent_layer_runs_in_phases_in_an_engine(length, tmp_path, monkeypatch):
    """The same bits by any number of threads, and for every length that a run decides."""
    every = {op: TEMPLATES[op].tactics for op in GATES}
    for op in GATES:
        monkeypatch.setattr(
            TEMPLATES[op], "tactics", lambda *args, op=op: (t for t in every[op](*args) if t["SPLIT"] == 2)
        )
    rng = np.random.default_rng(0)
    r, w = (halves(rng.standard_normal((1, 4 * 80, n)) / 9) for n in (80, 8))
    m = model(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=80)],
        {"x": f"f32[{length}, 1, 8]"},
        ["y", "h", "c"],
        {"w": w, "r": r},
    )
    engine = pelton.build(m, level=0, threads=2, cache_dir=tmp_path)
    (step,) = [s for s in engine.plain.steps if "lstm" in s.info["tactic"]]
    assert (
        "SPLIT=2" in step.info["tactic"]
        and step.phases == (f"{length} + 1" if length == "n" else 7)
        and step.tiles == 2
    )
    for time in (1, 4, 6) if length == "n" else (6,):
        x = rng.standard_normal((time, 1, 8)).astype(np.float32)
        want = ReferenceEvaluator(m).run(None, {"x": x})
        found = [engine.context(threads=t).run({"x": x}) for t in (1, 2, 3)]
        for name, array in zip(("y", "h", "c"), want):
            np.testing.assert_allclose(found[0][name], array, atol=1e-5)
            assert all(f[name].tobytes() == found[0][name].tobytes() for f in found)


@pytest.mark.parametrize(
    "reason, r, tail",
    [
        ("no pointwise operations and no slices after rnn_steps", np.ones((1, 5, 5), np.float32), [("z", "relu", "y")]),
        ("nothing to compute", np.ones((1, 5, 5), np.float32), ()),
    ],
)
def test_refusals_say_why(reason, r, tail):
    time = 0 if reason.startswith("nothing") else 3
    graph = program(("y last_h", "rnn_steps", "g r h", {}), *tail, g=f"f32[{time}, 2, 5]", r=r, h="f32[1, 2, 5]")
    assert TEMPLATES["rnn"].rejection(region_of(graph)) == reason


def test_half_precision_wants_constant_weights():
    graph = program(("y last_h", "rnn_steps", "g r h", {}), g="f32[3, 2, 5]", r="f32[1, 5, 5]", h="f32[1, 2, 5]")
    assert TEMPLATES["rnn"].rejection(region_of(graph)) is None
    assert TEMPLATES["rnn_half"].rejection(region_of(graph)) == "the recurrent weights are not constant"


def test_half_precision_is_not_for_layers_that_amplify_what_they_remember():
    """The same random weights, small and large: with large ones a state forgets nothing of how it was rounded."""
    r = np.random.default_rng(0).standard_normal((1, 4 * 64, 64)).astype(np.float32)
    refusals = {}
    for scale in (0.05, 1.5):
        graph = program(
            ("y last_h last_c", "lstm_steps", "g r h c p", {}),
            g="f32[9, 2, 256]",
            r=scale * r,
            h="f32[1, 2, 64]",
            c="f32[1, 2, 64]",
            p=np.zeros((1, 192), np.float32),
        )
        assert TEMPLATES["lstm"].rejection(region_of(graph)) is None
        refusals[scale] = TEMPLATES["lstm_half"].rounding_rejection(region_of(graph), F16)
    assert refusals[0.05] is None and "would be off by" in refusals[1.5]


@pytest.mark.parametrize("length", ["n", 5])
def test_a_quantized_layer_runs_in_bytes(length, tmp_path, monkeypatch):
    for name in ("lstm", "lstm_half"):
        monkeypatch.setattr(TEMPLATES[name], "tactics", lambda *args: ())
    rng, hidden = np.random.default_rng(0), 37
    w, r = (rng.integers(-127, 128, (2, n, 4 * hidden)).astype(np.int8) for n in (9, hidden))
    held = dict(w=w, r=r, ws=np.float32([0.002, 0.003]), rs=rng.uniform(0.001, 0.002, (2, 4 * hidden)))
    held |= dict(rs=held["rs"].astype(np.float32), wz=np.zeros(2, np.int8), rz=np.zeros((2, 4 * hidden), np.int8))
    layer = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"],
        ["y", "h", "c"],
        domain=MICROSOFT,
        hidden_size=hidden,
        direction="bidirectional",
    )
    engine = pelton.build(
        model([layer], {"x": f"f32[{length}, 2, 9]"}, ["y", "h", "c"], held), level=0, threads=2, cache_dir=tmp_path
    )
    assert any("lstm_bytes" in s.info["tactic"] for s in engine.plain.steps)
    plain = {k: (held[k] * held[k + "s"].reshape(2, 1, -1)).transpose(0, 2, 1) for k in "wr"}
    layer = helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=hidden, direction="bidirectional")
    for time in (1, 4, 9) if length == "n" else (5,):
        x = 3 * rng.standard_normal((time, 2, 9)).astype(np.float32)
        want = ReferenceEvaluator(model([layer], {"x": f"f32[{time}, 2, 9]"}, ["y", "h", "c"], plain)).run(
            None, {"x": x}
        )
        for name, array in zip(("y", "h", "c"), want):
            np.testing.assert_allclose(engine.run({"x": x})[name], array, atol=2e-5)


@pytest.mark.parametrize(
    "change, is_byte",
    [
        (lambda r: r, True),
        (lambda r: r * np.float32(3), True),
        (lambda r: np.where(r == r.max(), r * np.float32(1.01), r), False),
        (lambda r: np.where(r == r.max(), r * np.float32(256 / 127), r), False),
        (lambda r: halves(r + np.float32(0.001)), False),
        (np.zeros_like, True),
    ],
)
def test_weights_of_a_byte_are_found(change, is_byte):
    w, scale = np.random.default_rng(0).integers(-127, 128, (2, 4 * 64, 64)), np.float32(0.0037)
    w[:, 0, :2] = -127, 127
    found = in_bytes(change(w.astype(np.float32) * scale))
    assert (found is not None) == is_byte
    if change(np.float32(1)) == 1:
        assert np.array_equal(found[0], w) and np.allclose(found[1], scale, rtol=1e-6)
