"""Sizes known at run time, from a graph to the arrays: one engine, many shapes, each as in the reference."""

import dataclasses
import threading

import numpy as np
import onnx.parser
import pytest
from compare import assert_close
from onnx_models import one_node
from handmade import chain
from test_kernels_together import Layers

import pelton
from pelton.backends.cpu.backend import CpuWorkspace
from pelton.compiler import stages
from pelton.engine import sizes
from pelton.engine.validate import validate
from pelton.errors import EngineError, InputError
from pelton.ir import text
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported, Info
from pelton.runtime import context as runtime_context
from pelton.system import memory

LINES = """graph main[batch: 1..4..32, length: 1..50..](%x: f32[batch, length, 12], %z: f32[length, 12]) {
  %b = constant f32[12] 0.5
  %sum = add(%x, %z)
  %turned = transpose(%sum) {perm=(0, 2, 1)}
  %pos = relu(%turned)
  %scaled = mul(%sum, %b)
  %joined = concat(%scaled, %x) {axis=1}
  %flat: f32[2*batch*length, 12] = reshape(%joined) {shape=([2*batch*length], 12)}
  return %pos, %flat
}"""


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Builds an engine from a graph, whatever model it may have come from."""

    def build(graph: Graph, **options) -> pelton.Engine:
        monkeypatch.setattr(stages.importers, "load", lambda *a, **k: Imported(graph, Info()))
        return pelton.build(b"", cache_dir=tmp_path / "cache", **{"level": 0, "threads": 2, **options})

    return build


def drawn(shapes: dict, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def agree(engine: pelton.Engine, graph: Graph, inputs: dict[str, np.ndarray]) -> None:
    want = evaluate(graph, inputs)
    got = engine.run(inputs)
    for name, array in want.items():
        assert_close(got[name], array, about=f"{name} for {[a.shape for a in inputs.values()]}")


def test_one_engine_runs_every_shape(built):
    graph = text.parse(LINES)
    engine = built(graph, check=True)
    assert [str(p) for p in engine.inputs] == ["f32[batch, length, 12]", "f32[length, 12]"]
    assert [str(p) for p in engine.outputs] == ["f32[batch, 12, length]", "f32[2*batch*length, 12]"]
    assert [(s.name, s.minimum, s.optimum) for s in engine.symbols] == [("batch", 1, 4), ("length", 1, 50)]
    assert engine.shapes() == {"x": (4, 50, 12), "z": (50, 12)} and engine.shapes({"length": 3})["x"] == (4, 3, 12)
    for again in (engine, pelton.load(engine.tobytes())):
        for batch, length in ((4, 50), (1, 1), (3, 17), (32, 400), (4, 50), (2, 1)):
            agree(again, graph, drawn({"x": (batch, length, 12), "z": (length, 12)}, batch))
    assert again.tobytes() == engine.tobytes()
    engine.context().warmup()
    assert [s.info["flops"] for s, _ in engine.context().profile(drawn(engine.shapes({"batch": 1, "length": 10})))] != [
        s.info["flops"] for s, _ in engine.context().profile(drawn(engine.shapes()))
    ]


def test_sizes_may_be_outputs(built):
    graph = text.parse("""graph g[n: 1..4..](%x: f32[n, 3]) {
  %s: i64[2] = sizes() {values=([n], 3), shape=(2,)}
  %y: f32[n, 3] = relu(%x)
  return %y, %s
}
""")
    engine = built(graph)
    for n in (4, 1, 9, 4):
        agree(engine, graph, drawn({"x": (n, 3)}))


def test_what_does_not_fit_is_refused(built):
    engine = built(text.parse(LINES))
    for shapes, why in (
        ({"x": (2, 3, 12), "z": (4, 12)}, r"input 'z' needs f32\[3, 12\], got shape \[4, 12\]"),
        ({"x": (33, 3, 12), "z": (3, 12)}, r"axis 0 of input 'x' \(batch\) may have 1 to 32, got 33"),
        ({"x": (2, 0, 12), "z": (0, 12)}, "may have 1 and more, got 0"),
        ({"x": (3, 12), "z": (3, 12)}, "2 dimensions instead of 3"),
        ({"x": (2, 3, 13), "z": (3, 12)}, "has 13 instead of 12"),
    ):
        with pytest.raises(InputError, match=why):
            engine.run(drawn(shapes))
    with pytest.raises(InputError, match="as a numpy array"):
        engine.run({"x": [[1.0]], "z": np.zeros((3, 12), np.float32)})
    with pytest.raises(InputError, match="float64"):
        engine.run({"x": np.zeros((2, 3, 12)), "z": np.zeros((3, 12), np.float32)})
    with pytest.raises(InputError, match=r"out\['pos'\] needs f32\[2, 12, 3\]"):
        engine.run(drawn({"x": (2, 3, 12), "z": (3, 12)}), out={"pos": np.zeros((2, 3, 12), np.float32)})
    agree(engine, text.parse(LINES), drawn({"x": (2, 3, 12), "z": (3, 12)}))


def test_shapes_met_before_are_ready_and_the_oldest_go(built, monkeypatch):
    monkeypatch.setattr(runtime_context, "REMEMBERED", 3)
    made = []
    prepare = CpuWorkspace.prepare

    def recorded(workspace, values, outdated):
        made.append(dict(values))
        return prepare(workspace, values, outdated)

    monkeypatch.setattr(CpuWorkspace, "prepare", recorded)
    graph = text.parse(LINES)
    context = built(graph).context()

    def run(length: int) -> int:
        before = len(made)
        context.run(drawn({"x": (1, length, 12), "z": (length, 12)}))
        return len(made) - before

    assert run(100) == 1  # the largest first: the arena stays where it is
    assert [run(n) for n in (100, 5, 6, 5, 6)] == [0, 1, 1, 0, 0]
    assert run(7) == 1 and run(5) == 0 and run(100) == 1
    # a larger arena: the tables that pointed into the old one are gone
    assert run(200) == 1 and run(200) == 0 and run(5) == 1


def test_contexts_of_one_engine_run_different_shapes_side_by_side(built):
    graph = text.parse(LINES)
    engine = built(graph)
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            batch, length = int(rng.integers(1, 9)), int(rng.integers(1, 60))
            try:
                agree(engine, graph, drawn({"x": (batch, length, 12), "z": (length, 12)}, seed))
            except Exception as e:  # of another thread: kept, and raised below
                wrong.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]


DAMAGE = {
    "has no definition of the size '2\\*batch\\*length'": lambda e: dict(
        sizes={**e.sizes, "2*batch*length": ["*", "batch", "width"]}
    ),
    "uses a size that it does not explain": lambda e: dict(
        sizes={k: v for k, v in e.sizes.items() if k != "2*batch*length"}
    ),
    "has the bounds 1, 64, 32": lambda e: dict(symbols=(dataclasses.replace(e.symbols[0], optimum=64), e.symbols[1])),
    "have one name": lambda e: dict(symbols=(e.symbols[0], e.symbols[0])),
    "no input has the size 'other'": lambda e: dict(
        symbols=(*e.symbols, dataclasses.replace(e.symbols[0], name="other"))
    ),
    "constant whose size varies": lambda e: dict(
        buffers=(*e.buffers, dataclasses.replace(e.buffers[0], kind="constant", size="batch"))
    ),
    "is at None": lambda e: dict(buffers=(*e.buffers, dataclasses.replace(e.buffers[0], kind="arena", offset=None))),
    "ends at byte|uses byte|bytes, input": lambda e: dict(sizes={**e.sizes, "48*length": ["*", 4800, "length"]}),
}


@pytest.mark.parametrize("why", DAMAGE)
def test_damaged_tables_of_sizes_are_refused(built, why):
    plain = built(text.parse(LINES)).plain
    bad = dataclasses.replace(plain, **DAMAGE[why](plain))
    with pytest.raises(EngineError, match=why):
        validate(bad)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(s, marks=pytest.mark.slow) for s in range(12, 120))])
def test_random_layers_at_many_shapes(built, seed):
    graph = Layers(seed, varying=True).graph(10)
    engine = built(graph)
    rng = np.random.default_rng(seed)
    for turn in range(4):
        values = {s.name: int(rng.integers(s.minimum, 2 * s.optimum + 12)) for s in engine.symbols} if turn else {}
        agree(engine, graph, drawn(engine.shapes(values), turn))


def test_a_resolved_plan_has_the_numbers_of_the_plan(built):
    """What contexts use is what `sizes.at` says: of every step its operands' places, sizes, tiles and scratch, and the
    arena."""
    engine = built(text.parse(LINES))
    for batch, length in ((4, 50), (1, 1), (3, 17), (32, 400)):
        values = {"batch": batch, "length": length}
        plain, resolved, template = (
            sizes.at(engine.plain, values),
            engine.plan.template.resolve(values),
            engine.plan.template,
        )
        assert [b.size for b in plain.buffers] == resolved.bytes.tolist() and plain.arena == resolved.arena
        assert [b.offset for b in plain.buffers if b.kind == "arena"] == resolved.starts[template.in_arena].tolist()
        assert [n for s in plain.steps for n in (*(a.offset for a in s.args), *s.dims)] == resolved.words.tolist()
        assert [(s.tiles, s.scratch) for s in plain.steps] == list(
            zip(resolved.tiles.tolist(), resolved.scratch.tolist())
        )
        assert (plain.inputs, plain.outputs) == (resolved.inputs, resolved.outputs)
        assert {i: tuple(v) for i, v in resolved.values.items()} == {
            i: b.values for i, b in enumerate(plain.buffers) if b.kind == "sizes"
        }


def test_sizes_for_which_a_plan_falls_apart_are_refused(built):
    engine = built(text.parse(LINES))
    for damage, why in (
        (["-", 1, 2], "no definition"),
        (["*", -1, "batch", "length", 12], "the size of buffer"),
        (["*", 1 << 62, "batch", 12], "damaged"),
    ):
        broken = dataclasses.replace(engine.plain, sizes={**engine.plain.sizes, "48*batch*length": damage})
        with pytest.raises(EngineError, match=why):
            pelton.Engine(broken).run(drawn({"x": (1, 3, 12), "z": (3, 12)}))
    grows = dataclasses.replace(
        engine.plain,
        sizes={
            **engine.plain.sizes,
            "48*batch*length": [
                # in order at the usual sizes, which loading looks at
                "+",
                ["*", 48, "batch", "length"],
                ["*", 1 << 60, ["max", 0, ["+", "batch", -4]]],
            ],
        },
    )
    fine = pelton.Engine(grows)
    fine.run(drawn({"x": (1, 3, 12), "z": (3, 12)}))
    for batch in (5, 30):
        with pytest.raises(EngineError, match="is damaged: "):
            fine.run(drawn({"x": (batch, 3, 12), "z": (3, 12)}))


def test_shapes_share_one_memory(built):
    """Arena and scratch of all shapes are one piece, which grows: what is remembered of a shape is its table."""
    engine = built(text.parse(LINES))
    context = engine.context()
    context.run(drawn({"x": (4, 50, 12), "z": (50, 12)}))
    place = [i for i, b in enumerate(engine.plain.buffers) if b.kind == "arena"][0]

    arena = lambda ready: memory.address(ready.memory(place)) - ready.plain.buffers[place].offset  # noqa: E731
    one = arena(context._latest)
    for length in range(1, 30):
        context.run(drawn({"x": (2, length, 12), "z": (length, 12)}))
    assert len(context._known) == 30 and all(arena(ready) == one for ready in context._known.values())


def test_a_context_prepares_for_shapes(built):
    engine = built(text.parse(LINES))
    context = engine.context()
    context.prepare({"x": (2, 7, 12), "z": [7, 12]})
    before = dict(context._known)
    context.run(drawn({"x": (2, 7, 12), "z": (7, 12)}))
    assert context._known == before and len(before) == 1
    with pytest.raises(InputError, match="may have 1 to 32"):
        context.prepare({"x": (40, 7, 12), "z": (7, 12)})
    with pytest.raises(InputError, match="z"):
        context.prepare({"x": (2, 7, 12)})
    for shape in ((-1, 7, 12), (1 << 62, 7, 12), ("2", 7, 12), (1 << 45, 1 << 45, 12), (2.0, 7, 12), None, (2, 7, 13)):
        with pytest.raises(InputError, match="shape"):
            context.prepare({"x": shape, "z": (7, 12)})
    with pytest.raises(InputError, match=r"needs f32\[8\], got shape \[9\]: axis 0 \(N\) has 9 instead of 8"):
        pelton.Engine(chain(8)).context().prepare({"x": (9,)})  # sizes that are known are looked at, too


def test_a_context_tells_the_shapes_of_its_outputs(built):
    context = built(text.parse(LINES)).context()
    shapes = {"x": (2, 7, 12), "z": [7, 12]}
    assert context.output_shapes(shapes) == {
        name: array.shape for name, array in context.run(drawn({"x": (2, 7, 12), "z": (7, 12)})).items()
    }
    with pytest.raises(InputError, match="may have 1 to 32"):
        context.output_shapes({"x": (40, 7, 12), "z": (7, 12)})
    for given in (((2, 7, 12), (7, 12)), [[2, 7, 12], [7, 12]], None):
        for asked in (context.output_shapes, context.prepare):
            with pytest.raises(InputError, match=rf"like \{{'x': \(1, 3\)\}}, got {type(given).__name__}"):
                asked(given)


def test_slices_that_begin_behind_the_end_of_short_inputs():
    """What they take is nothing; where it would lie, an axis after the other, is no place in the buffer."""
    m = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> f (float[a,b] x) => (float[p,q] y, float[r,b] z)
           <int64[2] s = {3, 3}, int64[2] e = {-3, -6}, int64[2] axes = {0, 1}, int64[2] steps = {2, -2},
            int64[1] two = {2}, int64[1] all = {100}, int64[1] first = {0}>
           { n = Neg (x)  y = Slice (n, s, e, axes, steps)
             t = Slice (n, two, all, first)  u = Exp (t)
             z = Concat <axis: int = 0> (n, u) }"""
    )
    engine = pelton.build(m, level=0, shapes={"x": ("1..5..9", "1..7..9")})
    for shape in ((3, 7), (2, 5), (1, 1), (9, 9), (8, 3)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        got = engine.run({"x": x})
        assert np.array_equal(got["y"], -x[3:-3:2, 3:-6:-2])
        assert np.allclose(got["z"], np.concatenate([-x, np.exp(-x[2:])]), rtol=1e-5)


NOTHING = {
    "product": (
        "f (float[a,k] x, float[k,6] w) => (float[a,6] y) {",
        "s = Slice (x, one, all, last)  t = Slice (w, one, all, first)  y = MatMul (s, t) }",
        {"x": (8, 1), "w": (1, 6)},
        lambda x, w: {"y": np.zeros((8, 6))},
    ),
    "lstm": (
        "f (float[t,2,3] x, float[1,2,5] h, float[1,2,5] c) => (float[1,2,5] p, float[1,2,5] q) {",
        "s = Slice (x, one, all, first)  _, p, q = LSTM <hidden_size: int = 5> (s, w20, r20, b40, , h, c) }",
        {"x": (1, 2, 3), "h": (1, 2, 5), "c": (1, 2, 5)},
        lambda x, h, c: {"p": h, "q": c},
    ),
    "gru": (
        "f (float[t,2,3] x, float[1,2,5] h) => (float[1,2,5] p) {",
        "s = Slice (x, one, all, first)  _, p = GRU <hidden_size: int = 5> (s, w15, r15, b30, , h) }",
        {"x": (1, 2, 3), "h": (1, 2, 5)},
        lambda x, h: {"p": h},
    ),
    "rnn": (
        "f (float[t,2,3] x, float[1,2,5] h) => (float[1,2,5] p) {",
        "s = Slice (x, one, all, first)  _, p = RNN <hidden_size: int = 5> (s, w5, r5, b10, , h) }",
        {"x": (1, 2, 3), "h": (1, 2, 5)},
        lambda x, h: {"p": h},
    ),
    "attention": (
        "f (float[1,2,a,8] x, float[1,2,k,8] w) => (float[1,2,a,8] y) {",
        (
            "s = Slice (w, one, all, two)  t = Transpose <perm: ints = [0, 1, 3, 2]> (s)  m = MatMul (x, t)  e ="
            " Softmax (m)  y = MatMul (e, s) }"
        ),
        {"x": (1, 2, 9, 8), "w": (1, 2, 1, 8)},
        lambda x, w: {"y": np.zeros_like(x)},
    ),
}


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", NOTHING)
def test_what_a_run_has_nothing_of(name, rows):
    """Nothing to sum is 0, no time steps leave the state as it is; kernels write that, too."""
    head, body, shapes, want = NOTHING[name]
    rng = np.random.default_rng(3)
    constants = {
        "one": np.int64([1]),
        "all": np.int64([1 << 40]),
        "first": np.int64([0]),
        "last": np.int64([1]),
        "two": np.int64([2]),
    }
    constants |= {
        f"{k}{n}": rng.uniform(-1, 1, s).astype(np.float32)
        for n, k, s in (
            *((n, "w", (1, n, 3)) for n in (20, 15, 5)),
            *((n, "r", (1, n, 5)) for n in (20, 15, 5)),
            *((n, "b", (1, n)) for n in (40, 30, 10)),
        )
    }
    m = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {head} {body}')
    m.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, k)
        for k, a in constants.items()
        if k in {i for n in m.graph.node for i in n.input}
    )
    feeds = {
        k: rng.standard_normal(tuple(rows if d == 9 else d for d in s)).astype(np.float32) for k, s in shapes.items()
    }
    got = pelton.build(m, level=0).run(feeds)
    assert_close(got, {k: v.astype(np.float32) for k, v in want(**feeds).items()})


def test_pads_that_take_away_more_than_there_is():
    def built(pads):
        text = f"""<ir_version: 10, opset_import: ["": 17]> f (float[2,n] x) => (float[2,m] y)
                   <int64[4] pads = {{0, {pads[0]}, 0, {pads[1]}}}> {{ y = Pad (x, pads) }}"""
        return pelton.build(onnx.parser.parse_model(text), level=0)

    x = np.float32([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
    assert np.array_equal(built((-5, 2))(x), [[6, 0, 0], [12, 0, 0]])
    with pytest.raises(pelton.InputError, match="n"):
        built((-5, 8))(x[:, :3])


def test_outputs_without_elements_can_be_checked():
    """No task writes them."""
    rows, columns = np.array([1, 2]), np.array([1, 3])
    m = one_node("Slice", "f16[1, n]", rows, columns, np.array([0, 1]), opset=13)
    engine = pelton.build(m, level=0, check=True)
    assert engine.run({"x0": np.ones((1, 5), np.float16)})["y0"].shape == (0, 1)
