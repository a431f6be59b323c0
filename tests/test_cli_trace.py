"""pelton trace: files in the trace event format, with all known facts of every step."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from script_models import MODELS

import pelton
from pelton.cli import main


def events_of(path) -> list[dict]:
    """The events of a trace, after a look at the rules: one a line, sorted, and on each thread slices nest."""
    text = Path(path).read_text()
    document = json.loads(text)
    events = document["traceEvents"]
    assert document["displayTimeUnit"] == "ms" and len(text.splitlines()) == len(events) + 3
    names = [e for e in events if e["ph"] == "M"]
    assert {e["name"] for e in names} >= {"process_name", "thread_name"} and events[: len(names)] == names
    slices = events[len(names) :]
    open_slices: dict[int, list[float]] = {}
    for before, e in zip([slices[0], *slices], slices):
        assert e["ph"] == "X" and e["ts"] >= before["ts"] >= 0 and e["dur"] >= 0 and e["pid"] == os.getpid()
        ends = open_slices.setdefault(e["tid"], [])
        while ends and ends[-1] <= e["ts"]:
            ends.pop()
        end = round(e["ts"] + e["dur"], 3)
        assert not ends or end <= ends[-1], "slices of a thread overlap"
        ends.append(end)
    assert {e["tid"] for e in slices} <= {e["tid"] for e in names if e["name"] == "thread_name"}
    return slices


def inside(events, outer) -> list[dict]:
    """The events within one."""
    end = round(outer["ts"] + outer["dur"], 3)
    return [e for e in events if e is not outer and outer["ts"] <= e["ts"] and round(e["ts"] + e["dur"], 3) <= end]


def test_runs_have_all_steps(tmp_path, monkeypatch, capsys, engines):
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    assert main(["trace", engines["cnn"], "--runs", "2", "--warmup", "0", "--threads", "2"]) == 0
    events, engine = events_of("cnn.trace.json"), pelton.load(engines["cnn"])
    runs = [e for e in events if e["cat"] == "run"]
    assert [r["name"] for r in runs] == ["run 0", "run 1"]
    assert runs[0]["args"]["inputs"] == {"x": [1, 3, 12, 12]}
    for run in runs:
        steps = inside(events, run)
        assert [e["name"] for e in steps] == [s.name for s in engine.steps] and {e["cat"] for e in steps} == {"step"}
        for e, step in zip(steps, engine.steps):
            args = e["args"]
            assert args["op"] == step.info["op"] and args["tactic"] == step.info["tactic"]
            assert args["layers"] == ", ".join(step.info["layers"]) and args["flops"] == step.info["flops"]
            assert args["bytes"] == step.info["bytes"] and args["outputs"].startswith("f32[1, ")
            if e["dur"] and args["flops"]:
                assert args["GFLOP/s"] == pytest.approx(args["flops"] / e["dur"] / 1e3, abs=0.006)
    assert runs[-1]["ts"] + runs[-1]["dur"] < (time.monotonic() - start) * 1e6  # since the trace began
    said = capsys.readouterr().out
    assert re.match(rf"cnn.trace.json: 2 runs of .*, {2 * len(engine.steps)} steps in all", said)
    about = json.loads(Path("cnn.trace.json").read_text())["otherData"]
    assert about["threads"] == "2" and about["pelton"] == pelton.__version__ and about["engine"] == engines["cnn"]


def test_sizes_are_those_of_the_run(tmp_path, folder, pair, cache):
    engine, target = str(tmp_path / "e.pelton"), tmp_path / "t.json"
    assert main(["build", pair, "-o", engine, "--level", "0", "-q", *cache]) == 0
    assert main(["trace", engine, "-o", str(target), "--shapes", "a=5x4,b=5x4", "--runs", "1", "-q"]) == 0
    run, *steps = events_of(target)
    assert run["args"]["inputs"] == {"a": [5, 4], "b": [5, 4]}
    assert any(e["args"]["outputs"] == "f32[5, 4]" and e["args"]["flops"] == 20 for e in steps)


def test_a_script_nests_its_engines(tmp_path, kernel_cache):
    model, every = MODELS["greedy_decoder"]()
    engine = pelton.build(model, level=0, cache_dir=kernel_cache)
    engine.save(tmp_path / "e.pelton")
    np.savez(tmp_path / "x.npz", **every[1])
    target = tmp_path / "t.json"
    given = ["-o", str(target), "--runs", "2", "--input", str(tmp_path / "x.npz"), "--warmup", "0"]
    assert main(["trace", str(tmp_path / "e.pelton"), *given]) == 0
    events = events_of(target)
    runs = [e for e in events if e["cat"] == "run"]
    loops = [e for e in events if e["cat"] == "script" and e["args"]["op"] == "loop"]
    assert len(runs) == len(loops) == 2 and all(loop in inside(events, run) for run, loop in zip(runs, loops))
    within = [e for e in inside(events, loops[0]) if e["cat"] == "engine"]
    assert len(within) > 1 and {e["name"] for e in within} == {"engine 0"}  # as often as the loop iterated
    steps = [s.name for s in engine.parts[0].steps]
    assert all([e["name"] for e in inside(events, part) if e["cat"] == "step"] == steps for part in within)
    traced, context = engine.trace(every[1])[1], engine.context()
    again = context.trace_engines(every[1])
    assert [s.name for s, *_ in traced] == [s.name for _, steps in again for s, *_ in steps]
    assert {id(part) for part, _ in again} == {id(None), *map(id, engine.parts)}


def test_help_teaches_with_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["trace", "--help"])
    said = capsys.readouterr().out
    assert "examples:\n  pelton trace " in said and all(len(line) < 160 for line in said.splitlines())


@pytest.mark.parametrize(
    "args, why",
    [
        (["{cnn}", "--runs", "0"], "1 to 10000"),
        (["none.pelton"], "none.pelton cannot be read"),
        (["{cnn}", "-o", "/nowhere/t.json"], "there is no folder /nowhere"),
        (["{cnn}", "-o", "/dev"], "cannot be written"),
        (["{cnn}", "--shapes", "z=1x2"], "the engine has no input 'z'"),
        (["{cnn}", "--input", "none.npy"], "none.npy cannot be read"),
        (["{cnn}", "--threads", "300"], "1 to 256"),
    ],
)
def test_what_is_refused(refused, engines, args, why):
    assert why in refused("trace", *(a.format(**engines) for a in args))
