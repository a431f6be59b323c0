"""Scripts: models of which the data decides what runs or how large it is, against the onnx package; their file, and
what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import MICROSOFT
from onnx_models import model as plain
from script_models import MODELS, N, floats, graph, ints, model

import pelton
from pelton.cli import main
from pelton.cli.arrays import write
from pelton.cli.run import describe_outputs
from pelton.engine import file
from pelton.engine.program import (
    DEEPEST,
    Block,
    Constant,
    Feed,
    HostAction,
    IfAction,
    LoopAction,
    RunAction,
    validate_script,
)
from pelton.errors import BuildError, EngineError, InputError, ModelError
from pelton.partition.segment import Symbols
from pelton.ir import dims
from pelton.reference import functions as data
from pelton.runtime.program import ScriptEngine


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    cache = tmp_path_factory.mktemp("script")

    def make(m: onnx.ModelProto, **kw) -> pelton.Engine:
        return pelton.build(m, level=0, cache_dir=cache, **kw)

    return make


@pytest.fixture(scope="module")
def engines(build):
    made: dict[str, pelton.Engine] = {}

    def get(name: str) -> pelton.Engine:
        if name not in made:
            made[name] = build(MODELS[name]()[0])
        return made[name]

    return get


def same(found: dict, m: onnx.ModelProto, feeds: dict) -> None:
    try:
        wanted = dict(zip((o.name for o in m.graph.output), ReferenceEvaluator(m).run(None, feeds)))
    except RuntimeError:
        # the package scans forwards only; known lengths are written out
        wanted = pelton.build(m, level=0, shapes={name: a.shape for name, a in feeds.items()}).run(feeds)
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        got, want = found[name], np.asarray(want)
        assert got.dtype == want.dtype and got.shape == want.shape, (
            f"{name}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
        )
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_models_give_what_the_onnx_package_gives(name, engines):
    m, every = MODELS[name]()
    engine = engines(name)
    assert isinstance(engine, ScriptEngine)
    for feeds in (*every, every[0]):
        same(engine.run(feeds), m, feeds)


# --- how they are cut


def test_a_detector_is_two_engines_around_one_step(engines):
    """Everything before the suppression, and everything after it."""
    engine = engines("detector")
    assert (
        len(engine.script.engines) == 2
        and len(engine.meta["host_steps"]) == 1
        and "NonMaxSuppression" in engine.meta["host_steps"][0]
    )
    assert [type(a) for a in engine.script.main.steps] == [RunAction, HostAction, RunAction]


def test_sizes_may_be_the_values_of_inputs(engines):
    """A shape that comes as an input needs no step of Python: the engine gets its numbers as sizes."""
    engine = engines("shapes_as_inputs")
    assert not engine.meta["host_steps"] and {f.source for a in engine.script.main.steps for f in a.feeds} >= {
        "array",
        "value",
    }


def test_a_loop_body_is_compiled(engines):
    (loop,) = [a for a in engines("greedy_decoder").script.main.steps if isinstance(a, LoopAction)]
    assert any(isinstance(a, RunAction) for a in loop.body.steps) and not engines("greedy_decoder").meta["host_steps"]


def test_inputs_and_outputs_say_what_is_open(engines):
    engine = engines("nonzero_gather")
    assert (
        engine.inputs[0].shape == ("n", 4)
        and isinstance(engine.outputs[0].shape[0], str)
        and engine.shapes({"n": 5}) == {"x": (5, 4)}
    )
    with pytest.raises(InputError, match="'x' needs"):
        engine.run({"x": floats(3, 5)})
    with pytest.raises(InputError, match="missing"):
        engine.run({})


def test_outputs_into_arrays_of_the_caller(engines):
    engine, x = engines("compressed"), floats(6, 4)
    score = np.arange(6, dtype=np.float32) - 2  # three are above nothing
    want, out = engine.run({"x": x, "score": score})["y"], np.empty((3, 2), np.float32)
    assert engine.run({"x": x, "score": score}, out={"y": out})["y"] is out and np.array_equal(out, want)
    with pytest.raises(InputError, match="out\\['y'\\]"):
        engine.run({"x": x, "score": score}, out={"y": np.empty((4, 2), np.float32)})


def test_outputs_share_no_memory_with_inputs(build):
    then, other = (
        graph([N("Identity", ["x"], ["a"])], {}, {"a": (T.FLOAT, ["n"])}),
        graph([N("Identity", ["k"], ["b"])], {}, {"b": (T.FLOAT, [3])}),
    )
    engine = build(
        model(
            [N("If", ["c"], ["y"], then_branch=then, else_branch=other)],
            {"c": (T.BOOL, []), "x": (T.FLOAT, ["n"])},
            {"y": (T.FLOAT, [None])},
            {"k": floats(3)},
        )
    )
    x = floats(5)
    for c in (True, False):
        y = engine.run({"c": np.array(c), "x": x})["y"]
        y[:] = 0
        assert x.all() and engine.run({"c": np.array(c), "x": x})["y"].all()


def test_profile_has_every_step(engines):
    m, every = MODELS["greedy_decoder"]()
    times = engines("greedy_decoder").context().profile(every[0])
    assert [s.name for s, _ in times] == [s.name for s in engines("greedy_decoder").steps] and sum(
        t for _, t in times
    ) > 0


def test_a_trace_has_all_that_ran(engines):
    """A loop's steps as often as it turned, and the loop around them."""
    m, every = MODELS["greedy_decoder"]()
    engine = engines("greedy_decoder")
    results, steps = engine.trace(every[0])
    assert all(np.array_equal(a, b) for a, b in zip(results.values(), engine.run(every[0]).values(), strict=True))
    names = [s.name for s, *_ in steps]
    assert set(names) <= {s.name for s in engine.steps} and len(names) > len(set(names))
    (loop,) = [(begin, end) for s, begin, end in steps if s.host == "loop"]
    inside = {s.name for s, begin, end in steps if loop[0] <= begin <= end <= loop[1]}
    assert {name for name in names if names.count(name) > 1} <= inside


# --- what is refused


def _endless() -> onnx.ModelProto:
    body = graph(
        [N("Add", ["v", "v"], ["w"]), N("Identity", ["go"], ["on"]), N("Identity", ["v"], ["row"])],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "v": (T.FLOAT, ["n"])},
        {"on": (T.BOOL, []), "w": (T.FLOAT, ["n"]), "row": (T.FLOAT, ["n"])},
    )
    return model(
        [N("Loop", ["", "c", "x"], ["y", "rows"], body=body)],
        {"x": (T.FLOAT, ["n"]), "c": (T.BOOL, [])},
        {"y": (T.FLOAT, ["n"]), "rows": (T.FLOAT, ["k", "n"])},
    )


def test_loops_without_an_end_are_bounded(build):
    engine = build(_endless(), max_iterations=50)
    assert engine.run({"x": floats(2), "c": np.array(False)})["rows"].shape == (0, 0)
    with pytest.raises(EngineError, match="not ended after 50 iterations.*max_iterations"):
        engine.run({"x": floats(2), "c": np.array(True)})


def test_what_a_loop_stacks_is_bounded(build, monkeypatch):
    engine = build(_endless())
    context = engine.context()
    monkeypatch.setattr(context, "_room", 1000)
    with pytest.raises(EngineError, match="what a loop stacks takes more than half of the memory"):
        context.run({"x": floats(2), "c": np.array(True)})


def test_what_nothing_can_run_is_refused(build):
    m = model(
        [N("NonZero", ["x"], ["i"]), N("Relu", ["x"], ["y"])],
        {"x": (T.FLOAT, ["n"])},
        {"y": (T.FLOAT, ["n"]), "i": (T.INT64, [1, "k"])},
    )
    m.graph.node[1].op_type = "Relux"
    with pytest.raises(ModelError, match="no operator Relux"):
        build(m)


def test_sizes_an_engine_does_not_take_run_where_onnx_has_no_reference(build, caplog):
    """No rows are left, or one where as many as another has were assumed: engines are made for others, and the onnx
    package does not know the operator. The first such run says so."""
    rng = np.random.default_rng()
    x, packed, scales = floats(3, 16), rng.integers(0, 256, (3, 1, 8), np.uint8), floats(3)
    product = N("MatMulNBits", ["rows", "packed", "scales"], ["p"], domain=MICROSOFT, K=16, N=3, bits=4, block_size=16)
    engine = build(
        plain(
            [N("Compress", ["x", "c"], ["rows"], axis=0), product, N("Mul", ["p", "z"], ["y"])],
            {"x": "f32[3, 16]", "c": "bool[3]", "z": "f32[3, 3]"},
            ["y"],
            {"packed": packed, "scales": scales},
            domains={MICROSOFT: 1},
        )
    )
    low, high = packed[:, 0] & 15, packed[:, 0] >> 4
    weights = (np.stack((low, high), -1).reshape(3, 16) - 8.0) * scales[:, None]
    z = floats(3, 3, seed=1)
    for kept, told in (([True] * 3, 0), ([False, True, False], 1), ([True, False, False], 1)):
        (y,) = engine.run({"x": x, "c": np.array(kept), "z": z}).values()
        np.testing.assert_allclose(y, x[kept].astype(np.float64) @ weights.T * z, rtol=1e-4, atol=1e-4)
        assert sum("run on the host" in r.getMessage() for r in caplog.records if r.levelname == "WARNING") == told
    engine = build(
        plain(
            [N("Compress", ["x", "c"], ["rows"], axis=0), product],
            {"x": "f32[3, 16]", "c": "bool[3]"},
            ["p"],
            {"packed": packed, "scales": scales},
            domains={MICROSOFT: 1},
        )
    )
    assert engine.run({"x": x, "c": np.zeros(3, bool)})["p"].shape == (0, 3)


# --- the file


@pytest.mark.parametrize("name", ["detector", "greedy_decoder", "loop_in_a_branch", "scanned_rnn"])
def test_round_trip(name, engines, tmp_path):
    m, every = MODELS[name]()
    engine = engines(name)
    engine.save(tmp_path / "e.pelton")
    again = pelton.load(tmp_path / "e.pelton", verify=True)
    assert (
        isinstance(again, ScriptEngine) and again.tobytes() == engine.tobytes() == (tmp_path / "e.pelton").read_bytes()
    )
    same(again.run(every[0]), m, every[0])
    assert file.read(tmp_path / "e.pelton").main == engine.script.main


def test_altered_files_are_refused(engines):
    data = engines("scanned_rnn").tobytes()
    header = json.loads(data[64 : 64 + int.from_bytes(data[16:24], "little")])
    body = -(-(64 + int.from_bytes(data[16:24], "little")) // 4096) * 4096
    places = [70, body + header["sections"]["plan"]["offset"] + 5]
    # the header of an engine in it
    places += [body + header["sections"]["engine 0"]["offset"] + 70]
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(EngineError, match="altered"):
            file.read(bytes(altered))
    for cut in (10, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(EngineError, match="truncated|altered"):
            file.read(data[:cut])


def test_forged_scripts_are_refused(engines):
    script = engines("detector").script
    run, host, last = script.main.steps

    def forged(*steps, **more):
        return dataclasses.replace(script, main=dataclasses.replace(script.main, steps=steps), **more)

    deep = Block((), (), ())
    for _ in range(DEEPEST + 2):
        deep = Block((), (IfAction("x", deep, Block((), (), ()), ()),), ())
    wrong = {
        "runs engine 7": forged(dataclasses.replace(run, engine=7), host, last),
        "nothing before it makes": forged(host, run, last),
        "does not fit what it runs": forged(dataclasses.replace(run, feeds=()), host, last),
        "no array and no size": forged(dataclasses.replace(run, feeds=(Feed("x", "memory"),)), host, last),
        "blocks within blocks": forged(run, host, last, IfAction("x", deep, Block((), (), ()), ())),
        "ends at byte": forged(
            run, host, last, arrays={**script.arrays, "=z": Constant("f32", (1 << 20,), 1 << 30, 1 << 22)}
        ),
        "bytes for": forged(run, host, last, arrays={**script.arrays, "=z": Constant("f32", (3,), 0, 8)}),
        "of type": forged(run, host, last, arrays={**script.arrays, "=z": Constant("f7", (3,), 0, 8)}),
        "iterations": forged(run, host, last, iterations=-1),
        "its ports": dataclasses.replace(script, main=dataclasses.replace(script.main, inputs=())),
        "which nothing in it makes": dataclasses.replace(
            script, main=dataclasses.replace(script.main, outputs=("nothing", "kept"))
        ),
    }
    for text, one in wrong.items():
        with pytest.raises(EngineError, match=text):
            validate_script(one)
    with pytest.raises(EngineError, match="cannot be read"):
        ScriptEngine(forged(run, dataclasses.replace(host, call="os.system"), last))
    with pytest.raises(EngineError, match="cannot be read"):
        ScriptEngine(forged(run, dataclasses.replace(host, text='{"center": 3}'), last))
    assert isinstance(host, HostAction)


def test_sizes_that_do_not_fit_lose_no_precision():
    """An array of another size than assumed sends its segment to the host, erf of doubles with it."""
    m = plain(
        [
            helper.make_node("Compress", ["a", "b"], ["v"], axis=1),
            helper.make_node("Greater", ["v", "c"], ["w"]),
            helper.make_node("Erf", ["x"], ["y"]),
        ],
        {"a": "i32[1, 5]", "b": "bool[5]", "c": "i32[1, 5]", "x": "f64[7]"},
        ["w", "y"],
    )
    engine = pelton.build(m, level=0)
    feeds = {
        "a": np.arange(5, dtype=np.int32)[None],
        "c": np.full((1, 5), 2, np.int32),
        "x": np.random.default_rng(0).standard_normal(7),
    }
    for kept in ([True] * 5, [False, False, False, True, False]):
        found = engine.run({**feeds, "b": np.array(kept)})
        assert np.array_equal(found["w"], feeds["a"][:, kept] > feeds["c"])
        np.testing.assert_allclose(found["y"], [math.erf(x) for x in feeds["x"]], rtol=1e-14)


def test_arrays_of_many_open_axes_are_usually_short():
    symbols = Symbols(["taken"])
    usual = [[dims.optimum(symbols.fresh("taken", rank=rank)) for _ in range(rank)] for rank in (1, 2, 3, 5, 9)]
    assert usual[0] == [100] and all(math.prod(u) <= 2_000_000 for u in usual) and all(min(u) > 1 for u in usual)
    assert (
        dims.optimum(symbols.fresh("taken", least=60, rank=5)) == 60
        and dims.optimum(symbols.fresh("taken", most=3)) == 3
    )


# --- the functions


def _suppressed(
    boxes: np.ndarray, scores: np.ndarray, most: int, iou: float, least: float
) -> list[tuple[int, int, int]]:
    """By definition, box by box."""
    found = []
    for b, c in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for i in sorted(np.flatnonzero(scores[b, c] > least), key=lambda i: -scores[b, c, i]):

            def overlap(j: int, a=boxes[b, i], b=b) -> float:
                o = boxes[b, j]
                low, high = np.maximum(a[:2], o[:2]), np.minimum(a[2:], o[2:])
                common = np.prod(np.maximum(high - low, 0))
                return common / (np.prod(a[2:] - a[:2]) + np.prod(o[2:] - o[:2]) - common)

            if len(kept) < most and all(overlap(j) <= iou for j in kept):
                kept.append(int(i))
        found += [(b, c, i) for i in kept]
    return found


@pytest.mark.parametrize("most", [0, 3, 100])
def test_suppression(most):
    rng = np.random.default_rng(most)
    low = rng.uniform(0, 1, (2, 60, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.6, (2, 60, 2))], 2).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 60)).astype(np.float32)
    (found,) = data.non_max_suppression(
        boxes, scores, ints(most), np.array([0.4], np.float32), np.array([0.3], np.float32)
    )
    assert found.dtype == np.int64 and [tuple(map(int, row)) for row in found] == _suppressed(
        boxes, scores, most, 0.4, 0.3
    )
    flipped = boxes[..., [2, 3, 0, 1]]  # any two opposite corners will do
    assert np.array_equal(
        data.non_max_suppression(flipped, scores, ints(most), np.array([0.4], np.float32), np.array([0.3], np.float32))[
            0
        ],
        found,
    )


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [True, False])
def test_unique(axis, in_order):
    x = np.random.default_rng(0).integers(0, 3, (7, 2)).astype(np.float32)
    values, first, back, count = data.unique(x, axis, in_order)
    flat, of = (x.reshape(-1), values) if axis is None else (np.moveaxis(x, axis, 0), np.moveaxis(values, axis, 0))
    assert np.array_equal(of[back], flat) and np.array_equal(flat[first], of) and count.sum() == len(flat)
    assert in_order or list(first) == sorted(first)
    assert data.unique(np.empty((0, 2), np.float32), 0)[0].shape == (0, 2)


def test_what_two_engines_read_is_kept_once(build, tmp_path):
    """Both branches multiply by the same weights."""
    w = np.random.default_rng(0).standard_normal((128, 96)).astype(np.float32)
    sides = [
        graph([N("MatMul", ["x", "w"], ["a" + name]), N(op, ["a" + name], [name])], {}, {name: (T.FLOAT, ["n", 96])})
        for name, op in (("t", "Relu"), ("e", "Tanh"))
    ]
    m = model(
        [
            N("ReduceSum", ["x"], ["sum"], keepdims=0),
            N("Greater", ["sum", "zero"], ["c"]),
            N("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1]),
        ],
        {"x": (T.FLOAT, ["n", 128])},
        {"y": (T.FLOAT, ["n", 96])},
        {"w": w, "zero": np.float32(0)},
    )
    engine = build(m)
    assert (
        len(engine.engines) >= 2
        and sum(any(b.kind == "constant" and b.size >= w.nbytes for b in e.plain.buffers) for e in engine.engines) == 2
    )
    assert w.nbytes <= len(engine.plain.constants) < 1.5 * w.nbytes
    engine.save(tmp_path / "both.pelton")
    assert (tmp_path / "both.pelton").stat().st_size < 2.5 * w.nbytes
    for again in (engine, pelton.load(tmp_path / "both.pelton", verify=True), pelton.load(engine.tobytes())):
        assert len({e.constants.ctypes.data for e in again.engines}) == 1
        for x in (np.ones((3, 128), np.float32), -np.ones((2, 128), np.float32)):
            same(again.run({"x": x}), m, {"x": x})


def test_a_script_is_explained(tmp_path, capsys):
    for name, shows in (
        ("detector", ["script over 2 engines", "engine 0: x →", "non_max_suppression", "engine 1: ", "convolution"]),
        ("greedy_decoder", ["loop most times and while =yes → tokens, all", "\n    engine "]),
        ("branches_of_two_shapes", ["if c → y", "\n  else\n"]),
        ("scanned_rnn", ["scan x → last, all"]),
    ):
        path = tmp_path / f"{name}.onnx"
        onnx.save(MODELS[name]()[0], path)
        main(["explain", str(path)])
        said = capsys.readouterr().out
        for line in shows:
            assert line in said, (name, line, said)
    main(["explain", str(path), "--why-not", "gemm"])
    assert "engine 0\ngemm" in capsys.readouterr().out
    assert main(["explain", str(path), "--error"]) == 2
    assert "no step-by-step errors" in capsys.readouterr().err


@pytest.mark.parametrize("part, name", [(".0", "greedy_decoder"), (".1", "greedy_decoder"), ("", "")])
def test_what_cannot_be_planned_runs_by_reference_or_is_refused(monkeypatch, tmp_path, part, name):
    """As if the compiler would have to know a size, of one program of a script, or of one that is no script."""
    builder = importlib.import_module("pelton.compiler.build")
    compiled = builder.compile_graph

    def undecided(imported, options, before):
        if imported.graph.name.endswith(part):
            raise dims.Undecided("whether this can be depends on sizes")
        return compiled(imported, options, before)

    monkeypatch.setattr(builder, "compile_graph", undecided)
    if not name:
        with pytest.raises(BuildError, match="whether this can be.*shapes="):
            pelton.build(
                model([N("Relu", ["x"], ["y"])], {"x": (T.FLOAT, ["n"])}, {"y": (T.FLOAT, ["n"])}),
                level=0,
                cache_dir=tmp_path,
            )
        return
    m, every = MODELS[name]()
    engine = pelton.build(m, level=0, cache_dir=tmp_path)
    assert len(engine.engines) == 1
    for feeds in every:
        same(pelton.load(engine.tobytes()).run(feeds), m, feeds)


NEGATIVE = {
    "range down": """r = Range (zero, minus, one)""",
    "its shape": (
        """r0 = Range (zero, minus, one)
                    r1 = Shape (r0)
                    r = Cast <to = 7> (r1)"""
    ),
    "its shape, later": (
        """r0 = Range (zero, minus, one)
                           u = Unique (r0)
                           r1 = Shape (r0)
                           r2 = Size (u)
                           r = Add (r1, r2)"""
    ),
    "its sign": (
        """below = Less (x, zero)
                   far = Where (below, minus, one)
                   r = Range (zero, far, one)"""
    ),
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_numbers_that_are_taken_for_sizes_may_be_negative(build, case):
    """What would hold of sizes alone, such as that none is below 0, is checked where a run has the number, also if
    nothing else needs it."""
    m = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        numbers (int64 x) => (int64[N] r) <int64 zero = {{0}}, int64 one = {{1}}> {{
            minus = Neg (x)
            {NEGATIVE[case]}
        }}""")
    engine = build(m)
    for x in (-3, 2, 0, -1, 5):
        feeds = {"x": np.array(x, np.int64)}
        (want,) = ReferenceEvaluator(m).run(None, feeds)
        assert np.array_equal(engine.run(feeds)["r"], want), (case, x)


def test_results_lie_apart_from_what_was_given(build, tmp_path):
    m = model(
        [
            N("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
            N("SequenceInsert", ["parts", "x"], ["more"]),
            N("SequenceAt", ["more", "which"], ["one"]),
            N("Relu", ["x"], ["y"]),
        ],
        {"x": (T.FLOAT, ["n"]), "sizes": (T.INT64, ["k"]), "which": (T.INT64, [])},
        {"y": (T.FLOAT, ["n"]), "one": (T.FLOAT, ["m"])},
    )
    m.graph.output.append(helper.make_tensor_sequence_value_info("more", T.FLOAT, [None]))
    engine = build(m)
    x = floats(6)
    feeds = {"x": x, "sizes": np.array([2, 4]), "which": np.array(2)}
    found = engine.run(feeds)
    assert not any(np.shares_memory(a, x) for a in (*found["more"], found["one"], found["y"])) and np.array_equal(
        found["more"][2], x
    )
    with pytest.raises(InputError, match=r"out\['y'\] shares memory with input 'x'"):
        engine.run(feeds, {"y": x})
    lines = describe_outputs(engine, found)
    assert [line.split(":")[0] for line in lines if line.startswith("more")] == [
        "more[0] float32[2]",
        "more[1] float32[4]",
        "more[2] float32[6]",
    ]
    write(str(tmp_path / "found.npz"), found)
    assert sorted(np.load(tmp_path / "found.npz").files) == ["more[0]", "more[1]", "more[2]", "one", "y"]
    both = np.empty(6, np.float32)
    with pytest.raises(InputError, match=r"shares memory with out\['y'\]|out\['y'\] shares memory"):
        engine.run(feeds, {"y": both, "one": both})
    one = np.empty(6, np.float32)
    assert engine.run(feeds, {"one": one})["one"] is one and np.array_equal(one, x)
