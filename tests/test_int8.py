"""INT8 builds: requirements, refusals, and reversion of layers to FP32."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from models import small_cnn

import pelton
from pelton.cli import main
from pelton.quantize import accuracy_bound, int8, race
from pelton.quantize.constant_answers import CONSTANT
from pelton.quantize.accuracy_bound import AccuracyBound, outputs_of_scores
from pelton.ir.text import parse
from pelton.metrics import sqnr


@pytest.fixture(scope="module")
def source():
    return small_cnn(size=12).SerializeToString()


@pytest.fixture(scope="module")
def data(source):
    (port,) = pelton.build(source, level=0).inputs
    return {port.name: np.random.default_rng().standard_normal((12, *port.shape[1:])).astype(np.float32)}


LAYERS = 7  # of the network that can be in INT8
PLAIN = {"weight_equalization": False, "bias_correction": False}


def build(source: bytes, data, **options):
    given = {"level": 0, "precision": "int8", "calibration": data, "max_drop": 0.5, **PLAIN}
    return pelton.build(source, **{**given, **options})


def test_layers_are_in_integers_and_outputs_close(source, data):
    engine, reference = build(source, data), pelton.build(source, level=0)
    report = engine.meta["int8"]
    assert {layer["precision"] for layer in report["layers"]} == {"int8"} and report["macs"] == 1
    assert 0 < report["bytes"] < 1
    assert any("int8" in step.info["tactic"] for step in engine.steps)
    feed = {name: a[:1] for name, a in data.items()}
    want, found = reference.run(feed), engine.run(feed)
    assert all(20 < sqnr(want[name], found[name]) < 80 for name in want)


def test_what_is_reported_is_of_data_that_was_kept_aside(source, data):
    report = build(source, data).meta["int8"]
    assert report["held_out"] == 2 and report["accuracy"]["sqnr_db"] > 20


def in_integers(engine: pelton.Engine) -> int:
    return sum("int8" in step.info["tactic"] for step in engine.steps)


def test_layers_go_back_until_the_accuracy_holds(source, data):
    """A metric that any integers hurt: no layer is left."""
    exact = build(source, data, metric=lambda engine: -in_integers(engine), max_drop=0)
    assert {layer["precision"] for layer in exact.meta["int8"]["layers"]} == {"fp32"} and not in_integers(exact)
    assert all("too much of the accuracy" in layer["reason"] for layer in exact.meta["int8"]["layers"])
    feed = {name: a[:1] for name, a in data.items()}
    want, found = pelton.build(source, level=0).run(feed), exact.run(feed)
    for name in want:
        np.testing.assert_array_equal(want[name], found[name])


def test_the_most_harmful_layers_go_back_first(source, data):
    counts = []

    def metric(engine: pelton.Engine) -> float:
        if not engine.name.endswith(CONSTANT):
            counts.append(in_integers(engine))
        return -float(in_integers(engine))

    layers = build(source, data, metric=metric, max_drop=2).meta["int8"]["layers"]
    back = [layer for layer in layers if layer["precision"] == "fp32"]
    assert counts[:2] == [0, len(layers)] and counts[-1] == len(layers) - len(back) == 2
    without = build(source, data, precision_of={layer["layer"]: "fp32" for layer in back}, max_drop=1)
    assert without.meta["int8"]["accuracy"]["sqnr_db"] > build(source, data).meta["int8"]["accuracy"]["sqnr_db"]


def slower(monkeypatch, count: int) -> None:
    """Makes the first layers slower in integers by the clock."""

    def choose(choices, *engines):
        return (*(choice.reverted("slower in integers") for choice in choices[:count]), *choices[count:])

    monkeypatch.setattr(int8, "choose_by_time", choose)


def all_or_nothing(engine: pelton.Engine) -> float:
    """A metric that is worse the fewer layers are in integers, down to one: it takes all of them or none."""
    return float(in_integers(engine) in (0, LAYERS))


def test_what_is_given_out_is_judged_and_layers_go_back_until_it_holds(source, data, monkeypatch, caplog):
    """Layers that went back because of their times change what the others cost."""
    whole = build(source, data, metric=all_or_nothing, max_drop=0)
    assert in_integers(whole) == len(whole.meta["int8"]["layers"]) == LAYERS
    slower(monkeypatch, 1)
    for precision, rest in (("int8", "fp32"), ("best", "fp16")):
        caplog.clear()
        engine = build(source, data, metric=all_or_nothing, max_drop=0, precision=precision)
        assert not in_integers(engine) and not engine.meta["int8"]["accuracy"]
        assert {layer["precision"] for layer in engine.meta["int8"]["layers"]} == {rest}
        assert "no layer is in INT8: the accuracy would drop by more than max_drop 0" in caplog.text
    assert engine.meta["precision"] == "fp16"


def test_an_engine_that_holds_is_judged_once(source, data, monkeypatch):
    """A metric that holds: one call for each build, of what is reported."""
    seen = []
    slower(monkeypatch, 1)

    def metric(engine: pelton.Engine) -> float:
        if not engine.name.endswith(CONSTANT):
            seen.append(in_integers(engine))
        return 0.0

    engine = build(source, data, metric=metric, max_drop=0)
    assert (
        seen == [0, LAYERS, LAYERS - 1]
        and in_integers(engine) == LAYERS - 1
        and engine.meta["int8"]["accuracy"]["drop"] == 0
    )


def test_quick_builds_that_promise_too_much_do_not_go_on(source, data, monkeypatch):
    """Where the bound holds for quick builds alone, twice as many layers go back each time."""
    real, judged = int8._measured, []

    def measure(compiler, bound, candidate, engine):
        judged.append(in_integers(engine))
        candidate = real(compiler, bound, candidate, engine)
        return replace(candidate, accuracy=replace(candidate.accuracy, drop=1.0))

    monkeypatch.setattr(int8, "_measured", measure)
    assert not in_integers(build(source, data)) and judged == [LAYERS, LAYERS - 1, LAYERS - 3]


def test_layers_that_were_asked_for_stay_but_not_in_the_best_engine(source, data, caplog):
    harmed = {"metric": lambda engine: -in_integers(engine), "max_drop": 0, "precision_of": {"*": "int8"}}
    assert in_integers(build(source, data, **harmed)) == LAYERS
    assert "layers that precision_of sets to INT8 lose more accuracy than max_drop 0 allows" in caplog.text
    best = build(source, data, precision="best", **harmed)
    assert not in_integers(best) and best.meta["precision"] == "fp16"


@pytest.mark.parametrize("integers, precision", [(True, "int8"), (False, "fp32")])
def test_halves_that_break_the_bound_are_not_in_the_best(source, data, caplog, integers, precision):
    def metric(engine: pelton.Engine) -> float:
        return float(engine.meta["precision"] == "fp32" and (integers or not in_integers(engine)))

    engine = build(source, data, precision="best", metric=metric, max_drop=0)
    assert engine.meta["precision"] == precision and engine.meta["int8"]["rest"] == "fp32"
    assert bool(in_integers(engine)) == integers
    assert "FP16 costs 1 of the accuracy, more than max_drop 0 allows: FP32 is taken" in caplog.text


def test_data_that_no_layer_needs_is_said_to_be_unread(source, data, caplog):
    assert not in_integers(build(source, data, precision_of={"*": "fp32"}))
    assert "the calibration data was not read" in caplog.text


def test_precision_of_layers(source, data):
    name = build(source, data).meta["int8"]["layers"][0]["layer"]
    layers = build(source, data, precision_of={name: "fp32"}).meta["int8"]["layers"]
    assert layers[0]["precision"] == "fp32" and layers[0]["reason"] == "as asked for"
    assert all(layer["precision"] == "int8" for layer in layers[1:])
    with pytest.raises(pelton.InputError, match="precision_of matches no layer that can use INT8: 'nowhere.*'"):
        build(source, data, precision_of={"nowhere.*": "fp32"})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"calibration": None}, "precision 'int8' needs calibration="),
        ({"bias_correction": 3}, "bias_correction is True, False, or None to let the data decide, got 3"),
        ({"precision": "fp32"}, "calibration is of use for precision 'int8' or 'best' alone"),
        ({"precision_of": {"x": "fp64"}}, "precision_of maps patterns of layer names to 'fp32' or 'int8'"),
        ({"max_drop": -1}, "max_drop is a number from 0 on"),
        ({"max_drop": float("nan")}, "max_drop is a number from 0 on"),
        ({"metric": 3}, "metric must be a function"),
        ({"save_tactics": "t.json"}, "leave out save_tactics= and load_tactics="),
        ({"precision": "best", "calibration": None, "metric": len}, "calibrated 'best' alone, got precision 'best'"),
        ({"precision": "best", "precision_of": {"x": "fp16"}}, "precision_of maps patterns of layer names to 'fp32'"),
        ({"strict": True}, "strict keeps the model's arithmetic"),
    ],
)
def test_options_that_make_no_sense(source, data, options, message):
    with pytest.raises(pelton.InputError, match=message):
        build(source, data, **options)


@pytest.mark.parametrize(
    "metric, message", [(lambda e: 1 / 0, "ZeroDivisionError"), (lambda e: float("nan"), "returned nan")]
)
def test_metrics_that_fail(source, data, metric, message):
    with pytest.raises(pelton.BuildError, match=message):
        build(source, data, metric=metric)


def engine(**times: float) -> SimpleNamespace:
    """An engine of steps, each of the layers in its name, joined by &, with their times in µs."""
    steps = [
        SimpleNamespace(info={"layers": name.split("&"), "times_ns": {"a": 2000 * t, "b": 1000 * t}})
        for name, t in times.items()
    ]
    return SimpleNamespace(steps=steps)


def choice(name: str, **more) -> int8.LayerPrecision:
    return int8.LayerPrecision(SimpleNamespace(name=name, names=(name,), macs=1), **more)


def test_what_is_slower_in_integers_goes_back():
    choices = [choice("a"), choice("b"), choice("c"), choice("d+e"), choice("f", fixed=True)]
    fp32 = engine(**{"a": 10, "b&c": 10, "d": 3, "f": 1})
    quantized = engine(**{"a": 11, "b": 4, "c": 5, "d+e": 2, "f": 2})
    choices = int8.choose_by_time(choices, fp32, quantized)
    assert [c.precision for c in choices] == ["fp32", "int8", "int8", "int8", "int8"]
    assert choices[0].reason == "slower in integers: 11 µs, 10 µs without"
    assert choices[1].times == {"fp32": 10, "int8": 9}  # what one step does together is judged together


def test_steps_that_were_not_timed_decide_nothing():
    untimed = SimpleNamespace(steps=[SimpleNamespace(info={"layers": ["a"], "times_ns": {}})])
    choices = (choice("a"),)
    assert int8.choose_by_time(choices, engine(a=1), untimed) == choices


def test_an_engine_that_is_slower_as_a_whole_is_not_taken(source, data, monkeypatch):
    monkeypatch.setattr(race, "race", lambda *a: 1.25)
    engine = build(source, data, level=1)
    assert not any("int8" in step.info["tactic"] for step in engine.steps)
    assert all(layer["precision"] == "fp32" for layer in engine.meta["int8"]["layers"])


def test_drops_without_a_metric():
    """Of scores, the share of other answers; of other outputs, noise by signal."""

    class Fake:
        def __init__(self, scores, image):
            self.outputs = {"scores": np.float32(scores), "image": np.float32(image)}

        def run(self, feed):
            return self.outputs

    bound = AccuracyBound(Fake([[1, 2], [2, 1]], [[[1, 2]]]), [{}], 0.3, scores={"scores"})
    same = bound.measure(Fake([[1, 3], [3, 1]], [[[1, 2]]]))
    assert same.drop == 0 and same.agreement == 1 and bound.holds(same)
    other = bound.measure(Fake([[1, 3], [1, 3]], [[[1, 2]]]))
    assert other.drop == 0.5 and other.agreement == 0.5 and not bound.holds(other)
    exactly = AccuracyBound(Fake([[1, 2]] * 100, [[[1, 2]]]), [{}], 0.01, scores={"scores"})
    assert exactly.holds(exactly.measure(Fake([[1, 2]] * 99 + [[2, 1]], [[[1, 2]]])))
    noisy = bound.measure(Fake([[1, 2], [2, 1]], [[[2, 2]]]))
    assert noisy.drop == pytest.approx(0.2) and noisy.sqnr == pytest.approx(10 * np.log10(5))


def test_what_classifies():
    """Logits and probabilities do; what is normalized, of one number, a picture or a product of data does not."""
    graph = parse("""graph main(%x: f32[2, 8]) {
      %w = constant f32[8, 3]
      %c = constant f32[8, 1]
      %b = constant f32[3]
      %m = matmul(%x, %w)
      %logits = add(%b, %m)
      %shares = softmax(%x) {axis=1}
      %s = mul(%x, %x)
      %n = reduce_sum(%s) {axes=(1,)}
      %unit = div(%x, %n)
      %one = matmul(%x, %c)
      %t = transpose(%x) {perm=(1, 0)}
      %pairs = matmul(%x, %t)
      %picture = reshape(%logits) {shape=(2, 3, 1)}
      return %logits, %shares, %unit, %one, %pairs, %picture, %x }""")
    assert outputs_of_scores(graph) == {"logits", "shares"}


def test_outputs_that_are_too_large_to_keep_are_computed_again(source, data, monkeypatch):
    engine, feeds = pelton.build(source, level=0), [{name: a[i : i + 1] for name, a in data.items()} for i in range(3)]
    other = build(source, data)
    whole = AccuracyBound(engine, feeds, 0.1)
    monkeypatch.setattr(accuracy_bound, "KEPT", whole.kept[0][engine.outputs[0].name].nbytes)
    less = AccuracyBound(engine, feeds, 0.1)
    assert (len(whole.kept), len(less.kept)) == (3, 1)
    assert less.measure(other) == whole.measure(other) and less.measure(other).sqnr < 80


def test_refinements_are_used_where_they_help_and_said(source, data):
    """Of channels with ranges far apart: equalized, outputs have less noise."""
    found = build(source, data, weight_equalization=None, bias_correction=None).meta["int8"]
    assert [(t["weight_equalization"], t["bias_correction"]) for t in found["tried"][:2]] == [(0, 0), (0, 1)]
    best = max(found["tried"], key=lambda tried: tried["sqnr_db"])
    assert all(found[name] == best[name] for name in PLAIN)
    assert found["accuracy"]["sqnr_db"] == pytest.approx(best["sqnr_db"], abs=0.1)
    for options in ({"weight_equalization": True}, {"bias_correction": True}, {}):
        (only,) = build(source, data, **options).meta["int8"]["tried"]
        assert {name: only[name] for name in PLAIN} == {**PLAIN, **options}


def test_data_that_is_not_kept_aside_decides_nothing(source, data):
    few = {name: a[:3] for name, a in data.items()}
    (only,) = build(source, few, weight_equalization=None, bias_correction=None).meta["int8"]["tried"]
    assert {name: only[name] for name in PLAIN} == PLAIN
    assert build(source, few, bias_correction=True).meta["int8"]["bias_correction"]


def test_refinements_need_inputs(source, data, tmp_path):
    build(source, data, save_calibration=tmp_path / "table", weight_equalization=True)
    assert "equalized" not in (tmp_path / "table").read_text()
    with pytest.raises(pelton.InputError, match="bias_correction needs inputs to calibrate with"):
        build(source, tmp_path / "table", bias_correction=True)


def test_command(source, data, tmp_path, capsys):
    (tmp_path / "m.onnx").write_bytes(source)
    np.savez(tmp_path / "data.npz", **data)
    made = str(tmp_path / "m.pelton")
    common = ["--level", "0", "--cache-dir", str(tmp_path / "cache")]
    given = ["--precision", "int8", "--calibration", str(tmp_path / "data.npz"), "--max-drop", "0.5"]
    assert main(["build", str(tmp_path / "m.onnx"), "-o", made, *common, *given]) == 0
    shown = capsys.readouterr().out
    assert "100.0% of the multiplications, " in shown and "of the bytes between steps are integers, SQNR" in shown
    table = tmp_path / "table"
    more = ["--calibrator", "minmax", "--save-calibration", str(table), "-q"]
    assert main(["build", str(tmp_path / "m.onnx"), "-o", made, *common, *given, *more]) == 0
    assert table.read_text().startswith("TRT-") and "MinMaxCalibration\n" in table.read_text()
    again = str(tmp_path / "again.pelton")
    given[3] = str(table)
    assert main(["build", str(tmp_path / "m.onnx"), "-o", again, *common, *given, "-q"]) == 0
    feed = {name: a[:1] for name, a in data.items()}
    for name, array in pelton.load(made).run(feed).items():  # a table has no smallest values
        assert sqnr(array, pelton.load(again).run(feed)[name]) > 20
    capsys.readouterr()
    assert main(["inspect", made]) == 0
    shown = capsys.readouterr().out
    assert "layers of the INT8 build:" in shown and "in integers" in shown
    assert main(["inspect", made, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["int8"]["held_out"] == 2


@pytest.mark.parametrize("command", ["explain", "check"])
def test_what_shows_one_program_refuses(command, source, data, tmp_path, capsys):
    (tmp_path / "m.onnx").write_bytes(source)
    np.savez(tmp_path / "data.npz", **data)
    given = ["--precision", "int8"]
    given += ["--calibration", str(tmp_path / "data.npz")] if command == "explain" else []
    assert main([command, str(tmp_path / "m.onnx"), *given]) == 2
    assert "int8" in capsys.readouterr().err


def test_the_best_precision_of_a_cpu(source, data):
    engine = build(source, data, precision="best")
    assert engine.meta["precision"] == "int8" and engine.meta["int8"]["rest"] == "fp16"
    assert in_integers(engine) and list(engine.meta["best"]) == ["fp16", "int8"]
    halves = pelton.build(source, level=0, precision="best")
    assert halves.meta["precision"] == "fp16" and not in_integers(halves) and "int8" not in halves.meta
    assert build(source, data, precision="best", precision_of={"*": "fp32"}).meta["precision"] == "fp16"


def test_the_best_precision_is_shown(source, tmp_path, capsys):
    (tmp_path / "m.onnx").write_bytes(source)
    main(["build", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.pelton"), "--level", "0", "--precision", "best"])
    assert "fp16 (fp16: weights of kernels that were timed faster so)" in capsys.readouterr().out
