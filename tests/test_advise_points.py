"""Predictions for GPUs beside published figures: the points and their halves, the fit that finds the parameters that
made its times, and the committed page, whose predictions are computed again from the committed profile."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

from benchmarks.advise import fit, networks, page, points
from pelton.advise import profile
from pelton.advise.catalog import load
from pelton.advise.predict import predict
from pelton.advise.work import ModelWork, import_batches, plan_work, scaled

PAGE = Path(points.__file__).with_name("gpus.md")
POINTS = points.read_points()
CATALOG = load()
FITTED = profile.load_profile(profile.FOLDER / "fitted_nvidia.toml")
SHORT = 3  # layers of planned encoders; all of an encoder have the same steps
LIMIT = 0.35  # of the mean error of points that are held out


def short_work(model: str, sequence: int, precision: str, layers: int) -> ModelWork:
    """Returns the work of an encoder from a plan of SHORT layers, the steps of one of which count several times."""
    few, more = (
        plan_work(import_batches(networks.bert(model, sequence, 8, n), [8])[0], precision, points.TARGET)
        for n in (SHORT - 1, SHORT)
    )
    period = len(more.steps) - len(few.steps)
    start = (len(more.steps) - period) // 2
    return replace(more, steps=more.steps + (layers - SHORT) * more.steps[start : start + period])


@pytest.fixture(scope="module")
def works():
    """Shape of a point → its work."""
    made = {}
    for shape in dict.fromkeys(p.shape for p in POINTS):
        if shape[1] is None:
            made |= points.plan_works([p for p in POINTS if p.shape == shape])
        else:
            made[shape] = short_work(*shape, networks.ENCODERS[shape[0]][0])
    return made


def test_whole_devices_are_held_out():
    devices = sorted({p.device for p in POINTS})
    assert {p.device for p in POINTS if p.held_out} == set(devices[1::2]), "every other device by name"
    assert len(POINTS) >= 25 and len({p.name for p in POINTS}) == len(POINTS)
    assert 2 * sum(p.held_out for p in POINTS) >= len(POINTS)
    assert {p.model for p in POINTS if p.held_out} == {p.model for p in POINTS if not p.held_out}


def test_every_point_has_its_source():
    for p in POINTS:
        assert re.fullmatch(r"https://github\.com/(mlcommons|NVIDIA)/\S+/blob/[0-9a-f]{40}/\S+", p.source), p.name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", p.date) and p.throughput > 0 and p.batch >= 1 <= p.count
        assert p.unit in ("ms", "inputs/s") and (p.unit == "inputs/s") == (p.scenario == "Offline")
        assert FITTED.holds_for(CATALOG.device(p.device)), p.device


def test_a_part_of_an_encoder_has_the_work_of_the_whole():
    (size,) = import_batches(networks.bert("bert_base", 128, 8), [8])
    whole = plan_work(size, "int8", points.TARGET)
    device = points.rated("L4", CATALOG, FITTED)
    again = predict(short_work("bert_base", 128, "int8", 12), device).seconds
    assert predict(whole, device).seconds == pytest.approx(again, rel=1e-9)


def test_the_page_has_every_point_as_it_is_predicted(works):
    results = points.evaluate(POINTS, works, FITTED, CATALOG)
    text = PAGE.read_text()
    rows = {}
    for line in text.splitlines():
        if match := re.match(r"\| (.*?) \|.*\| (\S+) \| (\S+) \| (\S+)% \| (fit|held out) \| \[(.*?)\]\((\S+)\)", line):
            device = re.sub(r" \(\d+\)$", "", match[1])
            rows[f"{device}, {match[6]}"] = [*map(float, match.groups()[1:4]), match[5], match[7]]
    assert rows.keys() == {p.name for p in POINTS}, "none is left out"
    for r in results:
        published, predicted, error, half, source = rows[r.point.name]
        assert published == pytest.approx(r.point.throughput, rel=1e-3), r.point.name
        assert predicted == pytest.approx(r.predicted, rel=1e-3), r.point.name
        assert error == pytest.approx(100 * r.error, abs=0.6) and source == r.point.source
        assert half == page.half_of(r)
    held = [r for r in results if r.point.held_out]
    assert points.mean_error(held) <= LIMIT and f"| {points.mean_error(held):.1%} |" in text
    assert f"mean error {points.mean_error(held):.0%} on {len(held)} figures of" in FITTED.note
    inside = sum(r.inside for r in results) / len(results)
    assert inside >= 0.8, "intervals hold what they should"


def test_the_committed_profile_is_that_of_the_fit(works):
    again = fit.fit_profile(POINTS, works, CATALOG)
    for template, row in FITTED.templates.items():
        assert again.templates[template].compute == pytest.approx(row.compute, rel=1e-3), template
        assert again.templates[template].bandwidth == pytest.approx(row.bandwidth, rel=1e-3), template
    assert again.costs.step_us == pytest.approx(FITTED.costs.step_us, rel=1e-3)
    assert again.note == FITTED.note and again.architectures == FITTED.architectures


def test_a_fit_finds_the_parameters_that_made_its_times(works):
    true = np.array([0.7, 0.4, 0.3, 0.8, 0.6, 5.0, 20.0]) * np.random.default_rng().uniform(0.9, 1.1, 7)
    made = fit.profile_of(true)
    fitted = [p for p in POINTS if not p.held_out]
    times = points.evaluate(fitted, works, made, CATALOG)
    exact = [replace(p, unit="inputs/s", value=r.predicted * p.count) for p, r in zip(fitted, times)]
    again = fit.profile_of(fit.fit_values(exact, works, CATALOG))
    found = points.evaluate(exact, works, again, CATALOG)
    guess = points.evaluate(exact, works, fit.profile_of([*fit.STARTS.values()]), CATALOG)
    assert points.mean_error(found) < 0.05 < points.mean_error(guess)
    assert again.fit("gemm").compute == pytest.approx(made.fit("gemm").compute, rel=0.15)


def test_devices_of_other_architectures_keep_the_assumptions():
    for name, fitted in (
        ("L4", True),
        ("RTX 4090", True),
        ("RTX 5090", False),
        ("Tesla P4", False),
        ("Arc A310", False),
    ):
        assert profile.published(CATALOG.device(name)).fitted == fitted, name
    assert not profile.published(CATALOG.device("Jetson AGX Orin")).fitted


def test_steps_between_products_in_int8_are_fp16_on_gpus():
    (size,) = import_batches(networks.bert("bert_base", 128, 1, 1), [1])
    work = plan_work(size, "int8", points.TARGET)
    assert {s.precision for s in work.steps if s.template.startswith("gemm")} == {"int8"}
    assert {s.precision for s in work.steps if s.template == "attention"} == {"fp16"}
    assert scaled(work, 4).operations == pytest.approx(4 * work.operations)
