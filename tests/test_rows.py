"""Engines over rows of tables, without a cluster: batches, padding, columns and their errors, one engine a process."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import pelton
import pelton.ray
import pelton.spark
from pelton.compat import rows
from pelton.compat.rows import RowRunner, shared_engine
from pelton.ray.replica import Replica
from pelton.runtime.batching import Batching


def made(path, batch, seed=0):
    """Writes an engine with inputs a f32[batch, 2, 3] and k i32[batch], and outputs big [batch, 2, 3], one [batch]."""
    net = pelton.Network("rows")
    a, k = net.input("a", f"f32[{batch}, 2, 3]"), net.input("k", f"i32[{batch.partition(chr(61))[0]}]")
    net.output(a * 2.0 + float(seed), "big")
    net.output(net.cast(k, to="f32") + 0.5, "one")
    pelton.build(net, level=0, threads=1).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def paths(folder):
    return {b: made(folder / f"{i}.pelton", b) for i, b in enumerate(("n=1..4..8", "n=3..4..8", "4"))}


def table(n):
    rng = np.random.default_rng(n)
    return {"a": rng.standard_normal((n, 6)).astype(np.float32), "k": np.arange(n, dtype=np.int32)}


@pytest.mark.parametrize("batch", ["n=1..4..8", "n=3..4..8", "4"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 9, 16, 19])
def test_any_number_of_rows(paths, batch, n):
    t = table(n)
    results = RowRunner(paths[batch]).run(t)
    assert list(results) == ["big", "one"] and results["big"].shape == (n, 2, 3) and results["one"].shape == (n,)
    assert np.array_equal(results["big"].reshape(n, 6), t["a"] * 2) and np.array_equal(results["one"], t["k"] + 0.5)


def test_columns_of_other_forms(paths):
    t = table(5)
    want = RowRunner(paths["4"]).run(t)["big"]
    for a in (t["a"].reshape(5, 2, 3), t["a"].astype(np.float64), list(t["a"]), np.array([*t["a"], None], object)[:5]):
        assert np.array_equal(RowRunner(paths["4"]).run({**t, "a": a, "id": ["x"] * 5})["big"], want)
    assert np.array_equal(RowRunner(paths["4"], "big", columns={"a": "picture"}).run(
        {"picture": t["a"], "k": t["k"].astype(np.int64)})["big"], want)  # fmt: skip
    assert list(RowRunner(paths["4"], ("one",)).run(t)) == ["one"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"a": None}, "needs the column a; the table has k"),
        ({"a": np.zeros((5, 7), np.float32)}, r"column 'a' has rows of shape \[7\]; .* shape \[2, 3\], or 6 numbers"),
        ({"a": np.zeros((5, 3, 2), np.float32)}, r"column 'a' has rows of shape \[3, 2\]"),
        ({"a": np.zeros(5, np.float32)}, "column 'a' has rows of one number"),
        ({"a": np.float32(1)}, "column 'a' has one entry per row, got a single value"),
        ({"a": np.zeros((4, 6), np.float32)}, "columns have one number of rows; these differ: a 4, k 5"),
        ({"a": [[1.0], [1.0, 2.0]]}, "column 'a' has rows of different sizes"),
        ({"a": np.array([["x"] * 6] * 5)}, "column 'a' is <U1; input 'a' takes f32"),
        ({"k": np.zeros(5)}, "column 'k' is float64; input 'k' takes i32"),
        ({"k": np.full(5, 1 << 40)}, "column 'k' has numbers from 1099511627776"),
    ],
)
def test_columns_that_do_not_fit(paths, change, message):
    given = {k: v for k, v in {**table(5), **change}.items() if v is not None}
    with pytest.raises(pelton.InputError, match=message):
        RowRunner(paths["n=1..4..8"]).run(given)


@pytest.mark.parametrize(
    "more, message",
    [
        ({"outputs": "bigg"}, r"has no output 'bigg' \(did you mean 'big'\?\); it has big, one"),
        ({"outputs": ("one", "one")}, "outputs has a name twice"),
        ({"outputs": 3}, "outputs is a name or a sequence of names"),
        ({"columns": {"b": "x"}}, "has no input 'b'"),
        ({"columns": ["b"]}, "columns is a mapping"),
        ({"threads": 0}, "threads is an integer from 1 to 256, got 0"),
        ({"path": 7}, "path is the path of an engine's file, got 7"),
    ],
)
def test_invalid_parameters(paths, more, message):
    with pytest.raises(pelton.InputError, match=message):
        RowRunner(**{"path": paths["4"], **more})


def test_engines_without_a_batch_are_refused(folder):
    net = pelton.Network()
    a, b = net.input("a", "f32[n=1..2..4, 2]"), net.input("b", "f32[3, 2]")
    net.output(a + 1.0, "x")
    net.output(b + 1.0, "y")
    pelton.build(net, level=0, threads=1).save(folder / "none.pelton")
    with pytest.raises(pelton.InputError, match="one dynamic dimension that is the first of all inputs and outputs"):
        RowRunner(folder / "none.pelton")


def test_one_engine_a_process_until_the_file_is_replaced(tmp_path, monkeypatch):
    loads = []
    load = rows.load
    monkeypatch.setattr(rows, "load", lambda path: loads.append(path) or load(path))
    path = made(tmp_path / "e.pelton", "n=1..4..8")
    first, t = RowRunner(path), table(2)
    for _ in range(3):
        assert RowRunner(str(path)).shared is first.shared is shared_engine(path)
        pelton.ray.Predictor(path)(t)
        pelton.spark.predictor(path)()(t["a"], t["k"])
    assert loads == [str(path)] and len(first.shared.idle[1]) == 1
    made(path, "n=1..4..8", seed=1)
    assert np.array_equal(RowRunner(path).run(t)["big"].reshape(2, 6), t["a"] * 2 + 1) and len(loads) == 2
    assert np.array_equal(first.run(t)["big"].reshape(2, 6), t["a"] * 2)
    path.unlink()
    with pytest.raises(pelton.EngineError, match="cannot be read"):
        RowRunner(path)


def test_the_function_for_predict_batch_udf(paths, monkeypatch):
    path = paths["n=1..4..8"]
    monkeypatch.chdir(path.parent)
    make = pickle.loads(pickle.dumps(pelton.spark.predictor(path.name)))
    monkeypatch.chdir("/")
    predict, t = make(), table(9)
    assert len(inspect.signature(predict).parameters) == 2
    results = predict(t["a"], t["k"])
    assert results["big"].shape == (9, 6) and np.array_equal(results["one"], t["k"] + 0.5)
    assert np.array_equal(pelton.spark.predictor(path, "one")()(t["a"], t["k"]), t["k"] + 0.5)
    for wrong, message in (({"threads": "2"}, "threads is"), ({"outputs": 1}, "outputs is"), ({"path": None}, "path")):
        with pytest.raises(pelton.InputError, match=message):
            pelton.spark.predictor(**{"path": path, **wrong})


def test_the_actor_of_ray_keeps_columns(paths):
    t = {**table(9), "id": np.arange(9)}
    results = pelton.ray.Predictor(paths["4"], "one", keep="id")(t)
    assert list(results) == ["id", "one"] and np.array_equal(results["one"], t["id"] + 0.5)
    with pytest.raises(pelton.InputError, match="no column 'ix' to keep; it has a, k, id"):
        pelton.ray.Predictor(paths["4"], keep="ix")(t)
    with pytest.raises(pelton.InputError, match="cannot be kept beside the output"):
        pelton.ray.Predictor(paths["4"], keep="one")({**t, "one": t["id"]})
    with pytest.raises(pelton.InputError, match='use batch_format="numpy"'):
        pelton.ray.Predictor(paths["4"])([1])


class Posted:
    """A request of Starlette's, as far as a replica reads it."""

    def __init__(self, body):
        self.body = body

    async def json(self):
        return json.loads(self.body)


def test_a_replica_joins_requests(paths):
    """In process; under Ray Serve in test_cluster_ray.py."""
    asyncio, responses = pytest.importorskip("asyncio"), pytest.importorskip("starlette.responses")
    t = table(6)

    async def ask():
        replica = Replica(str(paths["n=1..4..8"]), Batching(8), None, 1, 1)
        parts = [{"a": t["a"][i : i + 1], "k": t["k"][i : i + 1]} for i in range(6)]
        results = await asyncio.gather(*map(replica.run, parts))
        posted = await replica(Posted(json.dumps({"inputs": {k: v[:2].tolist() for k, v in t.items()}})))
        wrong = [await replica(Posted(body)) for body in ("{", "[]", '{"inputs": {"a": [1]}}')]
        replica._queue.close()
        return results, posted, wrong

    results, posted, wrong = asyncio.run(ask())
    assert np.array_equal(np.concatenate([r["big"] for r in results]).reshape(6, 6), t["a"] * 2)
    assert isinstance(posted, responses.JSONResponse)
    assert json.loads(posted.body)["outputs"]["one"] == [0.5, 1.5] and posted.status_code == 200
    assert [answer.status_code for answer in wrong] == [400] * 3
    assert "needs the column k" in json.loads(wrong[2].body)["error"]


@pytest.mark.parametrize(
    "call, extra",
    [
        ("pelton.ray.deployment('e.pelton')", "ray"),
        ("next(pelton.spark.map_in_pandas('e.pelton')(iter([])))", "spark"),
    ],
)
def test_missing_packages_are_named(call, extra):
    """In a process where neither can be imported."""
    code = (
        "import sys\nfor n in ('ray', 'pandas'): sys.modules[n] = None\nimport pelton\n"
        f"try:\n    {call}\nexcept pelton.EngineError as e:\n    print(e)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f'pip install "pelton[{extra}]"' in found.stdout, found.stdout + found.stderr


def test_copies_of_rows_are_not_needed(paths):
    """A batch that fits and is contiguous reaches the engine without a copy."""
    t = {"a": np.zeros((4, 2, 3), np.float32), "k": np.zeros(4, np.int32)}
    arrays, n = RowRunner(paths["4"]).arrays(t)
    assert n == 4 and all(np.shares_memory(arrays[k], t[k]) for k in t)
