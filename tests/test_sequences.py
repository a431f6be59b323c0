"""Sequences of a decoder: several at once, forks and rewinds compute bit for bit what one sequence alone computes."""

import numpy as np
import onnx
import pytest
from onnx import helper

import pelton
from pelton.errors import InputError
from pelton.runtime.state import State

VOCABULARY, WIDTH, HEADS, KV, DEPTH, LAYERS = 96, 64, 4, 2, 16, 2
CAPACITY, TOKENS, SEQUENCES = 1100, 1000, 8
PROFILES = {"token": {"tokens": 1}, "prompt": {"tokens": "1..16..64"}}


def decoder(vocabulary: int = VOCABULARY) -> onnx.ModelProto:
    """Returns a decoder with weights of 4 bits, as onnxruntime-genai's builder writes it."""
    rng, nodes, constants = np.random.default_rng(9), [], []

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def node(kind: str, inputs: list[str], outputs: list[str], domain: str = "com.microsoft", **attrs) -> list[str]:
        nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain, **attrs))
        return outputs

    def linear(x: str, inner: int, outputs: int, name: str) -> str:
        w = constant(f"{name}.w", rng.integers(0, 256, (outputs, inner // 32, 16), dtype=np.uint8))
        s = constant(f"{name}.s", (rng.random((outputs, inner // 32)) / 8 / inner**0.5).astype(np.float32))
        return node("MatMulNBits", [x, w, s], [name], K=inner, N=outputs, bits=4, block_size=32)[0]

    def norm(x: str, name: str) -> str:
        weight = constant(f"{name}.w", (1 + rng.standard_normal(WIDTH) / 8).astype(np.float32))
        return node("SimplifiedLayerNormalization", [x, weight], [name], "", axis=-1, epsilon=1e-5)[0]

    table = constant("table", rng.standard_normal((vocabulary, WIDTH)).astype(np.float32))
    (x,) = node("Gather", [table, "ids"], ["x"], "")
    angles = np.outer(np.arange(CAPACITY), 100.0 ** (-np.arange(DEPTH // 2) / (DEPTH // 2)))
    turns = [constant(n, f(angles).astype(np.float32)) for n, f in (("cos", np.cos), ("sin", np.sin))]
    tokens = helper.make_tensor_value_info("ids", 7, ["batch", "tokens"])
    mask = helper.make_tensor_value_info("mask", 7, ["batch", "total"])
    one, axis = constant("one", np.array(1)), constant("axis", np.array([1]))
    (count,) = node("ReduceSum", ["mask", axis], ["count"], "", keepdims=0)
    node("Cast", node("Sub", [count, one], ["before"], ""), ["last"], "", to=6)
    (total,) = node("Gather", [*node("Shape", ["mask"], ["sizes"], ""), one], ["total"], "")
    (total,) = node("Cast", [total], ["length"], "", to=6)
    caches, news = [], []
    for i in range(LAYERS):
        pasts, presents = ([f"{when}.{i}.{kind}" for kind in ("key", "value")] for when in ("past", "present"))
        caches += [helper.make_tensor_value_info(n, 1, ["batch", KV, "capacity", DEPTH]) for n in pasts]
        news += [helper.make_tensor_value_info(n, 1, None) for n in presents]
        qkv = linear(norm(x, f"{i}.norm"), WIDTH, (HEADS + 2 * KV) * DEPTH, f"{i}.qkv")
        attrs = dict(num_heads=HEADS, kv_num_heads=KV, do_rotary=1)
        operands = [qkv, "", "", *pasts, "last", total, *turns]
        rows = node("GroupQueryAttention", operands, [f"{i}.attention", *presents], **attrs)[0]
        (x,) = node("Add", [x, linear(rows, WIDTH, WIDTH, f"{i}.o")], [f"{i}.x"], "")
        wide = linear(norm(x, f"{i}.norm2"), WIDTH, 2 * WIDTH, f"{i}.up")
        (wide,) = node("Sigmoid", [wide], [f"{i}.gate"], "")
        (x,) = node("Add", [x, linear(wide, 2 * WIDTH, WIDTH, f"{i}.down")], [f"{i}.y"], "")
    linear(norm(x, "norm"), WIDTH, vocabulary, "logits")
    outputs = [helper.make_tensor_value_info("logits", 1, None), *news]
    graph = helper.make_graph(nodes, "decoder", [tokens, mask, *caches], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture(scope="module")
def engine():
    sizes = {"batch": f"1..1..{SEQUENCES}", "capacity": f"1..{CAPACITY}..{CAPACITY}"}
    sizes["total"] = f"1..64..{CAPACITY}"
    return pelton.build(decoder(), sizes, profiles=PROFILES, level=0, threads=2)


@pytest.fixture(scope="module")
def context(engine):
    return engine.context(2)


def step(context, state: State, tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Appends tokens [batch, n] to sequences, which then have these lengths; returns the logits of the last ones."""
    ends = np.asarray(ends)
    mask = (np.arange(ends.max()) < ends[:, None]).astype(np.int64)
    return state.run(context, {"ids": np.asarray(tokens, np.int64), "mask": mask})["logits"][:, -1]


def test_eight_sequences_at_once_are_those_one_by_one(engine, context):
    rng = np.random.default_rng()
    prompts = [rng.integers(0, VOCABULARY, n) for n in rng.permutation(np.arange(3, 59, 7))]
    batch, alone = engine.state(batch=SEQUENCES), [engine.state() for _ in prompts]
    ends, after = np.array(list(map(len, prompts))), np.zeros((SEQUENCES, VOCABULARY), np.float32)
    for i, prompt in enumerate(prompts):
        after[i] = step(context, batch.sequence(i), prompt[None], [len(prompt)])[0]
        assert np.array_equal(after[i], step(context, alone[i], prompt[None], [len(prompt)])[0])
    for count in range(TOKENS):
        # greedy decoding would soon repeat itself
        tokens, ends = (after.argmax(1) + rng.integers(0, 7, SEQUENCES)) % VOCABULARY, ends + 1
        after = step(context, batch, tokens[:, None], ends)
        i = count % SEQUENCES if count > 20 else None
        for k in range(SEQUENCES):
            one = step(context, alone[k], tokens[k : k + 1, None], ends[k : k + 1])
            if i is None or k == i:
                assert np.array_equal(one[0], after[k]), (count, k)
    for k, state in enumerate(alone):
        for name, a in state.arrays.items():
            assert np.array_equal(a[0], batch.arrays[name][k])


def test_forks_and_rewinds_are_fresh_sequences(engine, context):
    rng = np.random.default_rng()
    tokens = rng.integers(0, VOCABULARY, 90)

    def fresh(sequence):
        state = engine.state()
        step(context, state, sequence[None, :20], [20])
        return [step(context, state, sequence[None, i : i + 1], [i + 1])[0] for i in range(20, len(sequence))]

    state = engine.state()
    step(context, state, tokens[None, :20], [20])
    for i in range(20, 60):
        step(context, state, tokens[None, i : i + 1], [i + 1])
    fork, other = state.fork(), np.concatenate([tokens[:60], rng.integers(0, VOCABULARY, 30)])
    forked = [step(context, fork, other[None, i : i + 1], [i + 1])[0] for i in range(60, 90)]
    went = [step(context, state, tokens[None, i : i + 1], [i + 1])[0] for i in range(60, 90)]
    assert np.array_equal(forked, fresh(other)[40:]) and np.array_equal(went, fresh(tokens)[40:])
    back = np.concatenate([tokens[:35], rng.integers(0, VOCABULARY, 30)])  # what lies behind does not count
    again = [step(context, state, back[None, i : i + 1], [i + 1])[0] for i in range(35, 65)]
    assert np.array_equal(again, fresh(back)[15:])


def test_a_sequence_of_a_batch_uses_its_memory(engine):
    batch = engine.state(batch=3, capacity=64)
    part = batch.sequence(1)
    for name, a in part.arrays.items():
        a[...] = 7
        assert batch.arrays[name][1].min() == 7 and not batch.arrays[name][[0, 2]].any()
    with pytest.raises(InputError, match="the state has 3 sequences, from 0 on; there is no sequence 3"):
        batch.sequence(3)
    with pytest.raises(InputError, match="they are no batch"):
        State({"a": np.zeros((2, 3)), "b": np.zeros((3, 3))}, {}, {}).sequence(0)


def test_exchanged_values_of_a_sequence_stay_in_the_batch():
    net = pelton.Network("sums")
    x, before = net.input("x", "f32[n=1..1..4, 3]"), net.input("before", "f32[n, 3]")
    net.output(net.add(x, before), "after")
    net.output(net.mul(x, 2.0), "y")
    context = pelton.build(net, level=0, threads=1).context()
    batch = State({"before": np.zeros((4, 3), np.float32)}, {"before": "after"}, {})
    batch.sequence(2).run(context, {"x": np.ones((1, 3), np.float32)})
    batch.run(context, {"x": np.ones((4, 3), np.float32)})
    assert np.array_equal(batch.arrays["before"], np.float32([[1] * 3, [1] * 3, [2] * 3, [1] * 3]))


def test_a_growing_cache_is_no_part_of_a_batch():
    net = pelton.Network("growing")
    past, x = net.input("past", "f32[n=1..1..4, length=0..8..64, 3]"), net.input("x", "f32[n, 1, 3]")
    net.output(net.concat([past, x], axis=1), "after")
    context = pelton.build(net, level=0, threads=1).context()
    state = State({"past": np.zeros((4, 5, 3), np.float32)}, {"past": "after"}, {})
    with pytest.raises(InputError, match=r"shape \[1, 5, 3\], a run made it \[1, 6, 3\]"):
        state.sequence(0).run(context, {"x": np.ones((1, 1, 3), np.float32)})
