"""Damaged models, random graphs, damaged engine files: a right result or a pelton.Error, no crash, hang, or excess of
memory."""

from __future__ import annotations

import logging
import os
import random
import signal

import numpy as np
import onnx
import pytest
from compare import assert_close
from fuzz import caffe, cases, engines, graphs, language, pool, seeds, tflite
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_operands import i64
from onnx_models import draw, model, one_node

from pelton.builder.build import build
from pelton.errors import ModelError

FRESH = random.SystemRandom().randrange(1 << 32)  # half of the seeds are new in every run; what fails names its own


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(autouse=True)
def loud():
    """What cases say nothing of, other tests want to hear."""
    yield
    logging.disable(logging.NOTSET)


def assert_all_well(kind: str, case: pool.Case, count: int, seconds: float = pool.SECONDS) -> dict[str, int]:
    """Runs the case with as many fixed as fresh seeds; how they ended."""
    cases.quiet()
    ended: dict[str, int] = {}
    bad = []
    asked = [(kind, first + i) for first in (0, FRESH) for i in range(count // 2)]
    for e in pool.run({kind: case}, asked, seconds=seconds):
        ended[e.how] = ended.get(e.how, 0) + 1
        if e.bad:
            bad.append(e)
    again = "\n".join(f"python -m fuzz --small --kind {kind} --seed {e.seed} --runs 1" for e in bad)
    details = "\n".join(f"seed {e.seed}, {e.how} after {e.seconds:.1f} s: {e.detail}" for e in bad[:5])
    assert not bad, f"{len(bad)} of {count}; again, in the folder of the tests:\n{again}\n{details}"
    return ended


def test_damaged_models(cache):
    ended = assert_all_well("model", cases.model_case(seeds.small(), cache), 500)
    assert ended["refused"] > 100 and ended["planned"] > 50, ended


def test_random_graphs(cache):
    ended = assert_all_well("graph", cases.graph_case(cases.on_cpu(cache)), 20)
    assert ended == {"right": 20}


def test_random_graphs_in_int8(cache):
    ended = assert_all_well("int8", cases.graph_case(cases.in_int8(cache)), 4, seconds=60)
    assert ended == {"right": 4}


def test_damaged_engines(cache):
    ended = assert_all_well("engine", engines.engine_case(engines.originals(cache)), 300)
    assert ended["refused"] > 100 and ended["run"] + ended["script run"] > 10, ended


def test_damaged_nets_of_caffe():
    ended = assert_all_well("caffe", caffe.case, 300)
    assert ended["refused"] > 50 and ended["read"] > 20 and ended["planned"] > 8, ended


def test_damaged_tflite_files():
    ended = assert_all_well("tflite", tflite.case, 300)
    assert ended["refused"] > 50 and ended["planned"] > 20, ended


def test_damaged_gguf_files(cache):
    pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
    ended = assert_all_well("gguf", language.gguf_case(cache), 100)
    assert ended["refused"] > 30 and ended["read"] > 2, ended


def test_a_whole_gguf_file_is_read_built_and_right(tmp_path, cache):
    pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
    (tmp_path / "model.gguf").write_bytes(language.original()[0])
    ways = [language.opened(tmp_path / "model.gguf", seed, cache) for seed in (1, language.NETWORKS, language.BUILT)]
    assert ways == ["read", "network", "right"]


# --- what was found


def _conv(op: str, x: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    weights = np.linspace(-1, 1, 8 * 3 * 4, dtype=np.float32).reshape(
        (8, 3, 2, 2) if op == "ConvTranspose" else (3, 8, 2, 2)
    )
    one = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return model(
        [helper.make_node(op, ["x", "w"], ["a"]), helper.make_node("Less", ["a", "c"], ["y"])],
        {"x": x},
        ["y"],
        {"w": weights, "c": one},
    )


def _twice(image: str, added: str, x: str, **attrs) -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", [image, "w"], ["a"], **attrs), helper.make_node("Add", ["a", added], ["y"])]
    return model(nodes, {"x": x}, ["y"], {"w": np.linspace(-1, 1, 225, dtype=np.float32).reshape(5, 5, 3, 3)})


FOUND = {
    "a tail of lower rank on a transposed convolution": lambda: _conv("ConvTranspose", "f32[1, 8, 4, 4]", (3, 5, 5)),
    "a tail of lower rank on a convolution": lambda: _conv("Conv", "f32[1, 8, 4, 4]", (3, 3, 3)),
    "a tail of lower rank that is broadcast": lambda: _conv("Conv", "f32[1, 8, 4, 4]", (3, 1, 3)),
    "filters that are images, too": lambda: _twice("w", "x", "f32[1]", pads=[1, 1, 1, 1]),
    "filters that are added, too": lambda: _twice("x", "w", "f32[5, 5, 5, 5]"),
    "no columns": lambda: one_node("Add", "f32[3, 0]", "f32[3, 1]"),
    "nothing": lambda: one_node("Sigmoid", "f32[0]"),
    "a copy of nothing": lambda: model(
        [helper.make_node("Transpose", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"])],
        {"x": "f32[0, 3]"},
        ["y", "z"],
    ),
    "a copy of complex numbers": lambda: one_node("Transpose", "c128[2, 3]"),
    "a place in a joined buffer that lies in another order": lambda: one_node(
        "DFT", "f32[2, 3, 97, 2]", np.int64(97), np.int64(1), opset=20, inverse=1, onesided=1
    ),
    "a slice of complex numbers": lambda: one_node("Slice", "c64[2, 3, 5]", i64(0), i64(-1), i64(2)),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_stays_found(what, cache):
    m = FOUND[what]()
    feeds = draw(m)
    got = build(m, options=cases.OPTIONS.but(cache_dir=cache)).run(feeds)
    for name, want in zip(got, ReferenceEvaluator(m).run(None, feeds)):
        assert_close(got[name], want)


def test_a_size_below_zero_that_onnx_infers_is_refused():
    cases.assert_check_agrees(
        one_node("DFT", "f32[2, 3, 97, 2]", np.int64(-(1 << 63)), np.int64(2), opset=20).SerializeToString()
    )


def test_a_copy_that_is_a_turned_one_at_the_usual_sizes_alone(cache):
    sizes = np.array([1, 1, 2, 2], np.float32)
    m = model(
        [
            helper.make_node(
                "Resize",
                ["x", "", "s"],
                ["y"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        {"x": "f32[1, 8, n, n]"},
        ["y"],
        {"s": sizes},
    )
    engine = build(m, options=cases.OPTIONS.but(cache_dir=cache, strict=True, optimum={"x": (1, 8, 1, 1)}))
    for n in (1, 3):
        x = np.random.default_rng(n).random((1, 8, n, n), np.float32)
        assert_close(engine(x), x.repeat(2, 2).repeat(2, 3))


# --- that what goes wrong is seen


def crash(seed: int) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return "right"


def hang(seed: int) -> str:
    while True:
        pass


def greed(seed: int) -> str:
    return "right" if np.ones(1 << 25).any() else ""


def boundless(seed: int) -> str:
    try:
        np.ones(1 << 40)
    except MemoryError as e:
        raise ModelError(f"it failed: {e}") from None
    return "right"


def bug(seed: int) -> str:
    return {}["a"]


def wrong(seed: int) -> str:
    assert seed < 0, "not below 0"
    return "right"


def refusal(seed: int) -> str:
    raise ModelError("no")


@pytest.mark.parametrize(
    "case, how",
    [
        (crash, "crash"),
        (hang, "hang"),
        (greed, "memory"),
        (boundless, "memory"),
        (bug, "raised"),
        (wrong, "wrong"),
        (refusal, "refused"),
        (lambda seed: "right", "right"),
    ],
)
def test_the_pool_tells_how_a_case_ended(case, how):
    asked = [(kind, 1) for kind in ("well", "case", "well")]
    ended = [(e.kind, e.how) for e in pool.run({"case": case, "well": lambda seed: "right"}, asked, seconds=2)]
    assert sorted(ended) == sorted([("case", how), ("well", "right"), ("well", "right")])


def test_graphs_are_the_same_for_a_seed_and_different_for_others():
    texts = [[n.SerializeToString(deterministic=True) for n in graphs.program(seed).nodes] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) >= 5
    kinds = {n.op_type for seed in range(6) for n in graphs.program(seed).nodes}
    assert len(kinds) > 30


def test_what_fails_is_made_small():
    made = graphs.program(5)
    culprit = made.nodes[len(made.nodes) // 2]
    assert graphs.shrunk(made.nodes, lambda nodes: culprit in nodes) == [culprit]
    pair = [made.nodes[0], made.nodes[-1]]
    assert graphs.shrunk(made.nodes, lambda nodes: all(n in nodes for n in pair)) == pair


def test_a_wrong_result_is_wrong():
    made = graphs.program(5)
    name = next(
        o for n in made.nodes for o in n.output if made.arrays[o].dtype == np.float32 and made.arrays[o].size > 2
    )
    right = made.arrays[name]
    made.assert_near(name, right.copy())
    for other in (right * 1.01 + 0.01, right.astype(np.float64), right.reshape(-1)[:1], right * np.nan):
        with pytest.raises(AssertionError, match=name):
            made.assert_near(name, other)


@pytest.mark.parametrize("dtype, value, is_one", [("f4", 1e-45, True), ("f8", 1e-45, False), ("f2", 6e-8, False)])
def test_subnormals_of_damaged_models(dtype, value, is_one):
    """Kernels flush them to zero, so that numpy's results are no measure; those of f16 are none in f32."""
    assert cases.has_subnormals(np.array([1, 0, value], dtype)) is is_one
