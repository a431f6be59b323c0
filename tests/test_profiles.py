"""Engines with profiles: one network tuned for several sizes, over one copy of its weights."""

import asyncio

import numpy as np
import onnx
import pytest

from native_interface import Refused, Session

import pelton
from pelton.cli import main
from pelton.engine import script_file
from pelton.engine.constants import length
from pelton.errors import BuildError, EngineError, InputError

INNER, CLASSES = 40, 24


def network():
    """A layer, a softmax, and a cache that each run extends."""
    rng = np.random.default_rng(3)
    net = pelton.Network("rows")
    x = net.input("x", f"f32[1, rows=1..8..512, {INNER}]")
    cache = net.input("cache", f"f32[1, 1, capacity=1..64..4096, {CLASSES}]")
    begin = net.input("begin", "i64[1]")
    weight = rng.standard_normal((CLASSES, INNER)).astype(np.float32)
    y = net.softmax(net.linear(x, weight, rng.standard_normal(CLASSES).astype(np.float32)), axis=-1)
    rows = net.reshape(y, (1, 1, x.shape[1], CLASSES))
    after = net.cache_write(cache, rows, begin, net.add(begin, net.shape_of(x)[1]), length=cache.shape[2])
    net.output(y, "y")
    net.output(after, "after")
    net.output(net.reduce_sum(after, axes=(2,), keepdims=False), "sums")
    return net


def inputs(rows, capacity=64, begin=3):
    rng = np.random.default_rng()
    return {
        "x": rng.standard_normal((1, rows, INNER)).astype(np.float32),
        "cache": rng.standard_normal((1, 1, capacity, CLASSES)).astype(np.float32),
        "begin": np.array([begin]),
    }


PROFILES = {"one": {"rows": 1}, "few": {"rows": "2..4..8"}, "many": {"rows": "9..32..100"}}


@pytest.fixture(scope="module")
def plain():
    return pelton.build(network(), level=0, threads=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines") / "rows.pelton"
    built = pelton.build(network(), profiles=PROFILES, level=0, threads=1)
    built.save(path)
    loaded = pelton.load(path)
    assert path.read_bytes() == built.tobytes() == loaded.tobytes()
    return loaded


def same(got, want):
    assert got.keys() == want.keys()
    for name in got:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)


def part_that_runs(engine, given):
    """Returns the profile that a run uses, by the engine whose steps it traces."""
    ((part, _),) = engine.context().trace_engines(given)
    return engine.script.profiles[next(i for i, e in enumerate(engine.engines) if e is part)]


@pytest.mark.parametrize("rows, profile", [(1, "one"), (2, "few"), (8, "few"), (9, "many"), (100, "many")])
def test_a_run_uses_the_first_profile_that_accepts_its_shapes(engine, plain, rows, profile):
    given = inputs(rows)
    same(engine.run(given), plain.run(given))
    assert part_that_runs(engine, given) == profile


def test_a_context_changes_between_profiles(engine, plain):
    context = engine.context(1)
    for rows in (1, 30, 3, 1, 31, 1):
        given = inputs(rows, capacity=200)
        same(context.run(given), plain.run(given))
        assert context.output_shapes({n: a.shape for n, a in given.items()})["y"] == (1, rows, CLASSES)


def test_the_weights_are_stored_once(engine):
    apart = [pelton.build(network(), shapes, level=0, threads=1) for shapes in PROFILES.values()]
    pieces = {
        e.plan.constants[b.offset : b.offset + b.size].tobytes()
        for e in apart
        for b in e.plain.buffers
        if b.kind in ("constant", "table")
    }
    assert length(engine.script.constants) == sum(-(-len(piece) // 64) * 64 for piece in pieces)
    assert length(engine.script.constants) < sum(length(e.plain.constants) for e in apart)
    assert len({part.plan.constants.ctypes.data for part in engine.engines}) == 1


def test_properties_are_those_of_every_engine(engine, plain):
    names = [n for n in dir(pelton.Engine) if isinstance(getattr(pelton.Engine, n), property)]
    assert {"constants", "device", "inputs"} <= {*names}
    for name in names:
        getattr(engine, name), getattr(plain, name)
    assert engine.constants.dtype == np.uint8 and engine.constants.nbytes >= plain.constants.nbytes
    assert engine.device is None


def test_shapes_of_no_profile_are_refused_with_all_reasons(engine):
    with pytest.raises(InputError, match=r"(?s)no profile .*one: axis 1 .* must be 1, .*many: .* may have 9 to 100"):
        engine.run(inputs(101))
    with pytest.raises(InputError, match="x"):
        engine.run({n: a for n, a in inputs(3).items() if n != "x"})
    with pytest.raises(InputError, match="2 dimensions instead of 3"):
        engine.run({**inputs(3), "x": np.zeros((3, INNER), np.float32)})


def test_ports_join_those_of_the_profiles(engine):
    assert [str(p) for p in engine.inputs][:2] == ["f32[1, rows, 40]", "f32[1, 1, capacity, 24]"]
    (rows,) = (s for s in engine.symbols if s.name == "rows")
    assert (rows.minimum, rows.optimum, rows.maximum) == (1, 1, 100)
    assert {p.name: p.shares for p in engine.outputs} == {"y": None, "after": "cache", "sums": None}


def test_profiles_extend_one_state_in_place(engine, plain):
    state, context = engine.state(capacity=64), engine.context(1)
    other, apart = plain.state(capacity=64), plain.context(1)
    memory, begin = state.arrays["cache"], 0
    for rows in (20, 1, 1, 5, 1):
        given = {**inputs(rows), "begin": np.array([begin])}
        del given["cache"]
        same(state.run(context, given), other.run(apart, given))
        begin += rows
    assert state.arrays["cache"] is memory
    same(state.arrays, other.arrays)


def test_asynchronous_runs(engine, plain):
    many = [inputs(rows) for rows in (1, 12, 5)]

    async def runs():
        return await asyncio.gather(*(engine.run_async(given) for given in many))

    for given, got in zip(many, asyncio.run(runs())):
        same(got, plain.run(given))


def test_programs_in_c_choose_profiles_too(engine):
    session = Session(engine.tobytes(), 1)
    for rows in (1, 50, 4, 1):
        given = inputs(rows)
        want = engine.run(given)
        for name, got in zip(want, session.run(*given.values())):
            assert np.array_equal(got, want[name]), name
    with pytest.raises(Refused, match="axis 1 of input x may have 1 to 100, got 101"):
        session.run(*inputs(101).values())
    given = inputs(2)
    want = engine.run({**given, "cache": given["cache"].copy()})["after"]
    session.run(*given.values(), out={1: given["cache"]})
    assert np.array_equal(want[:, :, :5], given["cache"][:, :, :5])


def test_sizes_without_a_relation_become_dynamic():
    net = pelton.Network("sum")
    net.output(net.add(net.input("a", "f32[n, 4]"), net.input("b", "f32[n, 4]")), "sum")
    engine = pelton.build(net, profiles={"a": {"n": 3}, "b": {"n": 5}}, level=0)
    for n in (3, 5, 3):
        a, b = np.random.default_rng().standard_normal((2, n, 4)).astype(np.float32)
        np.testing.assert_array_equal(engine.run({"a": a, "b": b})["sum"], a + b)
    four = np.zeros((4, 4), np.float32)
    with pytest.raises(InputError, match="no profile"):
        engine.run({"a": four, "b": four})
    session = Session(engine.tobytes(), 1)
    with pytest.raises(Refused, match="no profile accepts these shapes; the first one: axis 0 of input a is 3, got 4"):
        session.run(four, four)
    assert np.array_equal(session.run(four[:3] + 1, four[:3])[0], four[:3] + 1)


def test_names_of_dimensions_set_all_their_axes(tmp_path):
    x, y = (onnx.helper.make_tensor_value_info(n, 1, ["batch", 4]) for n in "xy")
    z = onnx.helper.make_tensor_value_info("z", 1, ["batch", 4])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "y"], ["z"])], "add", [x, y], [z])
    path = tmp_path / "add.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    for model in (path, pelton.import_onnx(path)):
        assert {p.shape for p in pelton.build(model, {"batch": 3}, level=0).inputs} == {(3, 4)}
        (batch,) = pelton.build(model, {"batch": "2..3..9"}, level=0).symbols
        assert (batch.minimum, batch.optimum, batch.maximum) == (2, 3, 9)
        with pytest.raises(InputError, match="'batch' is a dimension"):
            pelton.build(model, {"batch": "2x3"}, level=0)
    with pytest.raises(InputError, match="inputs and dimensions .did you mean 'batch'"):
        pelton.build(path, {"batsh": 3}, level=0)
    # the shape of an input comes first
    assert pelton.build(path, {"x": "5x4", "batch": "2..3..9"}, level=0).inputs[1].shape == (5, 4)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(profiles={}), "1 to 16"),
        (dict(profiles={"a": 3}), "mapping of names to sizes"),
        (dict(profiles=["a"]), "mapping from names"),
        (dict(profiles={"a": {}}, refit=True), "refit= is for engines without profiles"),
        (dict(profiles={"a": {"colums": 3}}), "colums"),
        (dict(profiles={"a": {"rows": 3}, "b": {"x": "2x3x4"}}), "x"),
    ],
)
def test_bad_profiles(options, message):
    with pytest.raises(InputError, match=message):
        pelton.build(network(), level=0, **options)


def test_an_engine_with_profiles_cannot_be_refitted(engine):
    with pytest.raises(EngineError, match="has profiles"):
        engine.refit({})


def test_scripts_have_no_profiles():
    x, n = onnx.helper.make_tensor_value_info("x", 1, ["rows"]), onnx.helper.make_tensor_value_info("n", 7, None)
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["n"])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [n]), ir_version=8)
    with pytest.raises(BuildError, match="leave out profiles="):
        pelton.build(model, profiles={"a": {"rows": 3}}, level=0)


def test_altered_profiles_are_refused(engine):
    from dataclasses import replace

    script = engine.script
    for other in (("one", "few"), ("one", "one", "many")):
        with pytest.raises(EngineError, match="profiles"):
            script_file.to_bytes(replace(script, profiles=other))
    outputs = (*script.outputs[:2], replace(script.outputs[2], dtype="f64"))
    with pytest.raises(EngineError, match="has other inputs or outputs"):
        script_file.to_bytes(replace(script, outputs=outputs))


def test_tactics_of_profiles_are_recorded_and_repeated(tmp_path):
    tactics = tmp_path / "tactics.json"
    first = pelton.build(network(), profiles=PROFILES, level=0, threads=1, save_tactics=tactics)
    again = pelton.build(network(), profiles=PROFILES, level=0, load_tactics=tactics)
    assert [s.info["tactic"] for s in first.steps] == [s.info["tactic"] for s in again.steps]


def test_the_command_line_builds_and_describes_profiles(tmp_path, capsys):
    net = pelton.Network("small")
    net.output(net.relu(net.input("x", "f32[rows, 4]")), "y")
    model, path = str(tmp_path / "m.onnx"), str(tmp_path / "m.pelton")
    pelton.export_onnx(net, model)
    flags = ["--profile", "one:rows=1", "--profile", "many:rows=2..8..32", "--level", "0"]
    assert main(["build", model, "-o", path, *flags]) in (None, 0)
    assert "profiles:    one (x 1x4); many (x 2..8..32x4)" in capsys.readouterr().out
    assert main(["run", path, "--input", "x=" + _saved(tmp_path), "--json"]) in (None, 0)
    for command in (["export", path, "-o", str(tmp_path / "c")], ["explain", model, *flags]):
        assert main(command) == 2
    errors = capsys.readouterr().err
    assert "has profiles, and sources are of one engine" in errors and "--profile is for pelton.build" in errors
    assert main(["build", model, "-o", path, "--profile", "rows=1"]) == 2
    assert "--profile is a name, a colon and sizes, such as one:batch=1, got 'rows=1'" in capsys.readouterr().err


def _saved(folder):
    np.save(folder / "x.npy", np.ones((3, 4), np.float32))
    return str(folder / "x.npy")
