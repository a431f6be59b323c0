"""`pelton view`: the page's data equals the engine's, and nothing in it leaks out."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import script_models
from models import model
from onnx import helper

import pelton
from pelton.cli import layers, main, roofline
from pelton.diagnose.compare import Comparison, OutputDifference, StepDifference
from pelton.engine.times import recorded_time
from pelton.explorer.align import align
from pelton.explorer.data import Described, layers_of, layout
from pelton.explorer.page import as_json, page

ROOT = Path(__file__).parents[1]
EXPLORER = ROOT / "src/pelton/explorer"
EVIL = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "{{DATA}}",
    "a\u2028b\"'&amp;",
    "half \ud800 of a pair",
)


class Elements(HTMLParser):
    """The elements of a page in order, and the text of its scripts and styles."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.within = ""
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.within = tag
        if tag in ("script", "style"):
            self.inside.append("")

    def handle_endtag(self, tag):
        self.within = ""

    def handle_data(self, data):
        if self.within in ("script", "style"):
            self.inside[-1] += data


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.fixture
def view(tmp_path, capsys):
    """Runs the command; gives the data of its page."""

    def go(*args) -> dict:
        assert main(["view", *map(str, args), "-o", str(tmp_path / "page.html")]) == 0
        capsys.readouterr()
        return data_of((tmp_path / "page.html").read_text())

    return go


@pytest.fixture(scope="module")
def joined(folder, cache):
    """An engine of two convolutions that write one joined buffer, of an input that is joined, too, and of a sum."""
    path = folder / "joined.onnx"
    weights = np.random.default_rng().standard_normal((2, 5, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["left"], "left", pads=[1] * 4),
        helper.make_node("Conv", ["x", "b"], ["right"], "right", pads=[1] * 4),
        helper.make_node("Sigmoid", ["right"], ["bent"], "bent"),
        helper.make_node("Concat", ["left", "bent", "x"], ["all"], "join", axis=1),
        helper.make_node("GlobalAveragePool", ["all"], ["y"], "mean"),
    ]
    made = model(nodes, {"x": (1, 3, 7, 9)}, {"y": (1, 13, 1, 1)}, {"a": weights[0], "b": weights[1]})
    path.write_bytes(made.SerializeToString())
    assert main(["build", str(path), "-o", str(path.with_suffix(".pelton")), "--level", "0", "-q", *cache]) == 0
    return str(path.with_suffix(".pelton"))


def test_the_page_says_what_the_engine_says(engines, view):
    plain = pelton.load(engines["cnn"], device=None)
    (shown,) = view(engines["cnn"])["engines"]
    assert shown["label"] == "cnn.pelton" and shown["name"] == plain.name
    assert shown["target"].items() <= plain.plain.target.items() and {"arch", "isa", "cpu"} <= shown["target"].keys()
    assert [p["type"] for p in shown["inputs"] + shown["outputs"]] == [*map(str, (*plain.inputs, *plain.outputs))]
    assert shown["arena"] == plain.plain.arena and shown["code"] == len(plain.plain.code)
    for said, step in zip(shown["steps"], plain.steps, strict=True):
        assert (said["name"], said["op"], said["tactic"]) == (step.name, step.info["op"], step.info["tactic"])
        assert (said["flops"], said["bytes"]) == (step.info["flops"], step.info["bytes"])
        assert said["layers"] == layers_of(step) and "+" not in "".join(said["layers"])
        assert [(t["dtype"], t["shape"]) for t in said["outputs"]] == [(t.dtype, [*t.shape]) for t in step.outputs]
        assert [t["name"] for t in said["outputs"]] == step.info["writes"]
        assert said["source"] == "estimated" and said["ns"] == recorded_time(step).ns > 0
    assert shown["total"] == pytest.approx(sum(s["ns"] for s in shown["steps"]))
    assert sum(s["share"] for s in shown["steps"]) == pytest.approx(1)
    own = sum(c["bytes"] for c in {(c["name"], c["form"]): c for s in shown["steps"] for c in s["constants"]}.values())
    assert 0 < own <= shown["constants"]


def test_edges_are_who_reads_what(joined, view):
    """Against the model: a step reads what the steps of the layers before its own write."""
    (shown,) = view(joined)["engines"]
    by_layer = {name: f"s{i}" for i, s in enumerate(shown["steps"]) for name in s["layers"]}
    edges = {(a, b) for a, b, _ in shown["edges"]}
    for reader, read in (("mean", "left"), ("mean", "bent")):
        assert by_layer[reader] == by_layer[read] or (by_layer[read], by_layer[reader]) in edges
    (copy,) = [f"s{i}" for i, s in enumerate(shown["steps"]) if s["kind"] == "copy" and s["reason"].startswith("%x")]
    assert {("i0", copy), (copy, by_layer["mean"]), (by_layer["mean"], "o0")} <= edges
    order = {"i": -1, "o": len(shown["steps"])}
    at = {n: order.get(n[0], int(n[1:])) for edge in edges for n in edge}
    assert all(at[a] < at[b] for a, b in edges)


def test_copies_say_why(joined, view):
    meta = pelton.load(joined, device=None).meta
    copies = [s for s in view(joined)["engines"][0]["steps"] if s["kind"] == "copy"]
    assert sorted(s["reason"] for s in copies) == sorted(meta["copies"]) != []
    assert any("cannot be written in place" in s["reason"] for s in copies)


def test_buffers_that_live_at_once_lie_apart(engines, joined, view):
    for path in (engines["cnn"], joined):
        (memory,) = view(path)["engines"][0]["memory"]
        assert memory["buffers"] and max(at + size for _, at, size, *_ in memory["buffers"]) <= memory["arena"]
        for i, (_, at, size, first, last, *_) in enumerate(memory["buffers"]):
            assert 0 <= first <= last < memory["steps"]
            for _, other, length, begin, end, *_ in memory["buffers"][:i]:
                assert last < begin or end < first or at + size <= other or other + length <= at


def test_times_of_tuning_are_shown_beside_what_they_beat(engines):
    plain = pelton.load(engines["cnn"], device=None).plain
    times = [{s.info["tactic"]: 700 + i, "other:N=1": 900, "third:N=2": 800} for i, s in enumerate(plain.steps)]
    times[0] = {"other:N=1": 900}  # of another tactic alone: a packing that is larger
    tuned = [replace(s, info={**s.info, "times_ns": of}) for s, of in zip(plain.steps, times)]
    shown = Described(replace(plain, steps=tuple(tuned))).json()
    assert shown["sources"] == {"estimated": 1, "tuned": len(tuned) - 1}
    for i, said in enumerate(shown["steps"][1:], 1):
        assert said["ns"] == 700 + i and said["source"] == "tuned" and dict(said["times"]) == times[i]
        assert [ns for _, ns in said["times"]] == sorted(times[i].values())


@pytest.mark.parametrize(
    "info", [{"times_ns": 5}, {"times_ns": {"a": "b"}}, {"layers": 3}, {"writes": None}, {"op": {}}]
)
def test_odd_records_of_steps_are_no_reason_to_fail(engines, info):
    plain = pelton.load(engines["cnn"], device=None).plain
    odd = replace(plain, steps=tuple(replace(s, info={**s.info, "flops": True, **info}) for s in plain.steps))
    odd = replace(odd, meta={"model": 3, "int8": [], "half": [7], "checked": [1], "constants": 2, "weights": None})
    shown = json.loads(as_json(Described(odd).json()))
    assert all(s["flops"] is None and s["source"] == "unknown" for s in shown["steps"])


def test_measured_times_and_the_peak(engines, view, monkeypatch):
    roof, calls = roofline.Roof(100.0, 10.0), []
    monkeypatch.setattr(layers, "PROFILES", 3)
    monkeypatch.setattr(layers, "measure_roof", lambda engine, threads: calls.append(threads) or roof)
    found = view(engines["cnn"], "--time", "--threads", "1")
    assert found["peak"] == {"gflops": 100, "gbytes": 10} and calls == [1, 1]
    (shown,) = found["engines"]
    assert shown["sources"] == {"measured": len(shown["steps"])} and shown["total"] > 0
    assert view(engines["cnn"])["peak"] is None


def test_nothing_gets_out_of_the_page(folder, cache, tmp_path, capsys):
    """Names that would end a script, open a comment, or stand for a part of the page."""
    nodes, last = [], "x"
    for i, name in enumerate(EVIL[:-1]):
        nodes.append(helper.make_node("Softmax", [last], [f"t{i}"], name, axis=-1))
        last = f"t{i}"
    nodes.append(helper.make_node("Relu", [last], [EVIL[0]], "end"))
    path = tmp_path / "evil.onnx"
    path.write_bytes(model(nodes, {"x": (3, 7)}, {EVIL[0]: (3, 7)}, {}).SerializeToString())
    engine = pelton.build(str(path), level=0, cache_dir=cache[1])
    plain = engine.plain
    object.__setattr__(plain.steps[0], "name", EVIL[-1])
    text = page([Described(plain)], {"version": "<0>", "peak": None})
    text.encode()
    found = Elements(text)
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 2 and "img" not in tags and all("onerror" not in a for _, a in found.tags)
    assert "<0>" not in text and text.count("<!--") == text.count("&lt;!--<") == 0
    shown = data_of(text)["engines"][0]
    assert [n for s in shown["steps"] for n in s["layers"]] == [*EVIL[:-1], "end"]
    assert shown["steps"][0]["name"] == EVIL[-1] and shown["outputs"][0]["name"] == EVIL[0]
    for shown in (engine._repr_html_(), engine.outputs[0]._repr_html_()):
        assert "<img" not in shown and "&lt;img" in shown and "<script" not in shown
        shown.encode()


def test_the_policy_allows_its_own_script_and_style_alone(engines, tmp_path, capsys):
    assert main(["view", engines["cnn"], "-o", str(tmp_path / "p.html")]) == 0
    text = (tmp_path / "p.html").read_text()
    policy = dict(rule.split(" ", 1) for rule in re.search(r'Policy" content="([^"]+)"', text)[1].split("; "))
    found = Elements(text)
    style, _, script = found.inside
    for rule, text in (("script-src", script), ("style-src", style)):
        assert policy[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert (
        policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'" and "connect-src" not in policy
    )
    assert [tag for tag, _ in found.tags].index("meta") < [tag for tag, _ in found.tags].index("script")
    assert not any({"src", "href", "style"} & a.keys() or any(k.startswith("on") for k in a) for _, a in found.tags)


def test_two_engines_are_aligned_by_layers(folder, cache, engines, cnn, view):
    apart = folder / "apart.pelton"
    assert main(["build", cnn, "-o", str(apart), "--level", "0", "--strict", "-q", *cache]) == 0
    found = view(engines["cnn"], apart)
    left, right = found["engines"]
    for side, engine in (("left", left), ("right", right)):
        assert sorted(i for row in found["rows"] for i in row[side]) == [*range(len(engine["steps"]))]
    for row in found["rows"]:
        of = [{n for i in row[side] for n in e["steps"][i]["layers"]} for side, e in (("left", left), ("right", right))]
        assert of[0] | of[1] == set(row["layers"]) and (not all(of) or of[0] & of[1])
    firsts = [row["left"][0] for row in found["rows"] if row["left"]]
    assert firsts == sorted(firsts)


def test_steps_that_one_engine_alone_has_are_rows_in_their_place(joined, engines):
    one, two = (Described(pelton.load(path, device=None).plain) for path in (joined, engines["cnn"]))
    rows = align(one, two)
    assert all(not row["left"] or not row["right"] for row in rows if row["layers"] == [])
    same = align(one, one)
    with_layers = [row for row in same if row["layers"]]
    assert with_layers and all(row["left"] == row["right"] for row in with_layers)
    copies = [row for row in same if not row["layers"]]
    assert len(copies) % 2 == 0 and all(len(row["left"]) + len(row["right"]) == 1 for row in copies)


@pytest.mark.parametrize("name", ["greedy_decoder", "branches_of_two_shapes", "scanned_rnn", "loop_in_a_branch"])
def test_scripts(name, tmp_path, cache, view):
    path = tmp_path / "script.pelton"
    made, feeds = script_models.MODELS[name]()
    engine = pelton.build(made, level=0, cache_dir=cache[1])
    engine.save(path)
    (shown,) = view(path)["engines"]
    assert [s["name"] for s in shown["steps"]] == [s.name for s in engine.steps]
    inside = sum(len(part.steps) for part in engine.parts)
    assert all((s["part"] is None) == (i >= inside) for i, s in enumerate(shown["steps"]))
    assert sum(s["share"] for s in shown["steps"]) == pytest.approx(1)
    known = {f"s{i}" for i in range(len(shown["steps"]))} | {f"i{i}" for i in range(len(engine.inputs))}
    known |= {f"o{i}" for i in range(len(engine.outputs))}
    assert known >= {n for a, b, _ in shown["edges"] for n in (a, b)}
    assert {b for _, b, _ in shown["edges"]} >= {f"o{i}" for i in range(len(engine.outputs))}
    assert "steps:" in engine._repr_html_()
    control = {f"s{i}" for i, s in enumerate(shown["steps"]) if s["kind"] == "control"}
    assert control <= {a for a, _, _ in shown["edges"]}
    work = [(3 * i, 5 * i) for i in range(len(engine.steps))]  # of more runs than one
    timed = Described(engine.plain, [(None, s) for s in engine.steps[inside:]], times=[1.0] * len(work), work=work)
    counted = [(i, timed._step(i, 1.0)) for i, s in enumerate(engine.steps[:inside]) if "flops" in s.info]
    assert counted and all((s["flops"], s["bytes"]) == work[i] for i, s in counted)


def test_dynamic_engines_are_shown_at_their_sizes(folder, cache, cnn, view):
    path = folder / "dynamic.pelton"
    assert main(["build", cnn, "-o", str(path), "--shapes", "x=1..2..9x3x12x12", "--level", "0", "-q", *cache]) == 0
    (two,), (seven,) = view(path)["engines"], view(path, "--shapes", "x=7x3x12x12")["engines"]
    assert (two["inputs"][0]["shape"], seven["inputs"][0]["shape"]) == ([2, 3, 12, 12], [7, 3, 12, 12])
    assert two["symbols"][0][1:] == [1, 2, "1 to 9"] and seven["symbols"][0][2] == 7
    flops = [[s["flops"] for s in e["steps"]] for e in (two, seven)]
    assert all(2 * b == 7 * a for a, b in zip(*flops)) and seven["arena"] > two["arena"]
    assert seven["outputs"][0]["shape"] == [7, 10]


def test_what_is_refused(refused, engines, cnn, tmp_path):
    assert "is not a Pelton engine" in refused("view", cnn, "-o", str(tmp_path / "p.html"))
    assert "no such file" in refused("view", str(tmp_path / "none.pelton")).lower()
    cut = tmp_path / "cut.pelton"
    cut.write_bytes(Path(engines["cnn"]).read_bytes()[:-100])
    assert "cut.pelton" in refused("view", str(cut), "-o", str(tmp_path / "c.html"))
    assert "engine itself" in refused("view", engines["cnn"], "-o", engines["cnn"])
    assert "no folder" in refused("view", engines["cnn"], "-o", str(tmp_path / "none" / "p.html"))
    assert "--time" in refused("view", engines["cnn"], "--threads", "2")
    assert "expected 1x3x12x12" in refused("view", engines["cnn"], "--shapes", "x=2x3x12x12", "-o", str(cut) + ".html")
    assert "no input" in refused("view", engines["cnn"], "--shapes", "other=1x3x12x12", "-o", str(tmp_path / "p.html"))
    assert not list(tmp_path.glob("*.html"))


def test_an_installation_without_the_bundle(engines, refused, monkeypatch, tmp_path):
    monkeypatch.setattr("pelton.explorer.page.BUNDLE", tmp_path)
    assert "install pelton again" in refused("view", engines["cnn"], "-o", str(tmp_path / "p.html"))


def test_a_browser_is_asked_to_open_the_page(engines, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("webbrowser.open", lambda uri: asked.append(uri) or True)
    page = tmp_path / "a page.html"
    assert main(["view", engines["cnn"], "-o", str(page), "--open"]) == 0
    assert asked == [page.as_uri()] and str(page) in capsys.readouterr().out
    monkeypatch.setattr("webbrowser.open", lambda uri: False)
    assert main(["view", engines["cnn"], "-o", str(page), "--open"]) == 2
    assert "no browser" in capsys.readouterr().err and page.exists()


def test_layouts_have_the_names_that_arrays_have():
    rng = np.random.default_rng()
    for order, name in (((0, 2, 3, 1), "NHWC"), ((0, 1, 2, 3), "NCHW"), ((0, 1, 3, 2), "NCWH")):
        shape = rng.integers(2, 9, 4)
        lies = np.empty(shape[list(order)], np.float32).transpose(np.argsort(order))
        strides = [s // 4 for s in lies.strides]
        assert layout(lies.shape, strides) == name
        assert layout(lies.shape, [2 * s for s in strides]) == f"{name}, in part"
    assert layout((4, 5), (5, 1)) == "row-major" and layout((4, 5), (1, 4)) == "axes 1 0"
    assert layout((1, 16, 1, 1), (16, 1, 1, 1)) == "NCHW" and layout((), ()) == "row-major"


# --- notebooks


def test_notebooks_show_comparisons():
    off = dict(dtype="f32", error=3e-4, nonfinite=0, largest=2.5, sqnr=71.25, quantized=None)
    output = OutputDifference(EVIL[0], **off, agreement=None)
    step = StepDifference("v", **{**off, "sqnr": None}, step=7, op="conv", tactic="t", layers=(EVIL[3], "next"))
    shown = Comparison((output,), (step,), 0, 2e-3, "fp32")._repr_html_()
    assert "within the tolerance of 0.002" in shown and "3.0e-04" in shown and "71.2" in shown and "<td>7</td>" in shown
    assert "<img" not in shown and "&lt;/script&gt;" in shown and "&amp;amp;" in shown


# --- what the package carries


def test_the_bundle_is_of_these_sources():
    made = hashlib.sha256()
    for path in sorted((EXPLORER / "web").iterdir(), key=lambda p: p.name):
        made.update(path.name.encode() + b"\n" + path.read_bytes())
    text = (EXPLORER / "bundle/explorer.js").read_text()
    assert made.hexdigest() in text[:200], "run `make explorer`: its sources have changed"


def test_libraries_come_with_licences_and_from_no_particular_host():
    lock = (EXPLORER / "web/package-lock.json").read_text()
    assert "resolved" not in lock and "://" not in re.sub(r'"url": "[^"]*"', "", lock)
    licences = (EXPLORER / "bundle/LICENSES.txt").read_text()
    wanted = json.loads((EXPLORER / "web/package.json").read_text())["dependencies"]
    for name, version in wanted.items():
        assert (
            f"{name} {version} (" in licences
            and json.loads(lock)["packages"][f"node_modules/{name}"]["version"] == version
        )
    assert re.search(r'"pelton\.explorer" = \["bundle/\*"\]', (ROOT / "pyproject.toml").read_text())


def test_layers_are_counted_once_everywhere(capsys, tmp_path, cache):
    """Siblings that become one, whose names the program joins, and then cuts apart."""
    nodes = [helper.make_node("Conv", ["x", f"w{i}"], [f"c{i}"], name=f"conv{i}") for i in "ab"]
    nodes += [helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}") for i in "ab"]
    nodes += [helper.make_node("Conv", [f"r{i}", f"v{i}"], [f"y{i}"], name=f"last{i}", pads=[1] * 4) for i in "ab"]
    rng = np.random.default_rng()
    held = {f"w{i}": rng.standard_normal((8, 3, 1, 1), np.float32) for i in "ab"}
    held |= {f"v{i}": rng.standard_normal((5, 8, 3, 3), np.float32) for i in "ab"}
    outputs = {f"y{i}": (1, 5, 9, 9) for i in "ab"}
    (tmp_path / "m.onnx").write_bytes(model(nodes, {"x": (1, 3, 9, 9)}, outputs, held).SerializeToString())
    assert main(["explain", str(tmp_path / "m.onnx")]) == 0
    names = re.findall(r"\[([^\[\]]*\+[^\[\]]*)\]$", capsys.readouterr().out, re.M)
    assert "conva+convb+relua+relub" in names
    engine = str(tmp_path / "m.pelton")
    assert main(["build", str(tmp_path / "m.onnx"), "-o", engine, "--level", "0", "--json", *cache]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 6
    steps = pelton.load(engine).steps
    assert len({layer for s in steps for layer in layers_of(s)}) == 6  # what the page of `pelton view` counts
    assert all(list(s.info["layers"]) == layers_of(s) for s in steps)
