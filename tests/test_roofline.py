"""The roofline: the bound of a step, its picture, operations and bytes of steps, and the table of benchmarks."""

import argparse
import importlib.util
import math
import statistics
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from models import model
from onnx import helper

import pelton
from pelton.cli import roofline
from pelton.cli.peers import Measured
from pelton.cli.roofline import Roof
from pelton.cli.timing import Times, of_streams

ROOT = Path(__file__).parents[1]
ROOF = Roof(gflops=200.0, gbytes=40.0)


def step(flops, nbytes, ns, share=0.25, tactic="gemm:MR=6@x86_64_v3", name="fc"):
    bound, least = ROOF.bound(flops, nbytes)
    return {
        "name": name,
        "op": "",
        "tactic": tactic,
        "ns": ns,
        "share": share,
        "flops": flops,
        "bytes": nbytes,
        "gflops": flops / ns,
        "gbytes": nbytes / ns,
        "bound": bound,
        "reached": least / ns,
    }


def test_what_bounds_a_step():
    assert ROOF.bound(2e9, 1e6) == ("compute", 1e7) and ROOF.bound(2e6, 4e8) == ("memory", 1e7)
    assert ROOF.bound(1e5, 1e4)[0] == "" and ROOF.bound(0, 0) == ("", 0)
    assert ROOF.at(1) == 40 and ROOF.at(5) == ROOF.at(50) == 200
    assert ROOF.best(Roof(100, 50)) == Roof(200, 50)


STEPS = [
    step(1e8, 1e7, 1e6, name='<"&>'),
    step(1e9, 1e7, 1e7, share=0.5),
    step(1e8, 1e8, 1e7, share=0.125, tactic="pool:TW=3@x86_64_v3"),
    step(0, 1e6, 1e5, share=0.125, tactic="pointwise:RB=1@x86_64_v3"),
]


def test_places_follow_from_figures():
    root = ElementTree.fromstring(roofline.picture(ROOF, STEPS, "a <title>", "machine & threads"))
    dots = {c.find("{*}title").text: c for c in root.findall(".//{*}circle")}
    assert len(dots) == 3 and "0.1.0" not in dots
    ten, hundred, one = (
        next(c for t, c in dots.items() if t.startswith(start))
        for start in ('<"&>\ngemm:MR=6\n', "fc\ngemm:MR=6\n10.000 ms", "fc\npool")
    )
    x, y, r = ({k: float(c.get(k)) for k in ("cx", "cy", "r")} for c in (ten, hundred, one))
    assert y["cx"] - x["cx"] == pytest.approx(x["cx"] - r["cx"], abs=0.05), "a tenfold intensity is as far everywhere"
    assert x["cy"] == y["cy"] < r["cy"]  # 100 GFLOP/s, 100 and 10
    assert y["r"] ** 2 == pytest.approx(2 * x["r"] ** 2, rel=0.01), "areas are shares"
    assert ten.get("fill") == hundred.get("fill") != one.get("fill")
    assert (
        "100.0 GFLOP/s" in ten.find("{*}title").text
        and "bound by compute, 50 % of that reached" in ten.find("{*}title").text
    )
    ticks = {
        t.text: float(t.get("x"))
        for t in root.findall(".//{*}text")
        if t.get("text-anchor") == "middle" and t.text in ("1", "10", "100")
    }
    assert [ticks["1"], ticks["10"], ticks["100"]] == pytest.approx([r["cx"], x["cx"], y["cx"]], abs=0.1), (
        "dots stand where the axis says"
    )
    low, flat = [line for line in root.findall("{*}line") if line.get("stroke") == "#222"]
    corner = float(low.get("x2"))
    assert corner == float(flat.get("x1")) and float(flat.get("y1")) == float(flat.get("y2"))
    decade = ticks["10"] - ticks["1"]
    assert corner == pytest.approx(ticks["1"] + decade * math.log10(5), abs=0.1), (
        "the corner is at 200 / 40 operations per byte"
    )
    said = " ".join(t.text for t in root.findall(".//{*}text"))
    for words in (
        "a <title>",
        "machine & threads",
        "200 GFLOP/s measured",
        "40.0 GB/s measured",
        "gemm",
        "75.0 %",
        "pool",
        "without 1 step",
        "12.5 %",
    ):
        assert words in said
    for c in dots.values():
        assert (
            roofline.LEFT <= float(c.get("cx")) <= roofline.RIGHT
            and roofline.TOP <= float(c.get("cy")) <= roofline.BOTTOM
        )


@pytest.mark.parametrize(
    "steps",
    [
        [],
        STEPS[3:],
        [step(1e8, 1e7, 1e6, tactic=f"kernel{i}:@x") for i in range(24)],
        [step(1e12, 1e3, 1e6), step(1, 1e9, 1e9)],
    ],
)
def test_any_steps_make_a_picture(steps):
    root = ElementTree.fromstring(roofline.picture(ROOF, steps, "title"))
    assert len(root.findall(".//{*}circle")) == sum(s["flops"] > 0 for s in steps)


# --- what steps say of themselves


def only_step(nodes, inputs, outputs, constants, **options):
    engine = pelton.build(model(nodes, inputs, outputs, constants), level=0, cache_dir=None, **options)
    (found,) = engine.steps
    return found


def test_packed_weights_count_as_they_are_stored(tmp_path):
    """Winograd's are larger than the filters; they and the activations are all that must be moved."""
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    engine = pelton.build(
        model([conv], {"x": (1, 64, 24, 24)}, {"y": (1, 64, 24, 24)}, {"w": w}), level=1, cache_dir=tmp_path
    )
    found = engine.steps[-1] if len(engine.steps) == 1 else next(s for s in engine.steps if s.info["flops"])
    stored = len(engine.constants)
    assert found.info["flops"] == 2 * 64 * 64 * 9 * 576
    assert stored <= found.info["bytes"] - 2 * 64 * 576 * 4 + 64 < stored + 64 * 4 + 128


def test_halves_count_as_halves(tmp_path):
    rng = np.random.default_rng(0)
    w, r = (rng.uniform(-0.1, 0.1, (1, 256, n)).astype(np.float32) for n in (8, 64))
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=64)
    found = pelton.build(
        model([lstm], {"x": (20, 1, 8)}, {"y": (20, 1, 1, 64)}, {"w": w, "r": r}), level=1, cache_dir=tmp_path
    ).steps
    steps = next(s for s in found if "lstm" in s.info["tactic"])
    moved = 4 * 20 * (256 + 64)  # gates and states of all steps
    weights = r.size * (2 if "lstm_half" in steps.info["tactic"] else 4)
    assert moved + weights <= steps.info["bytes"] <= moved + weights + 4 * 64 * 8


def test_a_table_counts_as_what_is_picked():
    table = np.zeros((5000, 16), np.float32)
    gather = helper.make_node("Gather", ["table", "ids"], ["y"])
    found = only_step([gather], {"ids": ((1, 7), 7)}, {"y": (1, 7, 16)}, {"table": table})
    assert found.info["bytes"] == 7 * 8 + 2 * 7 * 16 * 4


def test_what_is_joined_in_place_counts_once():
    """Both parts are written where the join wants them: no copy, and each step counts its own part."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["z"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=0),
    ]
    engine = pelton.build(model(nodes, {"x": (3, 8), "z": (5, 8)}, {"y": (8, 8)}, {}), level=0, cache_dir=None)
    assert sorted(s.info["bytes"] for s in engine.steps) == [2 * 3 * 8 * 4, 2 * 5 * 8 * 4]


# --- benchmarks/cpu/run.py


@pytest.fixture
def run(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmarks_cpu_run", ROOT / "benchmarks/cpu/run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def timed(name, ms, off=0.0, why_not=""):
    return Measured(name, "1", why_not, [] if why_not else [Times(np.full(5, ms * 1e6))] * 3, off)


def test_the_table_of_benchmarks(run, tmp_path, monkeypatch):
    others = ("onnxruntime", "openvino", "mnn", "ncnn")
    figures = {
        "one": [
            timed("onnxruntime", 12, 1e-6),
            timed("openvino", 20, 1e-6),
            timed("mnn", 5, 0.2),
            timed("ncnn", 0, why_not="failed"),
        ],
        "two": [
            timed("onnxruntime", 30, 1e-6),
            timed("openvino", 20, 1e-6),
            timed("mnn", 15, 0.015),
            timed("ncnn", 18, 1e-6),
        ],
        "three": [timed(n, 20, 1e-2) for n in others],
    }
    for name in figures:
        (tmp_path / f"{name}.onnx").write_bytes(
            model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 4)}, {"y": (1, 4)}, {}).SerializeToString()
        )
    monkeypatch.setattr(
        run.peers, "compare", lambda path, model, *args, **kw: [timed("pelton", 10), *figures[Path(model).stem]]
    )
    a = argparse.Namespace(
        vs=",".join(others), peers_python="", seconds=1, rounds=3, level=0, strict=False, hint="latency"
    )
    rows = [run.measure(str(tmp_path / f"{name}.onnx"), a, 1, {}) for name in figures]
    assert [r.right for r in rows] == [
        True,
        True,
        False,
    ], "MNN's rounding is no fault of Pelton's; what ONNX Runtime does not confirm is"
    assert [round(r.lead, 6) for r in rows] == [1.2, 1.5, 2.0]
    said = run.table(rows, a, 2)
    assert "2 threads, FP32, level 0" in said
    assert f"| model | Pelton ms | {' ms | '.join(others)} ms | best other / Pelton | off | build s |" in said
    assert "| one | 10.000 | 12.000 | 20.000 | 5.000 (off 2e-01) | – | 1.20 | 1.0e-06 | " in said
    assert (
        "Geometric mean of best other / Pelton: 1.53; the least lead: one (1.20) and two (1.50)." in said
        and "do not count" in said
    )
    assert run.groups([str(tmp_path), "a.onnx", "b.onnx"]) == [
        ["a.onnx", "b.onnx"],
        sorted(str(tmp_path / f"{n}.onnx") for n in figures),
    ]


@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_the_ratio_of_a_row_is_that_of_its_columns(run, tmp_path, monkeypatch, hint):
    """Whatever the rounds are: a median of the rounds' ratios is another figure, which no reader can check."""
    rng, rows = np.random.default_rng(0), []
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path.write_bytes(model(nodes, {"x": (1, 4)}, {"y": (1, 4)}, {}).SerializeToString())
    names, split = ("onnxruntime", "openvino"), (2, 1) if hint == "throughput" else None
    a = argparse.Namespace(
        vs=",".join(names), peers_python="", seconds=1, rounds=9, level=0, strict=False, hint=hint, threads=None
    )
    for scale in (0.004, 0.3, 11, 1500):
        found = [
            Measured(n, "1", "", [of_streams([(0, int(1e6 * scale * t))], 0, None) for t in rng.uniform(1, 2, 9)])
            for n in ("pelton", *names)
        ]
        for m in found:
            m.split = split
        costs = [m.costs for m in found]
        assert abs(statistics.median(b / o for b, o in zip(costs[1], costs[0])) - found[0].lead(found[1])) > 0
        monkeypatch.setattr(run.peers, "compare", lambda *args, **kw: found)  # noqa: B023
        rows.append(run.measure(str(path), a, 1, {}))
        ours, *others = (float(cell.split()[0]) for cell in rows[-1].cells[1:4])
        ratio = ours / max(others) if split else min(others) / ours
        assert rows[-1].cells[4] == f"{ratio:.2f}" == f"{rows[-1].lead:.2f}"
    ratios = [float(row.cells[4]) for row in rows]
    assert f"Pelton: {statistics.geometric_mean(ratios):.2f}" in run.table(rows, a, 2).replace(
        "Pelton / best other", "Pelton"
    )
