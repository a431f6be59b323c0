"""Caches that grow by Concat, built with a capacity: runs extend them in place, and compute what the model computes."""

import numpy as np
import onnx
import pytest
from onnx import helper

import pelton
from pelton.errors import InputError
from pelton.importers import load
from pelton.ir.evaluate import evaluate

CAPACITY, HEADS, DEPTH = 23, 3, 5
SIZES = {"batch": "1..1..4", "new": "1..2..16", "past": "0..8..60"}


def decoder(axis=-2, mask="past + new", uses=(), rows=("rows",)):
    """One layer of attention over a cache; uses: what else depends on the length of the cache."""
    shape = {-2: ["batch", HEADS, "past", DEPTH], 1: ["batch", "past", DEPTH], 3: ["batch", 2, HEADS, "past", DEPTH]}
    shape = shape[axis]
    tensor, place = helper.make_tensor_value_info, shape.index("past")
    new = [*shape[:place], "new", *shape[place + 1 :]]
    swapped = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    nodes = [
        helper.make_node("Concat", ["past.0.key", *rows], ["present.0.key"], axis=axis),
        helper.make_node("Transpose", ["present.0.key"], ["keys"], perm=swapped),
        helper.make_node("MatMul", ["rows", "keys"], ["products"]),
        helper.make_node("Add", ["products", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present.0.key"], ["attended"]),
    ]
    constants = [onnx.numpy_helper.from_array(np.array(v), n) for n, v in (("at", place), ("one", 1), ("two", [place]))]
    last = "attended"
    if "positions" in uses:  # from the length of the cache on, as decoders without position_ids count
        nodes += [
            helper.make_node("Shape", ["past.0.key"], ["shape"]),
            helper.make_node("Gather", ["shape", "at"], ["begin"]),
            helper.make_node("Shape", ["present.0.key"], ["shape after"]),
            helper.make_node("Gather", ["shape after", "at"], ["end"]),
            helper.make_node("Range", ["begin", "end", "one"], ["positions"]),
            helper.make_node("Cast", ["positions"], ["angles"], to=1),
            helper.make_node("Unsqueeze", ["angles", "minus one"], ["column"]),
            helper.make_node("Add", [last, "column"], ["placed"]),
        ]
        constants.append(onnx.numpy_helper.from_array(np.array([-1]), "minus one"))
        last = "placed"
    if "table" in uses:  # rows of a table from the length of the cache on, as GPT-2 has its mask
        table = np.arange(80 * DEPTH, dtype=np.float32).reshape(80, DEPTH)
        constants.append(onnx.numpy_helper.from_array(table, "table"))
        constants.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
        nodes += [
            helper.make_node("Shape", ["past.0.key"], ["sizes"]),
            helper.make_node("Gather", ["sizes", "two"], ["first"]),
            helper.make_node("Shape", ["present.0.key"], ["sizes after"]),
            helper.make_node("Gather", ["sizes after", "two"], ["behind"]),
            helper.make_node("Slice", ["table", "first", "behind", "zero"], ["part"]),
            helper.make_node("Add", [last, "part"], ["shifted"]),
        ]
        last = "shifted"
    if "past" in uses:
        nodes.append(helper.make_node("ReduceMax", ["past.0.key"], ["most"], keepdims=0))
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    inputs = [tensor("rows", 1, new), tensor("mask", 1, [mask]), tensor("past.0.key", 1, shape)]
    outputs = [tensor("y", 1, None), tensor("present.0.key", 1, None)]
    outputs += [tensor("most", 1, None)] if "past" in uses else []
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("axis", [-2, 1, 3])
@pytest.mark.parametrize("uses", [(), ("positions",), ("table",)])
def test_runs_extend_caches_in_place(axis, uses):
    model = decoder(axis, uses=uses)
    engine = pelton.build(model, SIZES, level=0, threads=1, cache_capacity=CAPACITY)
    assert [p.shares for p in engine.outputs] == [None, "past.0.key"]
    assert not any(s.host for s in engine.steps)
    graph = load(model, shapes=SIZES).graph
    state, context, rng = engine.state(batch=2), engine.context(1), np.random.default_rng()
    memory = state.arrays["past.0.key"]
    place = memory.shape.index(CAPACITY)
    past = np.zeros([0 if d == CAPACITY else d for d in memory.shape], np.float32)
    for count in (7, 1, 1, 5, 1, 8):
        rows = rng.standard_normal([count if d == CAPACITY else d for d in memory.shape]).astype(np.float32)
        inputs = {"rows": rows, "mask": rng.standard_normal(past.shape[place] + count).astype(np.float32)}
        want = evaluate(graph, {**inputs, "past.0.key": past}, round=False)
        got = state.run(context, inputs)["y"]
        past = want["present.0.key"].astype(np.float32)
        np.testing.assert_allclose(got, want["y"], rtol=1e-4, atol=1e-4)
        assert state.arrays["past.0.key"] is memory
        assert np.array_equal(memory.take(range(past.shape[place]), place), past)
    with pytest.raises(InputError, match="axis 0 of input 'mask' .* 1 to 23, got 24"):
        state.run(context, {**inputs, "mask": np.zeros(CAPACITY + 1, np.float32)})


def test_several_new_parts_are_written_together():
    model = decoder(rows=("rows", "rows"), mask="past + 2*new")
    engine = pelton.build(model, SIZES, level=0, threads=1, cache_capacity=CAPACITY)
    state, rows = engine.state(), np.random.default_rng().standard_normal((1, HEADS, 3, DEPTH)).astype(np.float32)
    state.run(engine.context(1), {"rows": rows, "mask": np.zeros(6, np.float32)})
    assert engine.outputs[1].shares == "past.0.key"
    assert np.array_equal(state.arrays["past.0.key"][:, :, :6], np.concatenate([rows, rows], axis=2))


def test_a_run_apart_keeps_its_input():
    engine = pelton.build(decoder(), SIZES, level=0, threads=1, cache_capacity=CAPACITY)
    rng = np.random.default_rng()
    inputs = {"rows": rng.standard_normal((3, HEADS, 2, DEPTH)), "mask": rng.standard_normal(9)}
    inputs["past.0.key"] = rng.standard_normal((3, HEADS, CAPACITY, DEPTH))
    inputs = {name: a.astype(np.float32) for name, a in inputs.items()}
    before, after = inputs["past.0.key"].copy(), engine.run(inputs)["present.0.key"]
    assert np.array_equal(before, inputs["past.0.key"])
    before[:, :, 7:9] = inputs["rows"]
    assert np.array_equal(after, before)


@pytest.mark.parametrize(
    "model, options, why",
    [
        (dict(mask=1), {}, r"needs another input whose size tells the length .* as `past \+ new`"),
        (
            dict(uses=("past",)),
            {},
            "with the new rows alone; reduce_max 'ReduceMax → most' also reads 'past.0.key'",
        ),
        ({}, dict(cache_capacity=0), "cache_capacity is a number of positions from 1 on, got 0"),
        ({}, dict(cache_capacity=True), "cache_capacity is a number of positions from 1 on, got True"),
        (
            {},
            dict(shapes={**SIZES, "past": "8..9..60"}, cache_capacity=8),
            r"cache_capacity=8 is too small: .* 9 positions or more \(new \+ past\)",
        ),
    ],
)
def test_models_that_can_have_no_capacity(model, options, why):
    with pytest.raises(InputError, match=why):
        pelton.build(decoder(**model), level=0, **{"shapes": SIZES, "cache_capacity": CAPACITY, **options})


def test_models_without_growing_caches_are_refused():
    net = pelton.Network()
    net.output(net.relu(net.input("x", "f32[3]")), "y")
    with pytest.raises(InputError, match="for models whose caches grow, .* has none: leave it out"):
        pelton.build(net, level=0, cache_capacity=8)


def test_the_command_line_takes_a_capacity(tmp_path, capsys):
    from pelton.cli import main

    onnx.save(decoder(), tmp_path / "m.onnx")
    sizes = ",".join(f"{name}={size}" for name, size in SIZES.items())
    main(["explain", str(tmp_path / "m.onnx"), "--shapes", sizes, "--cache-capacity", "23"])
    assert "past.0.key ← present.0.key (f32[batch, 3, 23, 5]), extended in place" in capsys.readouterr().out


@pytest.mark.parametrize("kind, within", [("fp16", 2e-3), ("int8", 3e-2)])
def test_caches_of_a_capacity_can_be_narrow(kind, within):
    """Both options together: positions are fixed first, then numbers get fewer bits."""
    options = dict(level=0, threads=1, cache_capacity=CAPACITY)
    wide = pelton.build(decoder(), SIZES, **options)
    narrow = pelton.build(decoder(), SIZES, kv_cache=kind, **options)
    states = [engine.state(batch=2) for engine in (wide, narrow)]
    assert states[1].arrays["past.0.key"].dtype == {"fp16": np.float16, "int8": np.int8}[kind]
    rng, length = np.random.default_rng(), 0
    for count in (5, 1, 1, 7):
        length += count
        rows = rng.standard_normal((2, HEADS, count, DEPTH)).astype(np.float32)
        given = {"rows": rows, "mask": np.zeros(length, np.float32)}
        want, got = (s.run(e.context(1), given)["y"] for s, e in zip(states, (wide, narrow)))
        assert np.abs(got - want).max() <= within * np.abs(want).max()
        assert got.tobytes() != want.tobytes()
