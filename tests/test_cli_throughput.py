"""`pelton bench` with several streams, batch sizes, numbers of runs, percentiles, and beside an earlier measurement."""

import json
import os
import re
import threading
import time

import numpy as np
import pytest
from models import model
from onnx import helper

import pelton
from pelton.cli import main, peer, throughput, timing
from pelton.cli.throughput import Split, splits

QUICK = ["--seconds", "0.05", "--warmup", "0"]


def measured(capsys, *arguments):
    assert main(["bench", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def six_cpus(monkeypatch):
    monkeypatch.setattr(throughput, "default_threads", lambda: 6)


@pytest.mark.parametrize(
    "streams, threads, found",
    [
        (None, None, [(1, 6), (2, 3), (3, 2), (6, 1)]),
        (4, None, [(4, 1)]),
        (None, 4, [(1, 4)]),
        (12, None, [(12, 1)]),
        (None, 1, [(6, 1)]),
        (2, 6, [(2, 6)]),
    ],
)
def test_cpus_are_split_without_a_rest(six_cpus, streams, threads, found):
    assert splits(streams, threads) == [Split(*s) for s in found]


def test_every_stream_runs_at_once(engines, monkeypatch, capsys):
    """With two streams, two runs are under way at any time, each in a context of its own."""
    seen, most, here = set(), [0], threading.Barrier(2, timeout=20)
    run_in = pelton.runtime.Engine.run_in

    def watched(engine, context, inputs):
        if len(seen) < 2:
            seen.add(id(context))
            here.wait()  # passes only if the other stream comes, too
        most[0] += 1
        return run_in(engine, context, inputs)

    monkeypatch.setattr(pelton.runtime.Engine, "run_in", watched)
    found = measured(capsys, engines["cnn"], "--streams", "2", "--threads", "1", *QUICK)
    assert len(seen) == 2 and most[0] >= found["runs"] > 0
    assert (found["hint"], found["streams"], found["threads"]) == ("throughput", 2, 1) and "tried" not in found


def test_the_best_split_is_found(engines, capsys, monkeypatch):
    monkeypatch.setattr(throughput, "default_threads", lambda: 2)
    monkeypatch.setattr(throughput, "TRIAL", 0.05)
    rates = {1: 100.0, 2: 300.0}
    real = throughput.measure

    def measure(engine, feeds, split, seconds, *rest):
        times = real(engine, feeds, split, seconds, *rest)
        return timing.Times(times.ns, elapsed=int(len(times.ns) / rates[split.streams] * 1e9))

    monkeypatch.setattr(throughput, "measure", measure)
    found = measured(capsys, engines["cnn"], "--hint", "throughput", *QUICK)
    assert (found["streams"], found["threads"]) == (2, 1)
    assert [(t["streams"], t["threads"], round(t["runs_per_second"])) for t in found["tried"]] == [
        (1, 2, 100),
        (2, 1, 300),
    ]
    rates[1] = 900.0
    assert main(["bench", engines["cnn"], "--hint", "throughput", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "1 stream of 2 threads" in out and re.search(
        r"tried: 1 stream of 2 threads 900\.\d, 2 streams of 1 thread 300", out
    )


def test_overlapping_runs_are_counted_by_the_clock():
    """Four runs of 10 in two streams take 20; a fifth that ends after time is up does not count."""
    spans = [(0, 10), (0, 11), (11, 20), (10, 20), (20, 31)]
    times = timing.of_streams(spans, 0, 20)
    assert sorted(times.ns) == [9, 10, 10, 11] and times.throughput == 4 / 20e-9
    assert timing.of_streams(spans, 0, None).throughput == 5 / 31e-9
    assert len(timing.of_streams([(0, 50)], 0, 20).ns) == 1


def test_a_number_of_runs(engines, capsys):
    for streams in ("1", "3"):
        given = ["--streams", streams, "--threads", "1", "--iterations", "17", "--warmup", "0"]
        assert measured(capsys, engines["cnn"], *given)["runs"] == 17
    assert measured(capsys, engines["cnn"], "--iterations", "1", "--warmup", "0")["runs"] == 1


def test_percentiles_and_units(engines, capsys):
    found = measured(capsys, engines["cnn"], *QUICK, "--percentiles", "0,50,99.9")
    ms = found["latency_ms"]
    assert list(ms) == ["min", "mean", "median", "p0", "p50", "p99.9"] and ms["p0"] == ms["min"] <= ms["p99.9"]
    short, long = timing.Times(np.array([2_000, 3_000])), timing.Times(np.array([2_000_000, 3_000_000]))
    assert "latency µs  min 2.000" in short.lines()[1] and "latency ms  min 2.000" in long.lines()[1]


def test_batches(folder, cache, capsys, refused, engines):
    path = folder / "any_batch.onnx"
    net = model([helper.make_node("Softmax", ["x"], ["y"])], {"x": ("batch", 7)}, {"y": ("batch", 7)}, {})
    path.write_bytes(net.SerializeToString())
    engine = str(folder / "any_batch.pelton")
    built = ["build", str(path), "-o", engine, "--shapes", "x=1..4..32x7", "--level", "0", "-q", *cache]
    assert main(built) == 0
    rows = measured(capsys, engine, "--batches", "1,5,32", *QUICK)["batches"]
    assert [r["batch"] for r in rows] == [1, 5, 32] and all(r["throughput"] > 0 for r in rows)
    assert rows[2]["throughput"] == pytest.approx(32e3 / rows[2]["latency_ms"]["mean"])
    assert main(["bench", engine, "--batches", "3", *QUICK]) == 0 and re.search(
        r"^ *3 +1 ", capsys.readouterr().out, re.M
    )
    assert "got 33" in refused("bench", engine, "--batches", "33")
    assert "needs an engine with a dynamic batch" in refused("bench", engines["cnn"], "--batches", "1,2")
    assert "--layers needs one" in refused("bench", engine, "--batches", "1", "--layers")


@pytest.mark.parametrize(
    "given, why",
    [
        (["--hint", "latency", "--streams", "2"], "--streams means parallel runs"),
        (["--streams", "0"], "from 1 to 256"),
        (["--iterations", "0"], "from 1"),
        (["--percentiles", "101"], "0 to 100"),
        (["--percentiles", "p99"], "0 to 100"),
        (["--batches", "1,,2"], "batch sizes"),
        (["--baseline", "absent.json"], "absent.json cannot be read"),
        (["--max-slowdown", "1.1"], "an earlier measurement"),
        (["--max-slowdown", "0.9"], "a factor from 1 on"),
        (["--max-slowdown", "much"], "a factor from 1 on"),
    ],
)
def test_refused(refused, engines, given, why):
    assert why in refused("bench", engines["cnn"], *given)


def test_beside_an_earlier_measurement(engines, capsys, tmp_path, monkeypatch, refused):
    before = tmp_path / "before.json"
    rng = np.random.default_rng(5)
    base = 1e6 + rng.integers(0, 5000, 100)  # within 1 %
    monkeypatch.setattr(timing, "measure", lambda *_, **__: base)
    before.write_text(json.dumps(measured(capsys, engines["cnn"], "--threads", "1")))
    for factor, differs, words in (
        (1.0, False, "within the noise"),
        (1.5, True, "1.50 times slower, more than the noise"),
        (0.5, True, "2.00 times as fast, more than the noise"),
    ):
        monkeypatch.setattr(timing, "measure", lambda *_, factor=factor, **__: base * factor)
        found = measured(capsys, engines["cnn"], "--threads", "1", "--baseline", str(before))["baseline"]
        assert found["differs"] == differs and found["ratio"] == pytest.approx(factor, rel=0.01) and not found["unlike"]
        given = ["bench", engines["cnn"], "--threads", "1", "--baseline", str(before)]
        assert main(given) == 0 and words in capsys.readouterr().out
        assert main([*given, "--max-slowdown", "1.2"]) == int(factor > 1.2) and capsys.readouterr()
    assert main(["bench", engines["cnn"], "--threads", "2", "--baseline", str(before)]) == 0
    assert "not alike: threads 1, now 2" in capsys.readouterr().out
    assert "measured with --hint latency, this would be with throughput" in refused(
        "bench", engines["cnn"], "--streams", "2", "--baseline", str(before)
    )
    old = json.loads(before.read_text()) | {"shapes": {"x": [4, 3, 12, 12]}}
    before.write_text(json.dumps(old))
    assert main(["bench", engines["cnn"], "--threads", "1", "--baseline", str(before)]) == 0
    assert "not alike: shapes x=4x3x12x12, now x=1x3x12x12" in capsys.readouterr().out
    for content in ("[]", "{}", "no json", '{"spread": 1, "throughput": "fast", "latency_ms": {"median": 1}}'):
        before.write_text(content)
        assert "before.json" in refused("bench", engines["cnn"], "--baseline", str(before))


def test_what_says_when_and_by_what(engines, capsys):
    found = measured(capsys, engines["cnn"], *QUICK)
    assert found["pelton"] == pelton.__version__ and re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["date"]
    )


def test_others_have_streams_too(tmp_path):
    """Each stream of a runtime is a thread with a session of its own, and the split that runs most is taken."""
    sessions = []

    def runtime(path, feeds, threads, outputs, folder):
        sessions.append(threads)
        return lambda: time.sleep(0.02 / threads**0.5) or [np.zeros(1)]

    peer.slow = runtime
    peer.TRIAL, trial = 0.25, peer.TRIAL
    try:
        run, keep, split = peer.load("slow", "", {}, [[1, 4], [4, 1]], ["y"], tmp_path)
    finally:
        del peer.slow
        peer.TRIAL = trial
    assert split == [4, 1] and sessions == [4, 1, 1, 1, 1, 1, 1, 1, 1]
    start, end, spans = keep(0.4)
    times = timing.of_streams(spans, start, end)
    assert times.throughput > 1.5 / 0.02 and len(os.listdir(tmp_path)) == len(sessions)
