"""Caches of decoders in f16, and in int8 with a scale for each head and position."""

import numpy as np
import pytest
from native_interface import Session
from onnx import helper
from test_sequences import CAPACITY, DEPTH, KV, LAYERS, PROFILES, SEQUENCES, VOCABULARY, decoder, step

import pelton
from pelton.diagnose.compare import compare
from pelton.errors import InputError, ModelError
from pelton.importers import load
from pelton.ir.evaluate import evaluate
from pelton.options import KV_CACHES

BOUNDS = {"fp16": 4e-5, "int8": 1e-3}  # of the largest logit; five times those measured
NUMBERS = {"fp16": np.float16, "int8": np.int8}
SIZES = {"batch": f"1..1..{SEQUENCES}", "capacity": f"1..{CAPACITY}..{CAPACITY}", "total": f"1..64..{CAPACITY}"}


@pytest.fixture(scope="module", params=KV_CACHES)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def engine(kind):
    return pelton.build(decoder(), SIZES, profiles=PROFILES, level=0, threads=2, kv_cache=kind)


@pytest.fixture(scope="module")
def context(engine):
    return engine.context(2)


def exact(tokens):
    """Returns the logits of a sequence, [tokens, vocabulary], in float64, with a cache in float64."""
    graph = load(decoder(), shapes=SIZES).graph
    caches = {v.name: np.zeros((1, KV, 1, DEPTH)) for v in graph.inputs if v.name.startswith("past")}
    mask = np.ones((1, len(tokens)), np.int64)
    return evaluate(graph, {"ids": tokens[None], "mask": mask, **caches}, round=False)["logits"][0]


def test_caches_have_the_type_and_are_extended_in_place(engine, kind):
    names = [f".{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]
    names += [f"{name}.scale" for name in names] if kind == "int8" else []
    shares = {p.name: p.shares for p in engine.outputs if p.shares}
    assert shares == {f"present{name}": f"past{name}" for name in names}
    arrays = engine.state(batch=3, capacity=71).arrays
    for name, a in arrays.items():
        scale = name.endswith(".scale")
        assert a.shape == (3, KV, 71, 1 if scale else DEPTH) and a.dtype == (np.float32 if scale else NUMBERS[kind])
        assert not a.any()
    assert sum(a.nbytes for a in arrays.values()) < len(names) * 3 * KV * 71 * DEPTH * (2.1 if kind == "fp16" else 1)


def test_decoding_is_close_to_float64(engine, context, kind):
    rng = np.random.default_rng()
    tokens = rng.integers(0, VOCABULARY, 77)
    want = exact(tokens)
    state = engine.state(capacity=83)
    got = [step(context, state, tokens[None, :13], [13])[0]]
    got += [step(context, state, tokens[None, i : i + 1], [i + 1])[0] for i in range(13, 70)]
    got.append(step(context, state, tokens[None, 70:], [77])[0])  # several tokens behind a filled cache
    errors = np.abs(np.stack(got) - want[[12, *range(13, 70), 76]]).max(1) / np.abs(want).max()
    assert 0 < errors.max() < BOUNDS[kind]


def test_several_sequences_are_those_one_by_one(engine, context):
    rng = np.random.default_rng()
    ends = rng.permutation(np.arange(3, 59, 7))
    prompts = [rng.integers(0, VOCABULARY, n) for n in ends]
    batch, alone = engine.state(batch=len(ends), capacity=101), [engine.state(capacity=101) for _ in prompts]
    for i, prompt in enumerate(prompts):
        after = step(context, batch.sequence(i), prompt[None], [len(prompt)])
        assert np.array_equal(after, step(context, alone[i], prompt[None], [len(prompt)]))
    for _ in range(20):
        tokens, ends = rng.integers(0, VOCABULARY, (len(ends), 1)), ends + 1
        after = step(context, batch, tokens, ends)
        for i, state in enumerate(alone):
            assert np.array_equal(after[i], step(context, state, tokens[i : i + 1], ends[i : i + 1])[0])
    for i, state in enumerate(alone):
        for name, a in state.arrays.items():
            assert np.array_equal(a[0], batch.arrays[name][i])


def test_states_fork_go_back_and_are_saved(engine, context, tmp_path):
    rng = np.random.default_rng()
    tokens = rng.integers(0, VOCABULARY, (1, 40))
    state = engine.state(capacity=64)
    memory = {name: a.ctypes.data for name, a in state.arrays.items()}
    step(context, state, tokens[:, :20], [20])
    fork = state.fork()
    want = [step(context, state, tokens[:, i : i + 1], [i + 1]) for i in range(20, 40)]
    assert {name: a.ctypes.data for name, a in state.arrays.items()} == memory
    fork.save(tmp_path / "state.npz")
    other = engine.state(capacity=64)
    other.load(tmp_path / "state.npz")
    for again in (fork, other, state):  # the last one goes back
        assert np.array_equal([step(context, again, tokens[:, i : i + 1], [i + 1]) for i in range(20, 40)], want)


def test_rows_are_rounded_to_the_nearest_number(kind):
    """Whatever their size: each row has its own scale."""
    net = pelton.Network("rows")
    cache = net.input("cache", "f32[batch=1..1..8, 3, capacity=1..64..2048, 19]")
    rows, begin = net.input("rows", "f32[batch, 3, n=1..1..9, 19]"), net.input("begin", "i64[batch]")
    after = net.cache_write(cache, rows, begin, begin + 1000, length=cache.shape[2], keep=True)
    net.output(after, "after")
    net.output(net.reduce_sum(after, axes=(2,)), "sums")
    engine = pelton.build(net, level=0, threads=1, kv_cache=kind)
    rng = np.random.default_rng()
    x = (rng.standard_normal((2, 3, 5, 19)) * np.exp2(rng.integers(-12, 12, (2, 3, 5, 1)))).astype(np.float32)
    x[0, 1, 2], begin = 0, np.array([7, 29])
    state = engine.state(batch=2, capacity=37)
    sums = state.run(engine.context(), {"rows": x, "begin": begin})["sums"]
    stored = state.arrays["cache"].astype(np.float64) * state.arrays.get("cache.scale", 1)
    own = np.stack([stored[b, :, at : at + 5] for b, at in enumerate(begin)])
    most = np.abs(x).max(-1, keepdims=True)
    bound = most / 127 * 0.501 if kind == "int8" else np.maximum(np.abs(x) * 2.0**-11, 2.0**-25)
    assert (np.abs(own - x) <= bound).all() and np.count_nonzero(stored) == np.count_nonzero(own)
    np.testing.assert_allclose(sums, stored.sum(2, keepdims=True), rtol=1e-5, atol=1e-5 * most.max())


@pytest.mark.parametrize("axis", [1, 2])
def test_scattered_caches_have_scales_by_head_and_position(axis, kind):
    shape = [2, "capacity", 3, 6] if axis == 1 else [2, 3, "capacity", 6]
    cache, y = (helper.make_tensor_value_info(n, 1, shape) for n in ("cache", "y"))
    rows = helper.make_tensor_value_info("rows", 1, [1 if d == "capacity" else d for d in shape])
    at, total = helper.make_tensor_value_info("at", 7, [2]), helper.make_tensor_value_info("total", 1, None)
    nodes = [
        helper.make_node("TensorScatter", ["cache", "rows", "at"], ["y"], axis=axis),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "scatter", [cache, rows, at], [y, total])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    engine = pelton.build(model, {"capacity": "1..16..99"}, level=0, threads=1, kv_cache=kind)
    state, rng = engine.state(capacity=11), np.random.default_rng()
    if kind == "int8":
        assert state.arrays["cache.scale"].shape == ((2, 11, 3, 1) if axis == 1 else (2, 3, 11, 1))
    memory, want = state.arrays["cache"], np.zeros((2, 11, 3, 6))
    for position in (0, 1, 10, 4):
        x = rng.standard_normal([1 if d == "capacity" else d for d in shape]).astype(np.float32)
        got = state.run(engine.context(), {"rows": x, "at": np.array([position, position])})
        want[:, position] = (x if axis == 1 else x.swapaxes(1, 2))[:, 0]
        stored = state.arrays["cache"].astype(np.float64) * state.arrays.get("cache.scale", 1)
        assert state.arrays["cache"] is memory and np.isclose(got["total"], stored.sum(), rtol=1e-4, atol=1e-4)
        assert np.abs((stored if axis == 1 else stored.swapaxes(1, 2)) - want).max() < 4 / 127


def test_programs_in_c_extend_them_too(kind):
    net = pelton.Network("c")
    cache, rows = net.input("cache", "f32[2, 3, 17, 5]"), net.input("rows", "f32[2, 3, 1, 5]")
    begin = net.input("begin", "i64[2]")
    after = net.cache_write(cache, rows, begin, begin + 1, length=17, keep=True)
    net.output(net.reduce_max(after, axes=(2, 3)), "most")
    net.output(after, "after")
    engine = pelton.build(net, level=0, threads=1, kv_cache=kind)
    state, session = engine.state(), Session(engine.tobytes(), 1)
    given = {"rows": np.random.default_rng().standard_normal((2, 3, 1, 5)).astype("f"), "begin": np.array([3, 16])}
    want = state.run(engine.context(), given)["most"]
    arrays = {name: np.zeros_like(a) for name, a in state.arrays.items()}
    names = [p.name for p in engine.inputs]
    shared = {i: arrays[p.shares] for i, p in enumerate(engine.outputs) if p.shares}
    results = session.run(*[{**given, **arrays}[name] for name in names], out=shared)
    assert len(shared) == len(arrays) and np.array_equal(results[0], want)
    assert all(np.array_equal(arrays[name], state.arrays[name]) for name in arrays)


def test_attention_reads_them_without_a_copy(engine):
    """No step but those that write rows has a result as long as a cache."""
    for part in engine.parts:
        operators = [one.info["op"] for one in part.steps]
        assert sum(op.startswith("cache_attention") for op in operators) == LAYERS
        for one in part.steps:
            shapes = [t.shape for kernel in one.kernels for t in kernel.outputs]
            long = [s for s in shapes if len(s) > 3 and s[-1] == DEPTH and any("total" in str(d) for d in s)]
            assert bool(long) <= (one.info["op"] == "cache_write"), one.info


def test_engines_are_checked_refitted_and_compared_with_their_model(kind):
    sizes = dict(SIZES, tokens="1..1..16")
    engine = pelton.build(decoder(), sizes, level=0, threads=1, kv_cache=kind, check=True, refit=True)
    comparison = compare(decoder(), engine)
    assert [o.name for o in comparison.outputs] == [p.name for p in engine.outputs]
    assert comparison.outputs[0].name == "logits" and comparison.outputs[0].error < 1e-5


@pytest.mark.parametrize(
    "options, why",
    [
        (dict(kv_cache="f16"), "kv_cache is 'fp16' or 'int8', for CPUs only, got 'f16'"),
        (dict(kv_cache=8), "kv_cache is 'fp16' or 'int8', for CPUs only, got 8"),
        (dict(kv_cache="int8", target="cuda:sm_90"), "for CPUs only, got 'int8' for target 'cuda:sm_90'"),
    ],
)
def test_wrong_options(options, why):
    with pytest.raises(InputError, match=why):
        pelton.Options(**options)


def test_programs_without_an_extended_cache_are_rejected(kind):
    net = pelton.Network("none")
    cache, rows = net.input("cache", "f32[1, 2, 8, 4]"), net.input("rows", "f32[1, 2, 1, 4]")
    at = net.input("at", "i64[1]")
    net.output(net.cache_write(cache, rows, at, at + 1, length=8), "after")
    net.output(net.reduce_max(cache, axes=(2,)), "before")  # reads the cache, too
    with pytest.raises(InputError, match="kv_cache= is for programs that extend caches .* has none"):
        pelton.build(net, level=0, kv_cache=kind)


def test_positions_along_the_last_axis_have_no_scales():
    shape = [2, 3, 6, 16]
    cache, y = (helper.make_tensor_value_info(n, 1, shape) for n in ("cache", "y"))
    rows, at = helper.make_tensor_value_info("rows", 1, [2, 3, 6, 1]), helper.make_tensor_value_info("at", 7, [2])
    node = helper.make_node("TensorScatter", ["cache", "rows", "at"], ["y"], axis=3)
    graph = helper.make_graph([node], "scatter", [cache, rows, at], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    assert pelton.build(model, level=0, kv_cache="fp16").outputs[0].shares == "cache"
    with pytest.raises(ModelError, match="'cache' has positions there: use 'fp16'"):
        pelton.build(model, level=0, kv_cache="int8")


@pytest.mark.parametrize("storage", ["f16", "i8"])
def test_caches_of_the_model_are_read_as_they_are(storage):
    """Of GroupQueryAttention in halves, and with integers that have one scale."""
    rng, element = np.random.default_rng(), 10 if storage == "f16" else 1
    dtype = helper.tensor_dtype_to_np_dtype(element)
    q, k, v = (helper.make_tensor_value_info(n, element, [2, "n", 16 * h]) for n, h in (("q", 4), ("k", 2), ("v", 2)))
    cache = [helper.make_tensor_value_info(n, 10 if storage == "f16" else 3, [2, 2, 40, 16]) for n in ("pk", "pv")]
    last, total = helper.make_tensor_value_info("last", 6, [2]), np.array(40, np.int32)
    attrs = {} if storage == "f16" else dict(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
    names = ["q", "k", "v", "pk", "pv", "last", "total", *([""] * 5 + ["ks", "vs"] if attrs else [])]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "nk", "nv"],
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
        **(attrs and dict(attrs, kv_cache_bit_width=8)),
    )
    constants = [helper.make_tensor("total", 6, [], [int(total)])]
    constants += [helper.make_tensor(n, 1, [1], [s]) for n, s in (("ks", 0.03), ("vs", 0.05))] if attrs else []
    outputs = [
        helper.make_tensor_value_info(n, t.type.tensor_type.elem_type, None)
        for n, t in zip(("y", "nk", "nv"), (q, *cache))
    ]
    graph = helper.make_graph([node], "gqa", [q, k, v, *cache, last], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    engine = pelton.build(model, {"n": "1..1..9"}, level=0, threads=1)
    assert {p.name: p.shares for p in engine.outputs} == {"y": None, "nk": "pk", "nv": "pv"}
    assert any(one.info["op"].startswith("cache_attention") for one in engine.steps)
    for rows in (1, 5):
        given = {n: rng.standard_normal((2, rows, 16 * h)).astype(dtype) for n, h in (("q", 4), ("k", 2), ("v", 2))}
        if attrs:  # no number lies between two integers of the cache, where f32 decides by chance
            for name, scale in (("k", 0.03), ("v", 0.05)):
                given[name] = ((np.round(given[name] / scale) + rng.uniform(-0.4, 0.4)) * scale).astype(dtype)
        given["last"] = np.array([rows + 3, 37], np.int32)
        for name in ("pk", "pv"):
            stored = rng.standard_normal((2, 2, 40, 16)) * (1 if storage == "f16" else 30)
            given[name] = stored.astype(np.float16 if storage == "f16" else np.int8)
        sized = load(model, shapes={"n": rows}).graph
        want, got = evaluate(sized, {v.name: given[v.name] for v in sized.inputs}, round=False), engine.run(given)
        for name in ("y", "nk", "nv"):
            tolerance = 3e-3 if storage == "f16" else 1e-5
            np.testing.assert_allclose(got[name], want[name], rtol=tolerance, atol=tolerance, err_msg=name)
