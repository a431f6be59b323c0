"""Kernels of recurrent layers."""

from __future__ import annotations

import dataclasses

import kernel_harness
import numpy as np
import pytest
from kernel_harness import CASES, Case, check, declare, laid, program, region_of, settled, varying, walk
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import MICROSOFT, model

import pelton
from pelton.ir.types import F16
from pelton.codegen.c.templates.scaled_bytes import in_bytes
from pelton.codegen.template import TEMPLATES

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def halves(r: np.ndarray) -> np.ndarray:
    """Weights that are what they are in half precision, too."""
    return r.astype(np.float16).astype(np.float32)


def bytes_by_scale(rng: np.random.Generator, directions: int, width: int, hidden: int, per_row: bool) -> np.ndarray:
    """Weights of a byte by a scale of each direction or row, as a quantizer leaves them: the largest are 127 or
    -128."""
    w = rng.integers(-128, 128, (directions, width, hidden)).astype(np.float32)
    w[..., 0] = rng.choice([-128, 127], w.shape[:2])
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
for *size, weights, more in (
    (7, 1, 19, "direction", {}),
    (4, 3, 24, "reverse", "rows", dict(clip=0.5)),
    (3, 3, 70, "bidirectional", ("y",), "direction", dict(peepholes=True)),
    (3, 4, 33, "bidirectional", "rows", dict(orders=dict(g=(1, 0, 2), h=(1, 0, 2), c=(1, 0, 2)))),
    (2, 2, 2, "rows", dict(input_forget=True)),
    (2, 1, 600, "direction", dict(keep=("last_h", "last_c"))),
):
    declare("lstm_bytes", settled(steps("lstm", *size, weights=weights, round_state=True, **more)))
    declare("lstm", settled(steps("lstm", *size, round_state=True, **more)))
declare(
    "lstm",
    settled(steps("lstm", 4, 5, 19, round_state=True)),
    settled(steps("lstm", 3, 2, 70, "bidirectional", fed=True, round_state=True)),
)
declare("lstm_half", *(settled(steps("lstm", *size, round_state=True)) for size in ((5, 1, 40), (3, 3, 19, "reverse"))))
declare("gru", steps("gru", 3, 2, 37, "bidirectional", fed=True, linear_before_reset=True))


@pytest.mark.parametrize(
    "template, case", walk("lstm", "gru", "rnn", "lstm_half", "gru_half", "rnn_half", "lstm_bytes")
)
def test_steps(template, case):
    check(template, case)


@pytest.mark.parametrize("most, rows", [(200, 6), (31, 1)])
def test_a_tile_has_as_many_rows_in_i16_as_the_stack_holds(most, rows, monkeypatch):
    monkeypatch.setattr("pelton.codegen.c.templates.rnn_int8.MAX_STATES", most)
    case, template = steps("lstm", 3, 13, 24, weights="rows"), TEMPLATES["lstm_bytes"]
    region = region_of(case.graph)
    found = template.tactics(region, laid(template, region, case, 0), kernel_harness.TARGET)
    assert {t["BB"] for t in found} == {rows}
    assert check(template, case, most=1)


SHARED = [
    ("lstm", {}),
    ("lstm", dict(peepholes=True)),
    ("gru", {}),
    ("gru", dict(linear_before_reset=True)),
    ("rnn", {}),
    ("gru_half", {}),
    ("lstm_bytes", dict(weights="rows")),
    ("lstm", dict(round_state=True)),
    ("lstm_bytes", dict(weights="rows", round_state=True)),
]
LONE = [  # sizes of batches with fewer rows than threads
    (5, 1, 150),
    (4, 2, 211, "reverse"),
    (3, 1, 209, "bidirectional"),
    (1, 1, 150),
    (4, 1, 190, "forward", ("last_h",)),
]


@pytest.mark.parametrize(
    "op, attrs, size, fed",
    [
        # the weights are an input at every other size; those in few bits are constants
        (op, attrs, size, (i + j) % 2 == 1 and "_" not in op)
        for i, (op, attrs) in enumerate(SHARED)
        for j, size in enumerate(LONE)
    ],
)
def test_threads_without_rows_have_shares_of_the_units(op, attrs, size, fed, monkeypatch):
    """Steps of several phases; `check` runs their tiles in order and backwards."""
    template, every = TEMPLATES[op], TEMPLATES[op].tactics
    monkeypatch.setattr(kernel_harness, "TARGET", dataclasses.replace(kernel_harness.TARGET, threads=7))
    monkeypatch.setattr(template, "tactics", lambda *args: (t for t in every(*args) if t["SPLIT"] > 1))
    case = steps(op.partition("_")[0], *size, fed=fed, **attrs)
    case = settled(case) if "round_state" in attrs else case
    assert check(template, case) >= 1


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


def rounded(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """x as it is after DynamicQuantizeLinear over these axes and back."""
    low, high = x.min(axes, keepdims=True, initial=0), x.max(axes, keepdims=True, initial=0)
    scale = np.where(high == low, 255, high - low) / 255
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def over_all(x: np.ndarray) -> np.ndarray:
    return rounded(x, tuple(range(x.ndim)))


def over_rows(x: np.ndarray) -> np.ndarray:
    return rounded(x, (1,))


def as_is(x: np.ndarray) -> np.ndarray:
    return x


def quantized_lstm(x, w, r, b, h, c, round_x, round_h) -> list[np.ndarray]:
    """y and the last states of an LSTM with weights [direction, inner, 4 · hidden] in float64."""
    x, y, h, c = round_x(x.astype(np.float64)), np.zeros((len(x), *h.shape)), [*h], [*c]
    for d in range(len(w)):
        for t in reversed(range(len(x))) if d else range(len(x)):
            sums = x[t] @ w[d] + round_h(h[d]) @ r[d] + np.add(*np.split(b[d].astype(np.float64), 2))
            i, o, f, n = np.split(sums, 4, axis=1)
            i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
            c[d] = f * c[d] + i * np.tanh(n)
            h[d] = y[t, d] = o * np.tanh(c[d])
    return [y, np.stack(h), np.stack(c)]


def decibels(got: np.ndarray, want: np.ndarray) -> float:
    """Signal to noise."""
    return 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())


@pytest.mark.parametrize("kernel", ["lstm", "lstm_bytes"])
@pytest.mark.parametrize("length, batch", [("n", 3), (5, 1), (6, 2)])
@pytest.mark.parametrize("directions, per_column, dtype", [(1, False, "u1"), (2, False, "i1"), (2, True, "u1")])
def test_a_quantized_layer_rounds_what_it_multiplies(kernel, length, batch, directions, per_column, dtype, tmp_path):
    """X all together, the state row by row. Whatever else is rounded, or nothing, gives something else."""
    rng, hidden, inputs = np.random.default_rng(0), 37, 9
    of = (directions, 4 * hidden) if per_column else (directions,)
    held = {"b": rng.standard_normal((directions, 8 * hidden)).astype(np.float32)}
    for name, inner in (("w", inputs), ("r", hidden)):
        # of the state's, all are in i8 less a zero point of 128; products in f32 take others
        zero = np.full(of, 128) if name == "r" and kernel == "lstm_bytes" else rng.integers(100, 150, of)
        held[name] = rng.integers(0, 256, (directions, inner, 4 * hidden)) - (128 if dtype == "i1" else 0)
        held[name + "z"] = (zero - (128 if dtype == "i1" else 0)).astype(dtype)
        held[name + "s"] = rng.uniform(0.01, 0.02, of).astype(np.float32) / np.float32(np.sqrt(inner))
        held[name] = held[name].astype(dtype)
    layer = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "h0", "c0", "", "ws", "wz", "rs", "rz"],
        ["y", "h", "c"],
        domain=MICROSOFT,
        hidden_size=hidden,
        direction="bidirectional" if directions == 2 else "forward",
    )
    state = f"f32[{directions}, {batch}, {hidden}]"
    m = model([layer], {"x": f"f32[{length}, {batch}, {inputs}]", "h0": state, "c0": state}, ["y", "h", "c"], held)
    engine = pelton.build(m, level=0, threads=2, cache_dir=tmp_path)
    assert [t for s in engine.plain.steps if (t := s.info["tactic"].partition(":")[0]).startswith("lstm")] == [kernel]
    assert sum("int8" in s.info["tactic"] for s in engine.plain.steps) == 1
    w, r = (
        (held[k].astype(np.float64) - held[k + "z"].astype(np.float64).reshape(directions, 1, -1))
        * held[k + "s"].reshape(directions, 1, -1)
        for k in "wr"
    )
    for time in (1, 4, 9) if length == "n" else (length,):
        x = (rng.standard_normal((time, batch, inputs)) * 3).astype(np.float32)
        h, c = (rng.uniform(-1, 1, (directions, batch, hidden)).astype(np.float32) for _ in "hc")
        h *= np.linspace(0.2, 1, batch)[:, None].astype(np.float32)
        got = engine.run({"x": x, "h0": h, "c0": c})

        found = {
            how: min(
                decibels(got[name], array)
                for name, array in zip(("y", "h", "c"), quantized_lstm(x, w, r, held["b"], h, c, *how))
            )
            for how in ((over_all, over_rows), (over_all, as_is), (as_is, over_rows), (over_all, over_all))
            if batch > 1 or how != (over_all, over_all)
        }
        right = found.pop((over_all, over_rows))
        assert right > 10 + max(found.values())  # 135 to 140 dB, unless a number lies at a tie


@pytest.mark.parametrize(
    "change, is_byte",
    [
        (lambda r: r, True),
        (lambda r: r * np.float32(3), True),
        (lambda r: np.where(r == r.max(), r * np.float32(1.01), r), False),
        (lambda r: np.where(r == r.max(), r * np.float32(256 / 127), r), False),
        (lambda r: np.where(r == r.max(), r * np.float32(128 / 127), r), False),
        (lambda r: halves(r + np.float32(0.001)), False),
        (np.zeros_like, True),
    ],
)
def test_weights_of_a_byte_are_found(change, is_byte):
    w, scale = np.random.default_rng(0).integers(-128, 128, (2, 4 * 64, 64)), np.float32(0.0037)
    w[:, 0, :2] = -128, 127
    found = in_bytes(change(w.astype(np.float32) * scale))
    assert (found is not None) == is_byte
    if change(np.float32(1)) == 1:
        assert np.array_equal(found[0], w) and np.all(found[1] == scale)
