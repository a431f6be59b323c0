"""The winning tactic for given times: list order among equals, and the margin required of an inexact one."""

import numpy as np
import pytest
from onnx import helper
from onnx_models import model

import pelton
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import TEMPLATES, Tactic
from pelton.tuning import measure, search
from pelton.tuning.timing_cache import TimingCache
from pelton.tuning.measure import Stopwatch, weight_traffic
from pelton.tuning.search import best_of, worth


def found(*names):
    """Tactics by "template:number", in this order. Of Winograd the number is the size of its tile;
    weights are in half precision unasked."""
    return [
        (
            TEMPLATES[name.partition(":")[0]],
            Tactic(name.partition(":")[0], "isa", (("F", int(name.partition(":")[2])), ("HALF", 1), ("LOSS", 2))),
        )
        for name in names
    ]


def winner(times):
    """The tactic that is chosen for times by "template:number", in the order of the list; None stands for no time."""
    tactics = found(*times)
    names = {c.name: name for name, (_, c) in zip(times, tactics)}
    known = {c.name: ns for (_, c), ns in zip(tactics, times.values()) if ns is not None}
    _, tactic, times = best_of(tactics, known)
    assert times == known
    return names[tactic.name]


@pytest.mark.parametrize(
    "times, wins",
    [
        ({"conv:1": None, "conv:2": None}, "conv:1"),
        ({"conv:1": 100, "conv:2": 99}, "conv:1"),
        ({"conv:1": 100, "conv:2": 97}, "conv:2"),
        ({"winograd:4": 97, "conv:1": 100}, "winograd:4"),
        ({"winograd:4": 99, "conv:1": 100}, "conv:1"),
        ({"winograd:4": 100, "conv:1": 99}, "conv:1"),
        ({"winograd:4": 99, "winograd:2": 97, "conv:1": 100}, "winograd:2"),
        ({"winograd:4": 80, "winograd:2": 79, "conv:1": 100}, "winograd:4"),
        ({"winograd:4": 99, "conv:1": None}, "winograd:4"),
        ({"winograd:4": None, "conv:1": 100}, "conv:1"),
        ({"winograd:4": 80, "winograd:6": 77, "conv:1": 100}, "winograd:4"),
        ({"winograd:4": 80, "winograd:6": 75, "conv:1": 100}, "winograd:6"),
        ({"winograd:4": 99, "winograd:6": 96, "conv:1": 100}, "conv:1"),
        ({"winograd:6": 91, "conv:1": None}, "winograd:6"),
        ({"lstm:1": 100, "lstm_half:1": 91}, "lstm:1"),
        ({"lstm:1": 100, "lstm_half:1": 89}, "lstm_half:1"),
        ({"lstm:1": 100, "lstm:2": 95, "lstm_half:1": 89}, "lstm:2"),
        ({"lstm:1": None, "lstm_half:1": 89}, "lstm_half:1"),
        ({"gru:1": 100, "gru_half:1": 91}, "gru:1"),
        ({"rnn:1": 100, "rnn_half:1": 89}, "rnn_half:1"),
    ],
)
def test_who_wins(times, wins):
    assert winner(times) == wins


def test_margins_are_those_of_inexact_tactics():
    for t in TEMPLATES.values():
        tactics = [
            (t, Tactic(t.name, "isa", (("F", 4), ("N", n), ("HALF", 1), ("LOSS", 2), ("PARTS", 2)))) for n in range(3)
        ]
        times = {c.name: 100 - n for n, (_, c) in enumerate(tactics)}
        assert worth(tactics, times) == tactics and worth(tactics, {}) == tactics
        assert all(0.02 <= t.margin(c) < 1 if not t.is_exact(c) else t.margin(c) == 0 for _, c in tactics)


def lstm(units=16):
    rng = np.random.default_rng(0)
    weights = {k: rng.uniform(-0.2, 0.2, (1, 4 * units, n)) for k, n in (("w", 8), ("r", units))}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "", ""], "lstm", hidden_size=units)
    return model([node], {"x": "f32[5, 1, 8]"}, ["y"], {k: a.astype(np.float32) for k, a in weights.items()})


@pytest.mark.parametrize("half, wins", [(95, "lstm"), (85, "lstm_half")])
def test_engines_take_half_weights_where_they_pay(monkeypatch, tmp_path, half, wins):
    put = TimingCache.put
    price = {"lstm": 100, "lstm_half": half}
    monkeypatch.setattr(
        TimingCache,
        "put",
        lambda self, task, times: put(self, task, {n: price.get(n.partition(":")[0], ns) for n, ns in times.items()}),
    )
    engine = pelton.build(lstm(), level=1, cache_dir=tmp_path)
    assert wins in {s.info["tactic"].partition(":")[0] for s in engine.steps}


def test_tactics_of_one_family_are_timed(tmp_path):
    engine = pelton.build(lstm(64), level=3, strict=True, cache_dir=tmp_path)
    (step,) = (s for s in engine.steps if s.info["tactic"].startswith("lstm:"))
    assert len(step.info["times_ns"]) > 1
    assert step.info["times_ns"][step.info["tactic"]] <= min(step.info["times_ns"].values()) / search.MARGIN


@pytest.mark.parametrize(
    "weights, l3, between",
    [
        (0, 32 << 20, 1 << 17),
        (1 << 20, 32 << 20, 2 << 20),
        ((1 << 20) + 1, 32 << 20, 4 << 20),
        (2 << 20, 32 << 20, 4 << 20),
        ((2 << 20) + 1, 32 << 20, 96 << 20),
        (100 << 20, 300 << 20, 600 << 20),
    ],
)
def test_small_networks_are_tuned_with_weights_that_stay_in_the_caches(weights, l3, between):
    assert weight_traffic(weights, l3) == between


def test_so_many_bytes_of_weights_pass_between_two_uses_of_the_same_ones():
    watch, piece = Stopwatch(1, 1 << 20), 100_000
    places = [watch._weights(piece) for _ in range(40)]
    again = [b - a for a, b in zip(places, places[1:]) if b < a]
    uses = places.index(places[0], 1)
    assert again and (1 << 20) - 2 * piece < uses * piece <= 1 << 20 and max(places) + piece - min(places) <= 1 << 20


def test_small_kernels_end_after_so_many_turns(monkeypatch, tmp_path):
    """All candidates take 1 µs: only the number of turns ends their race, which the time of kernels would not."""
    turns, made = [], []

    class Instant:
        def __init__(self, rows, threads):
            self.rows = rows
            made.append(self)

        def profile(self):
            return [1000] * len(self.rows)

    def race(watch, tasks, programs, loaded, rounds, deadline=None, race=Stopwatch.race):
        made.clear()
        found = race(watch, tasks, programs, loaded, rounds, deadline)
        if len(programs) > 1:
            turns.append(len(made) / len(programs) / rounds)
        return found

    monkeypatch.setattr(measure, "NativeProgram", Instant)
    monkeypatch.setattr(Stopwatch, "race", race)
    pelton.build(lstm(), level=2, cache_dir=tmp_path)
    assert turns and max(turns) == 1 + measure.FINAL_TURNS


def test_ties_are_broken_in_the_order_of_the_library():
    """Importing declares templates: sorted imports would change which of equally fast ones is taken."""
    names = list(TEMPLATES)
    ordered = ["few", "attention_few", "attention", "gemm", "winograd", "depthwise", "conv", "conv_planar", "matmul"]
    assert names[0] == "few" and names[-2:] == ["pointwise", "lookup"]
    assert [n for n in names if n in ordered] == ordered
