"""Chains of regions: their detection, fusion to one kernel, and end at values with other readers."""

import re
from dataclasses import replace

import numpy as np
import pytest

import pelton
from pelton.cli import main
from pelton.compiler import targets
from models import inverted_residuals, small_cnn
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import Target
from pelton.passes import pipeline
from pelton.plan import fuse
from pelton.plan.region import Region
from pelton.tuning import candidates, chains
from pelton.tuning.timing_cache import TimingCache

SMALL = Target(l2=64 << 10, threads=2)  # caches too small for the feature maps of these tests


class Clock:
    """Measures 100 ns for every region and `together` for a chain; nothing if late."""

    def __init__(self, together, late=False):
        self.cache, self.target = TimingCache("a machine"), SMALL
        self.together, self.late, self.asked = together, late, 0

    def tune(self, tasks, found, alone=False):
        assert alone and all(len(t.region.anchors) == 1 for t in tasks.values())
        if not self.late:
            for d, kernels in found.items():
                self.cache.put(d, {c.name: 100 for _, c in kernels})

    def race(self, digest, tasks, programs):
        self.asked += 1
        assert [len(t.region.anchors) for t in tasks] == [1] * (len(tasks) - 1) + [len(tasks) - 1]
        if self.late:
            return {}
        return {name: 100 * len(kernels) if len(kernels) > 1 else self.together for name, kernels in programs.items()}


@pytest.fixture(scope="module")
def graphs():
    """The program as it is, and with a value inside a chain as another output."""

    def graph(**more):
        return pipeline.run(importer.load(inverted_residuals(), **more).graph, False)[0]

    return graph(), graph(outputs=["sum.wide", "y"])


def join(graph, clock=None, target=SMALL):
    return chains.join(fuse.fuse(graph, candidates.rejection), clock, target, False, 1)


def anchors(fused):
    """The number of anchors of every region of convolutions."""
    regions = [i for i in fused.items if isinstance(i, Region) and i.anchors]
    return [len(r.anchors) for r in regions if r.anchors[0].op.name == "convolution"]


def test_chains_are_as_long_as_a_template_takes_them(graphs):
    found = chains.find_chains(fuse.fuse(graphs[0], candidates.rejection), SMALL, False)
    assert [[r.layers[0] for r in run] for run in found] == [
        ["first.dw", "first"],
        ["sum.wide", "sum.dw", "sum.c"],
        ["half.wide", "half.dw", "half"],
        ["gate.wide", "gate.dw"],
    ]


def test_chains_that_fit_the_cache_stay_apart(graphs):
    clock = Clock(1)
    fused = join(graphs[0], clock, Target())
    assert fused.chains == () and not clock.asked and max(anchors(fused)) == 1


def test_chains_that_are_apart_without_times_say_why(graphs):
    """Those that a clock decides about, and those that fit the cache; none of one kernel."""
    for target, decided, reason in (
        (replace(SMALL, l2=80 << 10), 3, "timing decides between one kernel and several"),
        (Target(), 0, "not one kernel, as all between them fits the L2 cache"),
    ):
        fused = join(graphs[0], target=target)
        found = [why for _, _, why in chains.apart(fused, target, False)]
        assert len(found) + sum(n > 1 for n in anchors(fused)) == 4
        assert sum("timing decides" in why for why in found) == decided and any(reason in why for why in found)
        assert {why[:13] for why in found} <= {"a chain of 2 ", "a chain of 3 "}


def test_explain_tells_chains_apart(graphs, capsys, tmp_path):
    (tmp_path / "m.onnx").write_bytes(inverted_residuals().SerializeToString())
    assert main(["explain", str(tmp_path / "m.onnx"), "--why-not", "strips"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"not at sum.wide.*\+sum.dw.*\+sum.c.*: a chain of 3 convolutions; ", said) and ".py" not in said
    assert not re.search(r"sum.dw.*: no chain of two or three", said)


def test_a_value_with_another_reader_ends_a_chain(graphs):
    fused = join(graphs[1], Clock(1))
    found = chains.find_chains(fuse.fuse(graphs[1], candidates.rejection), SMALL, False)
    assert [[r.layers[0] for r in run] for run in found[:2]] == [["first.dw", "first"], ["sum.dw", "sum.c"]]
    assert any(v.name == "sum.wide" for i in fused.items if isinstance(i, Region) for v in i.body.outputs)


@pytest.mark.parametrize(
    "together, one", [(150, [3, 3, 2, 2]), (193, [3, 3, 2, 2]), (195, [3, 3]), (290, [3, 3]), (292, [])]
)
def test_the_clock_decides_and_a_little_faster_is_not_enough(graphs, together, one):
    first, again = (join(graphs[0], Clock(together)) for _ in range(2))
    assert sorted((n for n in anchors(first) if n > 1), reverse=True) == one
    assert first.chains == again.chains and anchors(first) == anchors(again) and len(first.chains) == 4
    assert sum("one kernel" in line for line in first.chains) == len(one)
    decision = "one kernel" if together < 194 else "apart"
    line = f"first.dw+first.dw.relu6+first: {decision} ({together / 1e3:.1f} µs, apart 0.2 µs)"
    assert line in first.chains


@pytest.mark.parametrize("clock", [None, Clock(1, late=True)])
def test_without_times_the_size_decides(graphs, clock):
    fused = join(graphs[0], clock)
    assert [line.split(": ")[1] for line in fused.chains] == [
        *["one kernel (not timed, 0.2 MB between)"] * 3,
        "apart (not timed, 0.1 MB between)",
    ]
    assert set(join(graphs[0], clock, replace(SMALL, l2=80 << 10)).chains) < {
        line.replace("one kernel", "apart") for line in fused.chains
    }


def test_without_a_kernel_for_these_sizes_there_is_no_chain(graphs):
    fused = join(graphs[0], Clock(1), Target(l2=4 << 10))
    assert fused.chains == () and max(anchors(fused)) == 1


@pytest.mark.parametrize(
    "level, strict, more", [(0, False, {}), (1, True, {}), (0, False, dict(outputs=["sum.wide", "y"]))]
)
def test_a_network_of_chains_gives_what_it_means(monkeypatch, tmp_path, level, strict, more):
    describe = targets.cpu.describe

    def with_small_caches(options):
        target, meta = describe(options)
        return replace(target, l2=SMALL.l2), meta

    monkeypatch.setattr(targets.cpu, "describe", with_small_caches)
    model = inverted_residuals()
    engine = pelton.build(model, level=level, strict=strict, threads=2, cache_dir=tmp_path, check=True, **more)
    x = {"x": np.random.default_rng(0).standard_normal((1, 3, 28, 28)).astype(np.float32)}
    got, want = engine.run(x), evaluate(importer.load(model, **more).graph, x, round=False)
    for name in want:
        assert np.abs(got[name] - want[name]).max() <= 1e-5 * np.abs(want[name]).max()
    assert engine.meta["host_steps"] == [] and len(engine.meta["chains"]) == 4
    if not level:
        assert sum("strips" in s.info["tactic"] for s in engine.steps) == 3
    context = engine.context(threads=1)
    assert all(context.run(x)[name].tobytes() == got[name].tobytes() for name in want)


def test_networks_without_chains_are_what_they_were(tmp_path):
    assert pelton.build(small_cnn(), level=0, cache_dir=tmp_path).meta["chains"] == []
