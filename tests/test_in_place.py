"""Caches that a run extends in the memory of its input."""

import numpy as np
import onnx
import pytest

from native_interface import Refused, Session

import pelton
from pelton.errors import InputError
from pelton.runtime.state import State

BATCH, HEADS, DEPTH = 2, 3, 16


def network(readers=1):
    """Writes rows into a cache of any length, and reads the result; the second reader reads the cache before it."""
    net = pelton.Network("cache")
    cache = net.input("cache", f"f32[{BATCH}, {HEADS}, capacity=1..32..4096, {DEPTH}]")
    rows = net.input("rows", f"f32[{BATCH}, {HEADS}, rows=1..1..64, {DEPTH}]")
    begin, end = (net.input(name, f"i64[{BATCH}]") for name in ("begin", "end"))
    after = net.cache_write(cache, rows, begin, end, length=cache.shape[2])
    net.output(after, "after")
    net.output(net.reduce_sum(after, axes=(2,), keepdims=False), "sums")
    if readers > 1:
        net.output(net.reduce_max(cache, axes=(2,), keepdims=False), "most")
    return net


def inputs(rng, capacity=40, rows=3):
    begin = rng.integers(0, capacity - rows, BATCH)
    return dict(
        cache=rng.standard_normal((BATCH, HEADS, capacity, DEPTH)).astype(np.float32),
        rows=rng.standard_normal((BATCH, HEADS, rows, DEPTH)).astype(np.float32),
        begin=begin,
        end=begin + rows,
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines") / "cache.pelton"
    pelton.build(network(), level=1, threads=2).save(path)
    return pelton.load(path)


def test_files_say_which_memory_an_output_may_use(engine):
    assert [(p.name, p.shares) for p in engine.outputs] == [("after", "cache"), ("sums", None)]


def test_in_place_only_rows_are_written(engine):
    context, rng = engine.context(2), np.random.default_rng()
    for capacity, rows in ((40, 3), (7, 1), (600, 33)):
        given = inputs(rng, capacity, rows)
        before = given["cache"].copy()
        want = before.copy()
        for b in range(BATCH):
            want[b, :, given["begin"][b] : given["end"][b]] = given["rows"][b]
        got = context.run(given, out={"after": given["cache"]})
        assert got["after"] is given["cache"] and np.array_equal(want, given["cache"])
        np.testing.assert_allclose(got["sums"], want.sum(2), rtol=1e-4, atol=1e-4)


def test_programs_in_c_share_it_too(engine):
    session, given = Session(engine.tobytes(), 2), inputs(np.random.default_rng(), 50, 5)
    want = engine.run({**given, "cache": given["cache"].copy()})["after"]
    for b in range(BATCH):  # in place, what lies behind the rows stays
        want[b, :, given["end"][b] :] = given["cache"][b, :, given["end"][b] :]
    session.run(*given.values(), out={0: given["cache"]})
    assert np.array_equal(want, given["cache"])
    with pytest.raises(Refused, match="output sums overlaps cache"):
        session.run(*given.values(), out={1: given["cache"].reshape(-1)[: BATCH * HEADS * DEPTH]})


def test_apart_positions_behind_the_rows_are_0(engine):
    given = inputs(np.random.default_rng())
    before, got = given["cache"].copy(), engine.run(given)["after"]
    assert np.array_equal(before, given["cache"])
    for b in range(BATCH):
        assert np.array_equal(got[b, :, : given["begin"][b]], before[b, :, : given["begin"][b]])
        assert not got[b, :, given["end"][b] :].any()


def test_other_shared_memory_is_rejected(engine):
    given, context = inputs(np.random.default_rng()), engine.context(1)
    long = np.zeros((BATCH + 1, HEADS, 40, DEPTH), np.float32)
    given["cache"] = long[:BATCH]
    with pytest.raises(InputError, match="shares memory with"):
        context.run(given, out={"after": long[1:]})


def test_a_state_extends_its_cache(engine):
    context, rng = engine.context(1), np.random.default_rng()
    state, given = engine.state(capacity=40), inputs(rng)
    cache = state.arrays["cache"]
    assert cache.shape == (BATCH, HEADS, 40, DEPTH) and not cache.any()
    want = np.zeros_like(cache)
    for position in (0, 3, 6, 3):  # back again at last
        rows = rng.standard_normal((BATCH, HEADS, 3, DEPTH)).astype(np.float32)
        want[:, :, position : position + 3] = rows
        places = dict(begin=np.full(BATCH, position), end=np.full(BATCH, position + 3))
        results = state.run(context, dict(rows=rows, **places))
        assert results.keys() == {"sums"} and state.arrays["cache"] is cache
        assert np.array_equal(cache, want)
    fork = state.fork()
    fork.run(context, dict(rows=given["rows"], begin=given["begin"], end=given["end"]))
    assert np.array_equal(cache, want) and not np.array_equal(fork.arrays["cache"], want)


def test_states_are_saved_and_read_back(engine, tmp_path):
    state, path = engine.state(capacity=40), tmp_path / "state.npz"
    state.arrays["cache"][:] = np.random.default_rng().standard_normal(state.arrays["cache"].shape)
    state.save(path)
    other = engine.state(capacity=40)
    other.load(path)
    assert np.array_equal(state.arrays["cache"], other.arrays["cache"])
    other.reset()
    assert not other.arrays["cache"].any() and state.arrays["cache"].any()
    with pytest.raises(InputError, match=r"'cache' is float32\[2, 3, 40, 16\] there, float32\[2, 3, 41, 16\] here"):
        engine.state(capacity=41).load(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="holds no state"):
        other.load(path)
    assert not other.arrays["cache"].any()


@pytest.mark.parametrize(
    "sizes, why",
    [
        (dict(length=3), "no dynamic dimension 'length'; it has capacity, rows"),
        (dict(capacity=5000), "1 to 4096, got 5000"),
        (dict(capacity=2.5), "capacity is an integer, got 2.5"),
    ],
)
def test_sizes_of_a_state_that_are_refused(engine, sizes, why):
    with pytest.raises(InputError, match=why):
        engine.state(**sizes)


def test_values_of_one_run_are_inputs_of_the_next():
    """Of a recurrent network: the state is exchanged, not extended."""
    net = pelton.Network("counter")
    x, before = net.input("x", "f32[3]"), net.input("before", "f32[3]")
    after = net.add(x, before)
    net.output(after, "after")
    net.output(net.mul(after, 2.0), "y")
    engine = pelton.build(net, level=0, threads=1)
    with pytest.raises(InputError, match="keeps no state"):
        engine.state()
    context, ones = engine.context(1), np.ones(3, np.float32)
    state = State({"before": np.zeros(3, np.float32)}, {"before": "after"}, {})
    for count in (1, 2, 3):
        assert np.array_equal(state.run(context, {"x": ones})["y"], 2 * count * ones)
    with pytest.raises(InputError, match="no output 'later'"):
        State({}, {"before": "later"}, {}).run(context, {"x": ones})


def test_a_cache_with_another_reader_is_not_shared():
    engine = pelton.build(network(readers=2), level=0, threads=1)
    given = inputs(np.random.default_rng())
    assert [p.shares for p in engine.outputs] == [None] * 3
    with pytest.raises(InputError, match="shares memory with"):
        engine.context(1).run(given, out={"after": given["cache"]})


@pytest.mark.parametrize("axis, mode", [(2, "linear"), (-2, "circular"), (1, "linear")])
def test_tensor_scatter_extends_its_cache_in_place(axis, mode):
    shape = [2, "capacity", 6] if axis == 1 else [2, 3, "capacity", 6]
    cache, y = (onnx.helper.make_tensor_value_info(n, 1, shape) for n in ("cache", "y"))
    rows = onnx.helper.make_tensor_value_info("rows", 1, [1 if d == "capacity" else d for d in shape])
    at = onnx.helper.make_tensor_value_info("at", 7, [2])
    node = onnx.helper.make_node("TensorScatter", ["cache", "rows", "at"], ["y"], axis=axis, mode=mode)
    graph = onnx.helper.make_graph([node], "scatter", [cache, rows, at], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=10)
    engine = pelton.build(model, {"capacity": "1..16..99"}, level=0, threads=1)
    assert [p.shares for p in engine.outputs] == ["cache"]
    rng, context = np.random.default_rng(), engine.context()
    state = State(
        {"cache": rng.standard_normal([11 if d == "capacity" else d for d in shape]).astype("f")}, {"cache": "y"}, {}
    )
    memory, want = state.arrays["cache"], state.arrays["cache"].copy()
    for at in ([3, 9], [0, 10], [11, 4] if mode == "circular" else [1, 4]):
        rows = rng.standard_normal([1 if d == "capacity" else d for d in shape]).astype(np.float32)
        for b in range(2):
            want[b].swapaxes(0, axis - 1 if axis > 0 else 1)[at[b] % 11] = rows[b].swapaxes(
                0, axis - 1 if axis > 0 else 1
            )[0]
        apart = context.run({"cache": memory.copy(), "rows": rows, "at": np.array(at)})["y"]
        state.run(context, {"rows": rows, "at": np.array(at)})
        assert state.arrays["cache"] is memory and np.array_equal(memory, want) and np.array_equal(apart, want)


def test_scripts_extend_caches_in_place_too():
    """As decoders do that choose their angles by the length (LongRoPE): a condition on data makes them scripts."""
    shape = [1, 2, "capacity", 4]
    cache, y = (onnx.helper.make_tensor_value_info(n, 1, shape) for n in ("cache", "y"))
    rows = onnx.helper.make_tensor_value_info("rows", 1, [1, 2, 1, 4])
    at, choice = onnx.helper.make_tensor_value_info("at", 7, [1]), onnx.helper.make_tensor_value_info("choice", 9, [])
    branches = {}
    for name, value in (("then_branch", 2.0), ("else_branch", 3.0)):
        factor = onnx.numpy_helper.from_array(np.full(int(value), value, np.float32), name)
        made = onnx.helper.make_node("Constant", [], [f"{name}_y"], value=factor)
        out = onnx.helper.make_tensor_value_info(f"{name}_y", 1, None)
        branches[name] = onnx.helper.make_graph([made], name, [], [out])
    nodes = [
        onnx.helper.make_node("If", ["choice"], ["factors"], **branches),
        onnx.helper.make_node("ReduceMax", ["factors"], ["factor"], keepdims=0),
        onnx.helper.make_node("Mul", ["rows", "factor"], ["scaled"]),
        onnx.helper.make_node("TensorScatter", ["cache", "scaled", "at"], ["y"], axis=2),
        onnx.helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
    ]
    total = onnx.helper.make_tensor_value_info("sum", 1, [])
    graph = onnx.helper.make_graph(nodes, "scripted", [cache, rows, at, choice], [y, total])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=10)
    engine = pelton.build(model, {"capacity": "1..16..99"}, level=0, threads=1)
    assert len(engine.steps) > 1 and engine.parts != (engine,)
    assert [p.shares for p in engine.outputs] == ["cache", None]
    assert [p.shares for p in pelton.load(engine.tobytes()).outputs] == ["cache", None]
    state, context, rng = engine.state(capacity=11), engine.context(), np.random.default_rng()
    memory, want = state.arrays["cache"], np.zeros((1, 2, 11, 4), np.float32)
    for position, first in ((0, True), (1, False), (7, True)):
        given = {"rows": rng.standard_normal((1, 2, 1, 4)).astype(np.float32), "at": np.array([position])}
        given["choice"] = np.array(first)
        want[:, :, position : position + 1] = given["rows"] * np.float32(2 if first else 3)
        apart = context.run({**given, "cache": memory.copy()})
        got = state.run(context, given)
        assert state.arrays["cache"] is memory and np.array_equal(memory, want) and np.array_equal(apart["y"], want)
        assert np.isclose(got["sum"], want.sum(), rtol=1e-4, atol=1e-4)
    long, size = np.zeros(100, np.float32), memory.size
    overlapping = [long[start : start + size].reshape(memory.shape) for start in (0, 4)]
    with pytest.raises(InputError, match="shares memory with"):
        context.run({**given, "cache": overlapping[0]}, out={"y": overlapping[1]})
