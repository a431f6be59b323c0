"""`pelton advise`: the work of plans, predictions against figures by hand, profiles that round-trip, a fit that finds
the efficiencies that made its times, and every wrong input as one sentence."""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

from advise_bench import ASSUMED, PROFILE, device, planned, small

import pelton
from pelton.advise import devices, predict, profile, work
from pelton.advise.catalog import Price, load
from pelton.advise.predict import RunningCosts, ServiceLimits
from pelton.advise.work import ModelWork, StepWork
from pelton.backends import cpu
from pelton.cli import main
from pelton.errors import InputError
from pelton.system.share import default_threads

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


@pytest.fixture
def onnx_model(tmp_path):
    path = tmp_path / "small.onnx"
    pelton.export_onnx(small(), path)
    return str(path)


@pytest.fixture
def bench_profile(tmp_path):
    known, threads = cpu.describe(), default_threads()
    machine = {**PROFILE.machine, "cpu": known["model"], "isa": known["isa"], "threads": threads}
    profile.save_profile(replace(PROFILE, machine=machine), tmp_path / "bench.toml")
    return str(tmp_path / "bench.toml")


# --- work


def test_work_counts_the_algorithm_that_would_run():
    one, four = planned(small(), 1, 4)
    for batch, found in ((1, one), (4, four)):
        conv = next(s for s in found.steps if s.product and s.operations > 1e5)
        direct = batch * 2 * 32 * 32 * 32 * 32 * 9
        assert conv.template == "winograd" and conv.product
        # F(2×2), F(4×4), F(6×6); bias and ReLU add a percent
        assert any(conv.operations / direct == pytest.approx(r, rel=0.02) for r in (16 / 36, 36 / 144, 64 / 324))
        assert conv.activations >= batch * 2 * 32**3 * 4 and conv.weights >= 32 * 32 * 9 * 4
    assert four.memory > one.memory > 32**3 * 4 and one.kept == 0 and not one.assumptions


def test_a_fixed_batch_is_scaled_and_says_so():
    (fixed,), (four,) = planned(small("1"), 1), planned(small("1"), 4)
    assert not fixed.assumptions and "fixed at 1" in four.assumptions[0]
    assert four.operations == 4 * fixed.operations and four.weights == fixed.weights
    assert four.steps[0].activations == 4 * fixed.steps[0].activations


def test_open_sizes_are_assumptions(tmp_path, caplog):
    net = pelton.Network("open")
    net.output(net.softmax(net.input("x", "f32[batch, tokens=1..64..512, 8]")), "y")
    pelton.export_onnx(net, tmp_path / "open.onnx")
    (two,) = planned(tmp_path / "open.onnx", 2)
    assert two.assumptions == ("tokens, an open size, is taken as 128; set it with --shapes",) and not caplog.records
    assert two.steps[0].activations == 2 * 2 * 128 * 8 * 4
    (size,) = work.import_batches(tmp_path / "open.onnx", [2], shapes={"tokens": "16"})
    assert work.plan_work(size).steps[0].activations == 2 * 2 * 16 * 8 * 4


def test_int8_quarters_the_bytes_of_products_alone():
    (wide,), (narrow,) = planned(small(), 2), planned(small(), 2, precision="int8")
    for before, after in zip(wide.steps, narrow.steps):
        assert after.activations == before.activations / (4 if before.product else 1)
        assert after.weights == (before.own / 4 if before.product else before.weights)
        assert after.precision == ("int8" if before.product else "fp32")
    assert narrow.weights < wide.weights and "INT8" in narrow.assumptions[-1]
    conv = max(narrow.steps, key=lambda s: s.operations)
    assert conv.template == "conv_int8" and conv.operations >= 2 * 2 * 32 * 32 * 32 * 32 * 9, "no Winograd in INT8"


def test_caches_between_runs_count_as_memory():
    net = pelton.Network("steps")
    before = net.input("past", "f32[1, 4, 64, 8]")
    net.output(before + 1.0, "past.next")
    (size,) = work.import_batches(net, [1])
    states = {"past": ("past.next", None)}
    info = replace(size.imported.info, states=states)
    found = work.plan_work(replace(size, imported=replace(size.imported, info=info)))
    assert found.kept == 4 * 64 * 8 * 4


# --- predictions


def test_a_step_by_hand():
    conv = StepWork("c", "conv", "fp32", 1e9, 4e6, 2e5, 3)
    p = predict.predict_step(conv, device(), 5e6)
    assert p.compute == pytest.approx(1e9 / (0.2e12 * 0.8)) and p.start == pytest.approx(6e-6)
    assert p.memory == pytest.approx((4e6 / 20e9 + 2e5 / 100e9) / 0.5), "weights from memory, activations from L2"
    assert p.bound == "compute" and p.seconds == pytest.approx(p.compute + 6e-6)
    brief = predict.predict_step(replace(conv, template="x", operations=0, launches=0), device(), 1e3)
    assert brief.start == pytest.approx(0.5e-6) and brief.memory == pytest.approx((4e6 + 2e5) / 100e9 / 0.25)
    assert predict.predict_step(replace(conv, template="host"), device(), 1e3).start == pytest.approx(50e-6)
    narrow = predict.predict_step(replace(conv, precision="fp16"), device(), 5e6)
    assert narrow.compute == p.compute, "without a peak of FP16 that of FP32 counts"
    edge = device(peaks={"int8": 4.0})
    assert predict.predict_step(conv, edge, 5e6).compute == 0, "only bytes count"
    with pytest.raises(InputError, match="no source states its peak of fp32"):
        predict.predict_step(replace(conv, product=True), edge, 5e6)


def test_a_run_and_its_interval():
    step = StepWork("c", "conv", "fp32", 1e9, 0, 0)
    w = ModelWork("m", 2, "fp32", (step, step), 1000, 2000, 3000)
    p = predict.predict(w, device())
    assert p.seconds == pytest.approx(2 * (1e9 / 0.16e12 + 2e-6) + 10e-6) and p.throughput == 2 / p.seconds
    share = 2 * p.steps[0].seconds / p.seconds
    assert math.log(p.high / p.seconds) == pytest.approx(1.645 * math.hypot(0.1, 0.2 * share))
    assert p.low * p.high == pytest.approx(p.seconds**2) and sum(p.shares().values()) == pytest.approx(1)
    other = predict.predict(w, device(own=False))
    assert other.high > p.high and other.seconds == p.seconds, "another device than the measured one"
    guess = predict.predict(w, device(profile=ASSUMED, own=False))
    assert guess.high / guess.low > 10 and p.high / p.low < 3
    assert p.fits and predict.predict(w, device(memory_gb=5e-6)).fits is False
    assert (
        "INT8"
        in predict.helps(predict.predict(replace(w, steps=(replace(step, product=True, direct=1e9),)), device()))[0]
    )


def test_costs_by_hand():
    step = StepWork("c", "conv", "fp32", 1e9, 0, 0)
    d = device(power_w=100.0, price=Price(1000.0, "USD", "2026"))
    p = predict.predict(ModelWork("m", 1, "fp32", (step,), 0, 0, 0), d)
    energy, hardware = RunningCosts(0.5, 2.0, 0.25).of_million(p)
    assert energy == pytest.approx(1e6 * p.seconds * 0.1 / 3600 * 0.5)
    assert hardware == pytest.approx(1000 * 1e6 * p.seconds / (2 * 365.25 * 86400 * 0.25))
    assert RunningCosts().of_million(replace(p, device=device())) == (None, None)


def test_limits():
    p = predict.predict(ModelWork("m", 1, "fp32", (StepWork("c", "conv", "fp32", 1e9, 0, 0),), 0, 0, 0), device())
    assert ServiceLimits(latency=1.0).enough(p) and not ServiceLimits().enough(p)
    assert not ServiceLimits(latency=p.seconds).enough(p), "the interval reaches beyond it"
    assert ServiceLimits(qps=10 / p.seconds).machines(p) == 10 and not ServiceLimits(qps=10 / p.seconds).enough(p)
    with pytest.raises(InputError, match="contradict each other"):
        ServiceLimits(latency=0.01, qps=10).check([32, 64])
    ServiceLimits(latency=0.01, qps=10).check([1, 64])


# --- profiles


def test_profiles_round_trip(tmp_path):
    profile.save_profile(PROFILE, tmp_path / "again.toml")
    again = profile.load_profile(tmp_path / "again.toml")
    assert replace(again, file=PROFILE.file) == PROFILE and again.has_roof and not ASSUMED.has_roof
    assert [profile.assumed(kind).fitted for kind in ("cpu", "gpu", "npu")] == [False] * 3
    assert "assumptions" in profile.assumed("gpu").note


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("run_us = 10", "run_us = nan", "'costs.run_us'.*finite number above 0, got nan"),
        ("step_us = 2", "step_us = -2", "'costs.step_us'.*above 0"),
        ("step_us = 2\n", "", "'costs.step_us'.*absent"),
        ("fp32 = 0.2", "fp32 = inf", "'peaks.fp32'.*finite"),
        ("fp32 = 0.2", "fp31 = 0.2", "'peaks.fp31'.*unknown"),
        ("compute = 0.8", "compute = 80", "conv.*'compute'.*at most 20"),
        ("compute = 0.8", 'compute = "much"', "conv.*'compute'.*expected a number"),
        ('template = "conv"', 'template = "*"', "that of another row"),
        ('template = "*"', 'template = "x"', "holds? for templates without a row|no template"),
        ("bytes = 1048576\n", "", "'bytes'.*every level but memory"),
        ('level = "l2"', 'level = "l9"', "'level'.*one of"),
        ("fitted = true", "fitted = 1", "'fitted'.*true or false"),
        ('kind = "cpu"', 'kind = "toaster"', "'kind'.*one of"),
        ("threads = 2", "threads = 0", "machine.*'threads'"),
        ("measured_ms = 1.5", "measured_ms = 0", "network a.*'measured_ms'"),
        ('date = "2026-11-29"', "colour = 3", "'colour'.*unknown"),
        ('date = "2026-11-29"', "vendor = 3", "'vendor'.*expected a text"),
        ('date = "2026-11-29"', "architectures = 5", "'architectures'.*list of texts"),
        ("[costs]", "[costs", "not a TOML file"),
    ],
)
def test_every_figure_of_a_profile_is_checked(tmp_path, old, new, said):
    text = profile.to_toml(PROFILE)
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=said) as e:
        profile.load_profile(path)
    assert "bad.toml" in str(e.value) and "\n" not in str(e.value)


def test_this_cpu_is_its_profile(monkeypatch, bench_profile):
    catalog = load()
    (own,) = devices.choose([devices.THIS, bench_profile], catalog)[0]
    assert own.own and own.here and own.roof == "measured" and own.name == "test bench"
    monkeypatch.setattr(devices, "default_threads", lambda: 1000)
    monkeypatch.setattr(devices, "peak", lambda isa, threads: (500.0, 40.0))
    first, other = devices.choose([devices.THIS, bench_profile], catalog)[0]
    assert (
        first.own
        and not first.here
        and not other.own
        and other.here
        and other.peaks == {"fp32": 0.5}
        and other.profile.name == "test bench"
    )
    assert predict.spread((), 1.0, other) > predict.spread((), 1.0, own)
    (alone,) = devices.choose([devices.THIS], catalog)[0]
    assert alone.profile.fitted and not alone.own and alone.levels[-1].gbs == 40.0
    many, _ = devices.choose([], catalog)
    assert many[0].name.startswith(devices.THIS) and len(many) > 20 and all(d.price for d in many[1:])


# --- the command


def test_the_answer_has_a_row_for_each_device_and_batch(capsys, onnx_model, bench_profile, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    page, plot = tmp_path / "page.html", tmp_path / "plot.svg"
    flags = ["--batch", "1,32", "--devices", f"RTX 4090,L4,TPU v*,{bench_profile}", "--latency", "1s", "--qps", "1"]
    flags += ["--budget", "2000", "--html", str(page), "--plot", str(plot), "--json", "--layers", "-q"]
    assert main(["advise", onnx_model, *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    schemas = {name: json.loads((SCHEMAS / name).read_text()) for name in ("advise.json", "common.json")}
    known = referencing.Registry().with_resources(
        (n, referencing.Resource.from_contents(s)) for n, s in schemas.items()
    )
    jsonschema.Draft202012Validator(schemas["advise.json"], registry=known).validate(found)
    rows = {(r["device"], r["batch"]): r for r in found["rows"]}
    assert len(rows) == len(found["rows"]) and {b for _, b in rows} == {1, 32}
    card, own = rows["GeForce RTX 4090", 32], rows["test bench", 1]
    assert card["price"]["kind"] == "quoted" and card["roof"]["kind"] == "quoted" and card["profile"]["fitted"]
    assert any("published figures" in a for a in card["assumptions"]) and not card["profile"]["own"]
    others = [r for r in found["rows"] if r["device_kind"] == "npu"]
    assert others and all("not fitted on this kind of device" in "".join(r["assumptions"]) for r in others)
    assert own["roof"]["kind"] == "measured" and own["profile"]["own"] and own["assumptions"] == []
    for r in found["rows"]:
        low, high = r["interval_ms"]
        assert low < r["latency_ms"] < high and r["kind"] == "predicted" and r["layers"]
        assert r["runs"] == (not r["device"].startswith("Google")) or r["device_kind"] != "npu"
    assert any("CPU that you have is enough" in s for s in found["sentences"])
    svg = page.read_text().partition("<svg")[2].partition("</svg>")[0]
    assert plot.read_text() == f"<svg{svg}</svg>"
    drawn = ElementTree.fromstring(plot.read_text())
    assert sum(e.get("class") == "device" for e in drawn.iter()) == len(found["rows"])


def test_the_table_marks_what_is_measured_predicted_and_quoted(capsys, onnx_model, bench_profile):
    assert main(["advise", onnx_model, "--devices", f"RTX 5090,T4,{bench_profile}", "--layers", "-q"]) == 0
    said = capsys.readouterr().out
    assert "p predicted, q quoted by the maker, m measured here" in said and "latency (p)" in said
    assert "not fitted on this kind of device" in said and "published figures of 9 NVIDIA GPUs" in said
    assert "costs of a million inferences" in said
    assert "winograd" in said or "conv" in said
