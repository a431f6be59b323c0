"""TFLite models as a whole: state, subgraphs, sparse and quantized constants, names, sizes, custom operators."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tflite_models import VECTORS, ModelWriter

import pelton
from pelton import cli
from pelton.errors import InputError, ModelError
from pelton.importers import load
from pelton.importers.network import imported
from pelton.importers.tflite import CUSTOM, READERS, flexbuffer, read, reads
from pelton.ir.evaluate import evaluate

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(data, **feeds):
    return evaluate(imported(read(data)).graph, feeds)


def counter(initial):
    """y = x + state, which is y afterwards."""
    w = ModelWriter()
    x = w.main.input((1, 3), name="x")
    handle, value = w.main.tensor((), "resource"), w.main.tensor((1, 3))
    y = w.main.output((1, 3), name="y")
    w.main.op("CALL_ONCE", [], [], "CallOnceOptions", subgraph=1) if initial is not None else None
    w.main.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="total")
    w.main.op("READ_VARIABLE", [handle], [value])
    w.main.op("ADD", [x, value], [y], "AddOptions")
    w.main.op("ASSIGN_VARIABLE", [handle, y], [])
    if initial is not None:
        first = w.subgraph("first")
        there, constant = first.tensor((), "resource"), first.constant(initial)
        first.op("VAR_HANDLE", [], [there], "VarHandleOptions", shared_name="total")
        first.op("ASSIGN_VARIABLE", [there, constant], [])
    return w.bytes()


@pytest.mark.parametrize("initial", [None, np.full((1, 3), 2.5, np.float32), np.asarray([[1, 2, 4]], np.float32)])
def test_variables_are_ports_that_begin_as_the_model_says(initial):
    engine = pelton.build(counter(initial), level=0, threads=1)
    assert [p.name for p in engine.inputs] == ["x", "total"] and engine.state_outputs == {"total": "total.next"}
    states, total = engine.initial_states(), np.zeros((1, 3), np.float32) if initial is None else initial
    for _ in range(3):
        x = normal(1, 3)
        total = total + x
        found = engine.run({"x": x, **states})
        np.testing.assert_allclose(found["y"], total, rtol=1e-6)
        states = {name: found[output] for name, output in engine.state_outputs.items()}


def test_states_are_inputs_that_may_be_left_out(tmp_path, capsys):
    model, path = str(tmp_path / "counter.tflite"), str(tmp_path / "counter.pelton")
    initial, x = np.full((1, 3), 2.5, np.float32), normal(1, 3)
    (tmp_path / "counter.tflite").write_bytes(counter(initial))
    np.save(tmp_path / "x.npy", x)
    pelton.build(model, level=0, threads=1).save(path)
    given = ["--input", f"x={tmp_path / 'x.npy'}"]
    cli.main(["run", path, *given, "--output", f"y={tmp_path / 'y.npy'}"])
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x + initial, rtol=1e-6)
    cli.main(["compare", model, path])
    cli.main(["compare", model, path, *given])
    assert capsys.readouterr().out.count("within the tolerance") == 2


def test_shapes_name_inputs_and_states_alike():
    data = counter(None)
    assert [v.name for v in load(data, {"x": "1x3", "total": "1x3"}).graph.inputs] == ["x", "total"]
    with pytest.raises(InputError, match="'total' is .* where 3 cannot be 4"):
        load(data, {"total": "1x4"})
    with pytest.raises(InputError, match=r"no input 'totl' \(did you mean 'total'\?\); there are x, total"):
        load(data, {"totl": "1x3"})


def test_absurd_sizes_of_variables_cost_nothing():
    w = ModelWriter()
    handle, y = w.main.tensor((), "resource"), w.main.output((1 << 30, 1 << 30), name="y")
    w.main.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="v")
    w.main.op("READ_VARIABLE", [handle], [y])
    found = imported(read(w.bytes()))
    assert found.info.states == {"v": ("v.next", 0.0)} and found.graph.inputs[0].type.size == 1 << 60
    with pytest.raises(pelton.Error, match="memory"):
        pelton.build(w.bytes(), level=0, threads=1)


def branches(condition_of, assigns=False):
    w = ModelWriter()
    x = w.main.input((3,), name="x")
    condition = condition_of(w.main, x)
    y = w.main.output((3,), name="y")
    w.main.op("IF", [condition, x], [y], "IfOptions", then=1, other=2)
    for name, op in (("then", "NEG"), ("other", "ABS")):
        s = w.subgraph(name)
        a, b = s.input((3,)), s.output((3,))
        s.op(op, [a], [b])
        if assigns:
            handle = s.tensor((), "resource")
            s.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="v")
            s.op("ASSIGN_VARIABLE", [handle, b], [])
    return w.bytes()


def by_data(main, x):
    axes, largest, zero = main.constant(np.asarray([0], np.int32)), main.tensor(()), main.constant(np.float32(0))
    main.op("REDUCE_MAX", [x, axes], [largest], "ReducerOptions")
    main.op("GREATER", [largest, zero], [found := main.tensor((), "bool")])
    return found


def test_branches_by_constants_and_by_data():
    x = np.asarray([1, -2, 3], np.float32)
    for truth, want in ((True, -x), (False, np.abs(x))):
        found = run(branches(lambda main, _, truth=truth: main.constant(np.asarray(truth))), x=x)
        np.testing.assert_array_equal(found["y"], want)
    for given in (np.abs(x), -np.abs(x)):  # the one is negated, the other made positive
        np.testing.assert_array_equal(run(branches(by_data), x=given)["y"], -given)
    with pytest.raises(ModelError, match="assigned in data-dependent control flow"):
        read(branches(by_data, assigns=True))


def loop(limit_of, grows=False):
    """x · 1.5ⁿ, n rounds: those of a counter below a limit."""
    w = ModelWriter()
    x = w.main.input((1, 3), name="x")
    limit, count = limit_of(w.main), w.main.constant(np.asarray(0, np.int32))
    results = w.main.tensor((), "i32"), w.main.tensor((), "i32"), w.main.output((1, 3), name="y")
    w.main.op("WHILE", [count, limit, x], results, "WhileOptions", condition=1, body=2)
    condition = w.subgraph("condition")
    i, most, _ = condition.input((), "i32"), condition.input((), "i32"), condition.input((1, 3))
    condition.op("LESS", [i, most], [condition.output((), "bool")])
    body = w.subgraph("body")
    i, most, value = body.input((), "i32"), body.input((), "i32"), body.input((1, 3))
    body.op("ADD", [i, body.constant(np.asarray(1, np.int32))], [body.output((), "i32")], "AddOptions")
    body.outputs.append(most)
    if grows:
        body.op("CONCATENATION", [value, value], [body.output((2, 3))], "ConcatenationOptions", axis=0)
    else:
        body.op("MUL", [value, body.constant(np.float32(1.5))], [body.output((1, 3))], "MulOptions")
    return w.bytes()


@pytest.mark.parametrize("rounds", [0, 1, 5, 300])
def test_loops(rounds):
    """A known number of rounds is unrolled, up to a limit; what a run decides, too, is right."""
    x = normal(1, 3) * np.float32(1e-20)
    want = x.astype(np.float64) * 1.5**rounds
    known = imported(read(loop(lambda main: main.constant(np.asarray(rounds, np.int32))))).graph
    assert any(n.op.name == "loop" for n in known.nodes) == (rounds == 300)
    by_data = loop(lambda main: main.input((), "i32", name="limit"))
    for got in (evaluate(known, {"x": x}), run(by_data, x=x, limit=np.asarray(rounds, np.int32))):
        np.testing.assert_allclose(got["y"], want, rtol=1e-4)
    engine = pelton.build(by_data, level=0, threads=1)
    found = engine.run({"x": x, "limit": np.asarray(rounds, np.int32)})
    np.testing.assert_allclose(found["y"], want, rtol=1e-4)


def test_loops_whose_tensors_grow_are_unrolled_or_refused():
    x = normal(1, 3)
    found = run(loop(lambda main: main.constant(np.asarray(2, np.int32)), grows=True), x=x)
    np.testing.assert_array_equal(found["y"], np.tile(x, (4, 1)))
    with pytest.raises(ModelError, match="WHILE"):
        read(loop(lambda main: main.input((), "i32"), grows=True))


def test_composites_are_what_they_are_made_of():
    w = ModelWriter()
    x, y = w.main.input((3,), name="x"), w.main.output((3,), name="y")
    w.main.op("STABLEHLO_COMPOSITE", [x], [y], "StableHLOCompositeOptions", decomposition=1)
    inner = w.subgraph("inner")
    inner.op("NEG", [inner.input((3,))], [inner.output((3,))])
    x = normal(3)
    np.testing.assert_array_equal(run(w.bytes(), x=x)["y"], -x)


def test_recursion_is_refused():
    w = ModelWriter()
    x, y = w.main.input((3,)), w.main.output((3,))
    w.main.op("CALL", [x], [y], "CallOptions", subgraph=0)
    with pytest.raises(ModelError, match="more than 16 deep"):
        read(w.bytes())
    w = ModelWriter()
    x, y = w.main.input((1,), "bool"), w.main.output((1,), "bool")
    w.main.op("WHILE", [x], [y], "WhileOptions", condition=0, body=0)
    with pytest.raises(ModelError, match="more than 16 deep"):
        read(w.bytes())


def sparse_matrix(blocked):
    """A matrix with two of three values, by rows as CSR, or in blocks of two columns."""
    dense = np.zeros((3, 4), np.float32)
    dense[0, 2:], dense[2, :2] = (1, 2), (3, 4)

    def vector(values):
        return dict(type=VECTORS["Uint8Vector"], table=("Uint8Vector", dict(values=values)))

    segments, indices = ([0, 1, 1, 2], [1, 0]) if blocked else ([0, 2, 2, 4], [2, 3, 0, 1])
    axes = [dict(format=0, size=3), dict(format=1, segments_type=3, indices_type=3)]
    axes[1] |= dict(segments=vector(segments)["table"], indices=vector(indices)["table"])
    sparsity = dict(order=[0, 1, 2] if blocked else [0, 1], axes=axes + ([dict(format=0, size=2)] if blocked else []))
    return dense, sparsity | (dict(blocks=[1]) if blocked else {})


@pytest.mark.parametrize("blocked", [False, True])
def test_sparse_constants_have_their_zeros(blocked):
    dense, sparsity = sparse_matrix(blocked)
    w = ModelWriter()
    x, y, t = w.main.input((3, 4), name="x"), w.main.output((3, 4), name="y"), w.main.tensor((3, 4))
    stored = w.main.tensor((3, 4), data=np.asarray([1, 2, 3, 4], np.float32), sparsity=sparsity)
    w.main.op("DENSIFY", [stored], [t])
    w.main.op("ADD", [x, t], [y], "AddOptions")
    a = normal(3, 4)
    np.testing.assert_allclose(run(w.bytes(), x=a)["y"], a + dense)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda s: s["axes"][1].update(indices=("Uint8Vector", dict(values=[9, 0, 0, 0]))), "outside of its shape"),
        (lambda s: s["axes"][1].update(segments=("Uint8Vector", dict(values=[0, 200, 1, 2]))), "damaged segments"),
        (lambda s: s["axes"][0].update(size=1 << 30), "more stored elements"),
        (lambda s: s.update(order=[0, 0]), "but its shape is"),
    ],
)
def test_damaged_sparse_constants_are_refused(change, said):
    _, sparsity = sparse_matrix(False)
    change(sparsity)
    w = ModelWriter()
    x, y = w.main.input((3, 4)), w.main.output((3, 4))
    stored = w.main.tensor((3, 4), data=np.asarray([1, 2, 3, 4], np.float32), sparsity=sparsity)
    w.main.op("ADD", [x, stored], [y], "AddOptions")
    with pytest.raises(ModelError, match=said):
        read(w.bytes())


def convolution(scale=None):
    """A network of images whose batch is dynamic: convolution, sum, pad, pool, mean."""
    w = ModelWriter()
    m, weights = w.main, normal(6, 3, 3, 4)
    x = m.input((1, 8, 8, 4), signature=(-1, 8, 8, 4), name="x")
    c, p, s, q, y = (m.tensor((1, 8, 8, 6)) for _ in range(5))
    m.outputs.append(y)
    m.op("CONV_2D", [x, m.constant(weights), m.constant(normal(6))], [c], "Conv2DOptions", stride_w=1, stride_h=1)
    m.op("PRELU", [c, m.constant(normal(1, 1, 6))], [p])
    m.op("CONV_2D", [p, m.constant(normal(6, 1, 1, 6)), -1], [s], "Conv2DOptions", stride_w=1, stride_h=1)
    m.op("ADD", [s, p], [q], "AddOptions", activation=1)
    m.op("PAD", [q, m.constant(np.asarray([[0, 0], [1, 1], [0, 0], [0, 2]], np.int32))], [y])
    return w.bytes()


def test_no_transposes_remain_between_layers_and_batches_are_dynamic():
    net = read(convolution())
    assert str(net.inputs[0]) == "x: f32[batch, 8, 8, 4]"
    transposes = [n for n in net.graph().nodes if n.op.name == "transpose"]
    assert len(transposes) == 2, net  # of the input and of the output
    one, two = normal(1, 8, 8, 4), normal(2, 8, 8, 4)
    engine = pelton.build(convolution(), level=0, threads=1)
    for x in (one, two):
        (found,) = engine.run({"x": x}).values()
        assert found.shape == (len(x), 10, 8, 8)
    assert read(convolution(), shapes={"x": (5, 8, 8, 4)}).inputs[0].shape == (5, 8, 8, 4)
    assert load(convolution(), {"x": "1..2..3x8x8x4"}).graph.inputs[0].type.shape[0].__str__() == "batch"


def test_transposed_convolutions_of_any_batch():
    """Their shapes are made of the image's, as converters write it."""
    w = ModelWriter()
    x = w.main.input((1, 3, 4, 2), signature=(-1, 3, 4, 2), name="x")
    weights, y = normal(5, 2, 2, 2), w.main.output((1, 6, 8, 5), name="y")
    shape, batch, whole = (w.main.tensor(size, "i32") for size in ((4,), (), (4,)))
    w.main.op("SHAPE", [x], [shape], "ShapeOptions", out_type=2)
    ends = [w.main.constant(np.asarray([i], np.int32)) for i in (0, 1, 1)]
    w.main.op("STRIDED_SLICE", [shape, *ends], [batch], "StridedSliceOptions", shrink_axis_mask=1)
    sizes = [w.main.constant(np.asarray(d, np.int32)) for d in (6, 8, 5)]
    w.main.op("PACK", [batch, *sizes], [whole], "PackOptions", count=4)
    inputs = [whole, w.main.constant(weights), x]
    w.main.op("TRANSPOSE_CONV", inputs, [y], "TransposeConvOptions", stride_w=2, stride_h=2)
    for count in (1, 3):
        given = normal(count, 3, 4, 2)
        want = np.einsum("nhwc,oklc->nhkwlo", given.astype(np.float64), weights).reshape(count, 6, 8, 5)
        np.testing.assert_allclose(run(w.bytes(), x=given)["y"], want, rtol=1e-5, atol=1e-5)


def test_dynamic_sizes_are_as_large_as_windows_need():
    w = ModelWriter()
    x, y = w.main.input((1, 1, 1, 2), signature=(1, 1, -1, 2), name="x"), w.main.output((1, 1, 1, 3), name="y")
    weights = normal(3, 1, 300, 2)
    given = [x, w.main.constant(weights), -1]
    w.main.op("CONV_2D", given, [y], "Conv2DOptions", padding=1, stride_w=10, stride_h=1)
    engine = pelton.build(w.bytes(), level=0, threads=1)
    assert [(s.name, s.minimum) for s in engine.symbols] == [("x_2", 300)]
    sound = normal(1, 1, 415, 2)
    want = [np.einsum("kc,okc->o", sound[0, 0, i : i + 300], weights[:, 0]) for i in range(0, 116, 10)]
    np.testing.assert_allclose(engine.run({"x": sound})["y"][0, 0], want, rtol=1e-3, atol=1e-3)
    w = ModelWriter()
    x, y = w.main.input((1, 7), signature=(1, -1), name="x"), w.main.output((1, 14), name="y")
    w.main.op(
        "MIRROR_PAD", [x, w.main.constant(np.asarray([[0, 0], [3, 4]], np.int32))], [y], "MirrorPadOptions", mode=1
    )
    engine, x = pelton.build(w.bytes(), level=0, threads=1), normal(1, 9)
    assert [(s.name, s.minimum) for s in engine.symbols] == [("x_1", 4)]  # what is mirrored must be there
    np.testing.assert_array_equal(engine.run({"x": x})["y"], np.pad(x, ((0, 0), (3, 4)), "symmetric"))


def test_quantized_convolutions_multiply_integers():
    w = ModelWriter()
    m, scales = w.main, np.linspace(0.01, 0.02, 8).astype(np.float32)
    x = m.input((1, 6, 6, 8), "i8", scale=0.05, zero=3, name="x")
    y = m.output((1, 6, 6, 8), "i8", scale=0.1, zero=-128, name="y")
    weights = RNG.integers(-127, 128, (8, 3, 3, 8)).astype(np.int8)
    bias = RNG.integers(-900, 900, 8).astype(np.int32)
    given = [x, m.constant(weights, scale=scales), m.constant(bias, scale=scales * np.float32(0.05))]
    m.op("CONV_2D", given, [y], "Conv2DOptions", stride_w=1, stride_h=1, activation=1)
    from pelton.passes.pipeline import stage
    from pelton.passes.rewriting.report import PassReport

    graph = stage("integers")(imported(read(w.bytes())).graph, PassReport("integers"), False)
    (product,) = [n for n in graph.nodes if n.op.name == "convolution"]
    assert product.inputs[0].type.dtype.value == "i8" and product.output.type.dtype.value == "i32"
    engine = pelton.build(w.bytes(), level=0, threads=1)
    feeds = {"x": RNG.integers(-128, 128, (1, 6, 6, 8)).astype(np.int8)}
    found, want = engine.run(feeds)["y"], run(w.bytes(), **feeds)["y"]
    assert np.unique(want).size > 20
    assert np.abs(found.astype(int) - want.astype(int)).max() <= 1


def test_signatures_name_inputs_and_outputs():
    w = ModelWriter()
    second = w.subgraph("second")
    for s, op in ((w.main, "NEG"), (second, "ABS")):
        x, y = s.input((3,), name="serving_default_a:0"), s.output((3,), name="StatefulPartitionedCall:0")
        s.op(op, [x], [y])
    w.signature("plain", 0, {"a": 0}, {"b": 1})
    w.signature("absolute", 1, {"image": 0}, {"found": 1})
    net = read(w.bytes())
    assert [t.name for t in net.inputs] == ["a"] and list(net.outputs) == ["b"]
    assert "'absolute'" in net.warnings[0]
    net = read(w.bytes(), signature="absolute")
    assert [t.name for t in net.inputs] == ["image"] and list(net.outputs) == ["found"] and not net.warnings
    with pytest.raises(InputError, match="did you mean 'absolute'"):
        read(w.bytes(), signature="absolut")


def test_custom_operators_are_read_by_whoever_registers(monkeypatch):
    w = ModelWriter()
    x, y = w.main.input((3,), name="x"), w.main.output((3,), name="y")
    options = struct.pack("<f", 3.5)
    w.main.op("Scale", [x], [y], custom=options)
    with pytest.raises(ModelError, match=r"no reader for the custom operator Scale; .* \(pelton.Plugin, `tflite`\)"):
        read(w.bytes())
    monkeypatch.setitem(READERS, (CUSTOM, "Scale"), None)

    @reads("Scale", domain=CUSTOM)
    def scale(n):
        return n.net.mul(n.input(0), np.float32(struct.unpack("<f", n.node.custom_options)[0]))

    a = normal(3)
    np.testing.assert_allclose(run(w.bytes(), x=a)["y"], 3.5 * a, rtol=1e-6)


def test_flexbuffers_are_read_as_they_are_written():
    """The bytes are what flatbuffers.flexbuffers.Dumps of the flatbuffers package gives for the value."""
    data = bytes.fromhex(
        "61007600020203040466007300047465787400646565700062006e00050102030405040404040402100f020102011168"
        "286d697865640001780000000500000001000000000020401000000000000000d4feffff060e140206065a48532c535d"
        "06000000010000000600000001000000430000000000c03f380000006e0000007b00000006240e2a14281e2601"
    )
    deep = {"b": True, "n": [1, 2, 3, 4, 5]}
    value = {"a": 1, "deep": deep, "f": 1.5, "mixed": [1, 2.5, "x", None, -300], "s": "text", "v": [2, 3]}
    assert flexbuffer.loads(data) == value
    for end in range(len(data)):
        with pytest.raises(ModelError):
            assert flexbuffer.loads(data[:end]) != value
            raise ModelError("something else")


def test_messages_say_where_and_what():
    w = ModelWriter()
    x, y = w.main.input((1, 5, 5, 4)), w.main.output((1, 5, 5, 6))
    w.main.op("CONV_2D", [x, w.main.constant(normal(6, 3, 3, 3)), -1], [y], "Conv2DOptions", stride_w=1, stride_h=1)
    with pytest.raises(ModelError, match=r"filters of 3 channels for an image of 4 \(operator 0, CONV_2D, of 'main'"):
        read(w.bytes())
    with pytest.raises(ModelError, match="there is no file"):
        read("/nowhere/model.tflite")
    with pytest.raises(
        ModelError, match="the given bytes: the file is cut off or damaged: .* does not begin as one of TFL3"
    ):
        read(b"\0" * 40)
    with pytest.raises(InputError, match="there is no input 'image'"):
        read(convolution(), shapes={"image": (1, 8, 8, 4)})
