"""Sessions of models with dynamic sizes: their engines, the shapes of each, and eviction."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_fixtures import builds, cache  # noqa: F401  (fixtures)

import pelton as ort
from pelton.compat.session import allowance, pool

RNG = np.random.default_rng(0)


def made(inputs: dict, nodes: list, outputs: dict, /, **constants) -> bytes:
    """A model of float inputs and outputs, name → sizes."""
    graph = helper.make_graph(
        nodes,
        "net",
        *(
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in ports.items()]
            for ports in (inputs, outputs)
        ),
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_cache_that_is_empty_at_first(builds):
    """Two engines for a decoder: one for prompts of any length, which have no past, and one for what follows."""
    sizes = {"past": [1, "before", 2], "x": [1, "rows", 2]}
    session = ort.InferenceSession(made(sizes, [helper.make_node("Concat", ["past", "x"], ["y"], axis=1)], {"y": None}))
    assert session.get_outputs()[0].shape == [1, "before + rows", 2]
    for before, rows in ((0, 5), (5, 1), (6, 1), (0, 7), (7, 1)):
        past, x = (
            RNG.standard_normal((1, before, 2)).astype(np.float32),
            RNG.standard_normal((1, rows, 2)).astype(np.float32),
        )
        assert np.array_equal(session.run(None, {"past": past, "x": x})[0], np.concatenate([past, x], 1))
    assert builds == [(None, {"past": (1, 0, 2), "x": (1, 5, 2)}), (None, {"past": (1, 5, 2), "x": (1, 1, 2)})]


def rooted(x: str, **attrs) -> list:
    """i: the root of the size of an input, by way of floats."""
    return [
        helper.make_node("Shape", [x], ["s"], **attrs),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["f"], ["r"]),
        helper.make_node("Cast", ["r"], ["i"], to=TensorProto.INT64),
    ]


def test_models_that_need_to_know_their_sizes_are_built_for_each(builds):
    """A size that goes into a shape only as data, the root of another: nothing is known before it is. The batch stays
    open."""
    session = ort.InferenceSession(
        made(
            {"x": ["batch", "n"], "free": None},  # of any rank
            [
                *rooted("x", start=1),
                helper.make_node("Concat", ["minus", "i", "i"], ["to"], axis=0),
                helper.make_node("Reshape", ["x", "to"], ["y"]),
                helper.make_node("Neg", ["free"], ["z"]),
            ],
            {"y": None, "z": None},
            minus=[-1],
        )
    )
    for n, batch, shape in ((9, 1, (2, 2)), (4, 1, (2, 2)), (4, 1, (3,)), (9, 3, (4, 1)), (4, 2, (1, 1))):
        x = RNG.standard_normal((batch, n)).astype(np.float32)
        y, z = session.run(None, {"x": x, "free": np.ones(shape, np.float32)})
        assert np.array_equal(y, x.reshape(batch, round(n**0.5), -1)) and np.array_equal(z, -np.ones(shape))
    # for each n, and for each rank of what has any
    assert [optimum["x"] for _, optimum in builds] == [(1, 9), (1, 4), (1, 4)]


def test_sizes_that_only_some_models_have(builds):
    """Names that are none, numbers below 0, one name for two sizes, more of what is half and then double: one engine
    for all that each of them takes."""

    def session(declared, nodes, **constants):
        # no output is like that
        return ort.InferenceSession(made({"x": declared}, nodes, {"y": [7] * len(declared)}, **constants))

    def runs(session, *shapes):
        builds.clear()
        for shape in shapes:
            x = RNG.standard_normal(shape).astype(np.float32)
            yield x, session.run(None, {"x": x})[0]

    square = [helper.make_node("Mul", ["x", "x"], ["y"])]
    for declared, shown in (
        ([-1, "?", "?"], [None, "?", "?"]),
        (["n", "n", "n"], ["n", "n", "n"]),
        (["", None, "none"], [None, None, "none"]),
    ):
        of = session(declared, square)
        assert of.get_inputs()[0].shape == shown
        for x, y in runs(of, (1, 2, 3), (5, 3, 2)):
            assert np.array_equal(y, x * x) and len(builds) == 1
    halves = [
        helper.make_node("MaxPool", ["x"], ["h"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["h", "", "twice"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    of = session(["b", 1, "h", "w"], halves, twice=np.array([1, 1, 2, 2], np.float32))
    for x, y in runs(of, (1, 1, 4, 6), (2, 1, 8, 2)):
        assert (
            np.allclose(
                y,
                x
                + x.reshape(x.shape[0], 1, x.shape[2] // 2, 2, x.shape[3] // 2, 2)
                .max((3, 5))
                .repeat(2, 2)
                .repeat(2, 3),
            )
            and len(builds) == 1
        )
    assert [str(d) for d in of._engine.inputs[0].shape] == ["b", "1", "2*h_by_2", "2*w_by_2"]
    with pytest.raises(ort.Error, match="broadcast"):
        of.run(None, {"x": np.ones((1, 1, 5, 4), np.float32)})  # ONNX Runtime refuses it, too
    windows = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[3, 3], strides=[3, 3]),
        helper.make_node("Squeeze", ["p", "two"], ["y"]),
    ]
    of = session(["?", 1, "?", "?"], windows, two=[2])  # smaller than any window where nobody says otherwise
    for x, y in runs(of, (1, 1, 4, 9), (2, 1, 5, 30)):
        assert (
            np.allclose(y, x[:, :, :3, : x.shape[3] // 3 * 3].reshape(*x.shape[:2], 3, -1, 3).mean((2, 4)), atol=1e-5)
            and len(builds) == 1
        )


def test_engines_for_shapes_are_bounded_and_found_again(builds, monkeypatch):
    """Where no size can stay open: those used last are kept, on disk others than in memory."""
    model = made(
        {"x": ["n"]},
        [
            *rooted("x"),
            helper.make_node("Concat", ["i", "i"], ["to"], axis=0),
            helper.make_node("Reshape", ["x", "to"], ["y"]),
        ],
        {"y": None},
    )
    monkeypatch.setattr(pool, "MAX_ENGINES", 2)
    session = ort.InferenceSession(model)
    # 4 comes from disk again
    for n, count, held in ((4, 1, 1), (9, 2, 2), (16, 3, 2), (9, 3, 2), (4, 3, 2), (16, 3, 2)):
        assert session.run(None, {"x": np.arange(n, dtype=np.float32)})[0].shape == (round(n**0.5),) * 2
        assert (len(builds), len(session._engines.pool)) == (count, held)
    assert ort.InferenceSession(model).run(None, {"x": np.zeros(9, np.float32)})[0].shape == (3, 3) and len(builds) == 3
    with pytest.raises(ort.Error, match="reshape"):
        session.run(None, {"x": np.zeros(7, np.float32)})


def test_an_engine_for_no_arrays_is_built_once(builds):
    """Of an empty sequence nothing is an input of the engine."""
    nodes = [helper.make_node("SequenceLength", ["xs"], ["n"])]
    held = helper.make_tensor_sequence_value_info("xs", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "net", [held], [helper.make_tensor_value_info("n", TensorProto.INT64, [])])
    session = ort.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    for arrays in ([], [np.zeros(2, np.float32)] * 3, [], [np.zeros(2, np.float32)] * 3):
        assert session.run(None, {"xs": arrays})[0] == len(arrays)
    assert len({str(b) for b in builds}) == len(builds)


def test_ever_new_shapes_are_tuned_for_a_share_of_the_time(builds, monkeypatch, caplog):
    """The first engine always; then as long as there is time; then engines are built without timing, and right."""
    model = made(
        {"x": ["n"]},
        [
            *rooted("x"),
            helper.make_node("Concat", ["i", "i"], ["to"], axis=0),
            helper.make_node("Reshape", ["x", "to"], ["y"]),
        ],
        {"y": None},
    )
    monkeypatch.setenv("PELTON_LEVEL", "1")
    session = ort.InferenceSession(model)
    now = 0.0
    session._engines._allowance = allowance.Allowance(1e-9, 60.0, lambda: now)
    for n, level in ((4, 1), (9, 1), (16, 0), (25, 0)):
        x = np.arange(n, dtype=np.float32)
        assert np.array_equal(session.run(None, {"x": x})[0], x.reshape(round(n**0.5), -1))
        assert session._engine.meta["level"] == level
        assert ("without timing kernels" in caplog.text) == (level == 0)
    now = 1e15
    session.run(None, {"x": np.arange(36, dtype=np.float32)})
    assert session._engine.meta["level"] == 1


def test_long_work_counts_until_its_share_has_passed():
    now = 0.0
    share = allowance.Allowance(20.0, 60.0, lambda: now)
    assert not share.is_spent
    share.spend(19.0)
    assert not share.is_spent
    share.spend(100.0)
    assert share.is_spent
    now = 299.0
    assert share.is_spent
    now = 300.0
    assert not share.is_spent
