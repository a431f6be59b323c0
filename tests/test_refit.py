"""New weights for existing engines: equal to a build of the changed model, bit for bit, or refused with a reason."""

import json
import threading

import numpy as np
import onnx
import pytest
from models import model
from refit_models import CASES, N, f32, trained_further
from script_models import MODELS

import pelton
from pelton.cli import main
from pelton.engine import refit_record
from pelton.errors import BuildError, EngineError, InputError
from pelton.importers import load
from pelton.ir.evaluate import evaluate

ALL = {"turned_while_imported": {"half"}, "attention": {"scale", "cut", "join"}}  # those that cannot change

SPECIAL = {"table_and_dynamic_batch"}  # numbers that a build without refit decides by


@pytest.fixture
def rng():
    return np.random.default_rng()


def feeds(engine, rng):
    out = {}
    for p in engine.inputs:
        shape = [d if isinstance(d, int) else 3 for d in p.shape]
        out[p.name] = (
            rng.integers(0, 17, shape) if p.dtype == "i64" else rng.standard_normal(shape).astype(p.numpy_dtype)
        )
    return out


@pytest.mark.parametrize("name", CASES)
def test_a_refitted_engine_is_the_engine_of_the_other_model(name, rng, tmp_path):
    made = CASES[name](rng)
    engine = pelton.build(made, level=0, refit=True, save_tactics=tmp_path / "t.json")
    stored = {t.name for t in made.graph.initializer}
    assert engine.refittable.keys() == stored - ALL.get(name, set())
    assert engine.refit_refusals.keys() == ALL.get(name, set())
    other, new = trained_further(made, engine.refittable, rng)
    x = feeds(engine, rng)
    before = engine.run(x)
    engine.save(tmp_path / "e.pelton")
    engine.refit(new)
    built = pelton.build(other, level=0, load_tactics=tmp_path / "t.json", refit=True)
    assert bytes(engine.constants) == bytes(built.constants) and engine.plain.refit == built.plain.refit
    changed = {key for key, value in engine.meta.items() if value != built.meta[key]}
    # as docs/provenance.md says, and that the other one is of recorded tactics
    assert changed <= {"layouts", "provenance", "recorded"} and engine.steps == built.steps
    replayed = {} if name in SPECIAL else {"load_tactics": tmp_path / "t.json"}
    plain = pelton.build(other, level=0, **replayed)
    found, exact = engine.run(x), evaluate(load(other, optimum={}).graph, x, round=False)
    for key, value in found.items():
        assert value.tobytes() == built.run(x)[key].tobytes() and value.tobytes() != before[key].tobytes()
        assert name in SPECIAL or value.tobytes() == plain.run(x)[key].tobytes()
        wide = np.abs(exact[key]).max()
        off, usual = (np.abs(e.run(x)[key].astype(np.float64) - exact[key]).max() / wide for e in (engine, plain))
        assert off <= max(2 * usual, 1e-6)
    again = pelton.load(tmp_path / "e.pelton")
    again.refit(new)
    assert again.tobytes() == engine.tobytes()
    again.refit(dict(new))  # as often as one likes
    assert bytes(again.constants) == bytes(engine.constants)


def test_some_weights_alone_and_those_that_need_others(rng, tmp_path):
    made = CASES["batch_norms"](rng)
    engine = pelton.build(made, level=0, refit=True)
    engine.save(tmp_path / "e.pelton")  # which makes its constants in the file
    assert pelton.load(tmp_path / "e.pelton", verify=True).tobytes() == engine.tobytes()
    other, new = trained_further(made, {"g2", "s2", "m2", "v2"}, rng)
    was = bytes(engine.constants)
    for given in ({"w": f32(rng, 7, 5, 3, 3)}, {"g2": new["g2"]}):
        with pytest.raises(InputError, match="also needs the weights '(b', 'g|m2', ').*into one constant"):
            engine.refit(given)
        assert bytes(engine.constants) == was and "refitted" not in engine.provenance
    engine.refit(new)
    x = feeds(engine, rng)
    assert engine.run(x)["y"].tobytes() == pelton.build(other, level=0, refit=True).run(x)["y"].tobytes()
    assert engine.provenance["refitted"]["weights"] == 4


def test_stripped_engines_are_small_and_run_once_they_have_weights(rng, tmp_path):
    made = CASES["cnn"](rng)
    full = pelton.build(made, level=0, refit=True)
    stripped = pelton.build(made, level=0, strip_weights=True)
    stripped.save(tmp_path / "s.pelton")
    own = sum(onnx.numpy_helper.to_array(t).nbytes for t in made.graph.initializer)
    assert (tmp_path / "s.pelton").stat().st_size < len(full.tobytes()) - own
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    x = feeds(full, rng)
    for engine in (
        stripped,
        pelton.load(tmp_path / "s.pelton", device=None),
        pelton.load(stripped.tobytes(), device=None),
    ):
        with pytest.raises(EngineError, match="built without weights.*`pelton refit`"):
            engine.run(x)
        with pytest.raises(EngineError, match="built without weights"):
            engine.context()
        with pytest.raises(InputError, match="also needs the weights.*built without weights"):
            engine.refit({"fc.b": weights["fc.b"]})
        engine.refit(weights)
        assert engine.run(x)["y"].tobytes() == full.run(x)["y"].tobytes()
        assert bytes(engine.constants) == bytes(full.constants)
        assert pelton.load(engine.tobytes()).run(x)["y"].tobytes() == full.run(x)["y"].tobytes()
    with pytest.raises(EngineError, match="built without weights"):
        pelton.load(tmp_path / "s.pelton")


def test_runs_under_way_and_contexts_keep_the_weights_they_began_with(rng):
    made = CASES["batch_norms"](rng)
    engine = pelton.build(made, level=0, refit=True)
    _, new = trained_further(made, engine.refittable, rng)
    old = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    x, context, queue = feeds(engine, rng), engine.context(), pelton.AsyncQueue(engine, 1)
    first, seen, over = engine.run(x)["y"].tobytes(), set(), threading.Event()
    assert engine.run_async(x).result()["y"].tobytes() == first

    def run():
        while not over.is_set():
            seen.add(engine.run(x)["y"].tobytes())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    engine.refit(new)
    second = engine.run(x)["y"].tobytes()
    engine.refit(old)
    engine.refit(new)
    over.set()
    for t in threads:
        t.join()
    assert seen <= {first, second} and first != second
    for _ in range(4):  # no context that a thread gave back has the weights of before
        assert engine.run(x)["y"].tobytes() == second
    assert context.run(x)["y"].tobytes() == first == queue.run_async(x).result()["y"].tobytes()
    assert engine.run_async(x).result()["y"].tobytes() == second == engine.context().run(x)["y"].tobytes()
    queue.close()


def test_what_does_not_fit_is_refused_by_name(rng):
    engine = pelton.build(CASES["turned_while_imported"](rng), level=0, refit=True)
    w = f32(rng, 9, 13)
    for given, says in (
        ({"w": w.T}, r"weight 'w' is f32\[9, 13\], got float32\[13, 9\]"),
        ({"w": w.astype(np.float64)}, "got float64"),
        ({"ww": w}, r"no weight 'ww' \(did you mean 'w'\?\)"),
        ({"half": np.float32(0.7)}, "'half' cannot be refitted: it is a scalar"),
        ([("w", w)], "arrays by name"),
        ({"w": None}, "got object"),
    ):
        with pytest.raises(InputError, match=says):
            engine.refit(given)
    engine.refit({"w": w, "h": f32(rng, 9).astype(np.float16), "c": f32(rng, 1, 13), "half": np.float32(0.3)})
    with pytest.raises(EngineError, match="is not refittable.*refit=True"):
        pelton.build(CASES["turned_while_imported"](rng), level=0).refit({"w": w})


def test_reasons_of_constants_that_decide(rng):
    """Numbers that were read by the importer, are read by kernels as addresses, or decide how the build goes."""
    nodes = [
        N("Resize", ["x", "", "scales"], ["a"], mode="nearest"),
        N("Mul", ["a", "one"], ["b"]),
        N("Gather", ["table", "at"], ["t"]),
        N("Add", ["b", "t"], ["y"]),
        N("Identity", ["given"], ["z"]),
    ]
    held = {
        "scales": np.array([1, 1, 2, 2], np.float32),
        "one": np.array([0.75], np.float32),
        "table": f32(rng, 5, 6),
        "at": np.array([4, 0, 2, 1], np.int64),
        "given": f32(rng, 3),
        "idle": f32(rng, 3),
    }
    engine = pelton.build(model(nodes, {"x": (1, 2, 2, 3)}, {"y": (1, 2, 4, 6), "z": (3,)}, held), level=0, refit=True)
    why = engine.refit_refusals
    assert "determined the program" in why["scales"] and "scalar" in why["one"] and "i64" in why["at"]
    assert "unused" in why["idle"] and "is an output" in why["given"]
    assert engine.refittable.keys() == {"table"}
    x, table = feeds(engine, rng), f32(rng, 5, 6)
    engine.refit({"table": table})
    want = np.repeat(np.repeat(x["x"], 2, 2), 2, 3) * np.float32(0.75) + table[held["at"]]
    np.testing.assert_allclose(engine.run(x)["y"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (dict(precision="best"), InputError, "depends on them"),
        (dict(target="cuda"), InputError, "for engines of CPUs"),
        (dict(refit="yes"), InputError, "True or False"),
    ],
)
def test_builds_that_cannot_be_refitted_say_so(given, kind, says, rng):
    with pytest.raises(kind, match=says):
        pelton.build(CASES["cnn"](rng), **{"level": 0, "refit": True, **given})


def test_scripts_and_networks_that_are_no_onnx_say_so(rng):
    with pytest.raises(InputError, match="a script over several engines, which cannot be refitted"):
        pelton.build(MODELS["nonzero_gather"]()[0], level=0, refit=True)
    net = pelton.Network()
    net.output(net.relu(net.input("x", (3, 5))), "y")
    with pytest.raises(BuildError, match="models that are ONNX or become it"):
        pelton.build(net, level=0, strip_weights=True)


def test_records_of_other_versions_and_damaged_ones_are_refused(rng):
    from dataclasses import replace

    engine = pelton.build(CASES["batch_norms"](rng), level=0, refit=True)
    _, new = trained_further(CASES["batch_norms"](rng), engine.refittable, rng)
    found = refit_record.of_plan(engine.plain)
    older = replace(found, build={**found.build, "pelton": "0.0.9"})
    with pytest.raises(EngineError, match="built by Pelton 0.0.9.*build it again"):
        pelton.Engine(replace(engine.plain, refit=refit_record.to_bytes(older))).refit(new)
    data = bytes(engine.plain.refit)
    import hashlib

    for at in rng.integers(0, len(data), 40):
        altered = bytearray(data)
        altered[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(EngineError, match="altered in its record"):
            pelton.Engine(replace(engine.plain, refit=bytes(altered))).refit(new)
        rest = bytes(altered[32:])  # and by who knows how to make the hash
        forged = pelton.Engine(replace(engine.plain, refit=hashlib.sha256(rest).digest() + rest))
        try:
            forged.refit(new)
        except pelton.Error:
            pass
    for data in (b"x", bytes(40), bytes(100)):
        with pytest.raises(EngineError):
            pelton.Engine(replace(engine.plain, refit=data)).refit(new)


def test_files_of_stripped_engines_that_do_not_hang_together_are_refused(rng):
    from pelton.engine import container

    data = pelton.build(CASES["batch_norms"](rng), level=0, strip_weights=True).tobytes()
    found = container.open_container(*container.map_file(data))
    sections = found.sections(found.rows)
    meta = json.loads(bytes(sections["meta"]))
    assert b"".join(container.frame(sections)) == data
    for change in (
        {"absent": [0]},
        {"absent": [10**6]},
        {"absent": "all"},
        {"absent": [-1]},
        {"constants": 1 << 60},
        {"constants": -1},
        {"absent": meta["absent"][1:]},
    ):
        altered = {**sections, "meta": json.dumps({**meta, **change}).encode()}
        with pytest.raises(EngineError):
            pelton.load(b"".join(container.frame(altered)), device=None)


def test_on_the_command_line(rng, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = CASES["batch_norms"](rng)
    other, new = trained_further(made, {t.name for t in made.graph.initializer}, rng)
    onnx.save(made, "m.onnx")
    onnx.save(other, "other.onnx")
    np.savez("new.npz", **new)
    assert main(["build", "m.onnx", "--level", "0", "-q", "--refit"]) == 0
    assert main(["build", "m.onnx", "--level", "0", "-q", "--strip-weights", "-o", "s.pelton"]) == 0
    assert main(["inspect", "s.pelton", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stripped"] is True
    assert main(["run", "s.pelton"]) == 2 and "pelton refit" in capsys.readouterr().err
    assert main(["refit", "m.pelton", "--weights", "new.npz", "-o", "a.pelton"]) == 0
    assert "10 of 10 weights" in capsys.readouterr().out
    assert main(["refit", "s.pelton", "--weights", "other.onnx", "-o", "b.pelton"]) == 0
    a, b = pelton.load("a.pelton"), pelton.load("b.pelton")
    assert bytes(a.constants) == bytes(b.constants)
    onnx.save(CASES["recurrent"](rng), "lstm.onnx")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nonsense")
    for weights, says in (
        ("lstm.onnx", "it is another network"),
        ("bad.npz", "no .npz file"),
        ("none.npz", "there is no file"),
        ("none.onnx", "there is no file"),
        (".", "is a folder"),
    ):
        before = (tmp_path / "m.pelton").read_bytes()
        assert main(["refit", "m.pelton", "--weights", weights]) == 2
        assert says in capsys.readouterr().err and (tmp_path / "m.pelton").read_bytes() == before
    pelton.build(MODELS["nonzero_gather"]()[0], level=0).save("script.pelton")
    pelton.build(made, level=0).save("plain.pelton")
    for engine, says in (("script.pelton", "is a script"), ("plain.pelton", "is not refittable")):
        assert main(["inspect", engine]) == 0 == main(["inspect", engine, "--json"]) and capsys.readouterr().out
        assert main(["refit", engine, "--weights", "other.onnx"]) == 2 and says in capsys.readouterr().err
