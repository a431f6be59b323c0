"""Profiles of `pelton advise --measure`: a fit that finds the efficiencies that made its times."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

from advise_bench import ASSUMED, PROFILE, planned, small

import pelton
from pelton.advise import measure, networks, predict, profile, work
from pelton.advise.profile import LaunchCosts, TemplateFit, either_of
from pelton.advise.work import ModelWork, StepWork
from pelton.targets import ISAS
from pelton.tuning import peak, roof


def test_a_fit_finds_the_efficiencies_that_made_its_times():
    rng = np.random.default_rng()
    true = replace(PROFILE, costs=LaunchCosts(20.0, 1.0, 0.25, 50.0))
    steps = [StepWork("", "conv", "fp32", 10 ** rng.uniform(7, 9), 1e4, 1e4, 1, (f"c{i}",)) for i in range(20)]
    steps += [StepWork("", "move", "fp32", 0, 0, 10 ** rng.uniform(6, 8), 1, (f"m{i}",)) for i in range(20)]
    steps += [StepWork("", "tiny", "fp32", 10, 0, 64, i % 2, (f"t{i}",)) for i in range(20)]
    measured = []
    for k in range(4):
        w = ModelWork(f"n{k}", 1, "fp32", tuple(steps[k::4]), 10000, 1000, 0)
        d = measure.device_of(true)
        times = {i: predict.predict_step(s, d, w.memory).seconds for i, s in enumerate(w.steps)}
        times[0] *= 3  # a layer that something disturbed
        measured.append(measure.MeasuredNetwork(w.name, w, times, predict.predict(w, d).seconds))
    fitted = measure.fit(replace(PROFILE, templates=ASSUMED.templates, costs=ASSUMED.costs), measured)
    assert fitted.templates["conv"].compute == pytest.approx(0.8, rel=0.02)
    assert fitted.templates["move"].bandwidth == pytest.approx(0.25, rel=0.02)
    assert fitted.costs.step_us == pytest.approx(1.0, rel=0.1) and fitted.costs.brief_us == pytest.approx(0.25, rel=0.1)
    assert fitted.templates["conv"].layers == fitted.templates["move"].layers == 20
    assert fitted.fit("unheard of").template == "*" and len(fitted.networks) == 4


def test_steps_that_tuning_joined_are_left_out():
    plan = [StepWork("", "conv", "fp32", 1, 0, 0, 1, layers) for layers in (("a",), ("b",), ("c",))]
    timed = [(("a",), 1.0), (("b", "c"), 5.0), (("a",), 0.5)]
    assert measure.match(plan, timed) == {0: 1.5}, "with the copy of its operand"


def test_steps_with_the_same_layers_are_matched_in_order():
    plan = [StepWork("", template, "fp32", 1, 0, 0, 1, of) for template, of in (("gemm", ("a",)), ("gru", ("a",)))]
    plan += [StepWork("", "transpose", "fp32", 0, 0, 1, 1), StepWork("", "transpose", "fp32", 0, 0, 2, 1)]
    timed = [((), 1.0), (("a",), 2.0), (("a",), 3.0), ((), 4.0)]
    assert measure.match(plan, timed) == {0: 2.0, 1: 3.0, 2: 1.0, 3: 4.0}
    assert measure.match(plan, timed[1:]) == {0: 2.0, 1: 3.0}, "which copy is missing is unknown"


def test_layers_that_tuning_may_run_by_winograd_have_figures_of_their_own():
    (w,) = planned(small(), 4)
    conv = max(w.steps, key=lambda s: s.direct)
    other = replace(conv, template="conv", rival="winograd", operations=conv.direct)
    assert {conv.template, other.rival} == {"winograd"} and not conv.rival
    fits = {"conv": TemplateFit("conv", 0.8, 0.5, 0.2), "*": PROFILE.templates["*"]}
    alone = replace(PROFILE, templates=fits)
    both = replace(alone, templates={**fits, either_of("conv", "winograd"): TemplateFit("x", 1.6, 0.5, 0.2)})
    for figures, factor in ((alone, 0.8), (both, 1.6)):
        p = predict.predict_step(other, measure.device_of(figures), w.memory)
        assert p.compute == pytest.approx(other.operations / (0.2e12 * factor))
    assert predict.predict_step(replace(other, rival=""), measure.device_of(both), 0).compute > p.compute


def test_the_untimed_plan_says_where_winograd_is_possible():
    wide = networks.network("residual, 64 wide")
    (w,) = map(work.plan_work, work.import_batches(wide))
    assert {s.rival for s in w.steps if s.template == "conv"} == {"winograd"}
    assert not any(s.rival for s in w.steps if s.template in ("winograd", "gemm", "reduce"))


def test_the_higher_of_two_roofs_counts():
    slow = replace(
        PROFILE,
        peaks={"fp32": 0.1, "int8": 0.9},
        levels=tuple(replace(level, gbs=level.gbs * f) for level, f in zip(PROFILE.levels, (2, 0.5))),
    )
    both = measure.higher(PROFILE, slow)
    assert both.peaks == {"fp32": 0.2, "int8": 0.9} and [level.gbs for level in both.levels] == [200.0, 20.0]


def test_the_batch_is_the_models_own():
    net = pelton.Network("rows")
    net.output(net.linear(net.input("x", "f32[48, 8]"), np.ones((4, 8), np.float32)), "y")
    (own,), (half,) = planned(net), planned(net, 24)
    assert (own.batch, half.batch) == (48, 24) and own.operations == 2 * half.operations and not own.assumptions
    assert [w.batch for w in planned(small())] == [1]


def test_the_networks_have_many_templates_and_no_published_name():
    found = set[str]()
    for name in networks.NETWORKS:
        (w,) = map(work.plan_work, work.import_batches(networks.network(name)))
        found |= {s.template for s in w.steps}
        assert w.operations > 0 and not any(s.template == "host" for s in w.steps)
    assert found >= {"conv", "winograd", "depthwise", "gemm", "attention", "norm", "pool", "softmax", "gru"}
    published = ("resnet", "googlenet", "mobilenet", "yolo", "bert", "vgg", "densenet", "alexnet", "squeezenet")
    assert not any(word in name for word in published for name in networks.NETWORKS)


def test_a_machine_is_measured(monkeypatch, tmp_path, kernel_cache):
    monkeypatch.setattr(peak, "ROUNDS", 5)
    monkeypatch.setattr(roof, "ROUNDS", 1)
    monkeypatch.setattr(roof, "READ", 1 << 20)
    monkeypatch.setattr(measure, "RUNS", 2)
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    heard = []
    found = measure.measure_machine(["small steps"], heard.append, level=0)
    profile.save_profile(found, tmp_path / "d.toml")
    again = profile.load_profile(tmp_path / "d.toml")
    assert (
        heard == ["the roof", "small steps", "all of them in turns, and the roof again"]
        and again.fitted
        and again.has_roof
    )
    assert again.peaks.keys() == {"fp32", "int8"} and again.levels[-1].level == "memory"
    assert again.networks[0].measured_ms > 0 and again.machine["isa"] in ISAS
