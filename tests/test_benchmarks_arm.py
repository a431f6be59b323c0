"""Counted instructions of kernels for AArch64: layers, rows, the check against committed counts, the page."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.arm import counts, results  # noqa: E402
from benchmarks.arm.counter import Counts  # noqa: E402
from benchmarks.arm.layers import convolutions  # noqa: E402
from benchmarks.arm.measure import StepCounts  # noqa: E402
from benchmarks.arm.networks import NETWORKS  # noqa: E402
from benchmarks.arm.results import CountRow, NetworkCounts  # noqa: E402

ROW = CountRow("3×3", "relu", "conv:MR=6", kernels=2, products=1000, instructions=300, memory=50, xnnpack=310)


def measured(row: CountRow, steps: int = 400) -> results.Measured:
    return {"resnet20": {results.COMPARED: NetworkCounts((row,), steps)}}


def test_networks_have_the_published_numbers_of_products():
    layers = {name: convolutions(network().graph()) for name, network in NETWORKS.items()}
    assert {name: len(of) for name, of in layers.items()} == {"resnet20": 21, "mobilenet_v2": 52, "mlperf_tiny": 9}
    millions = {name: round(sum(layer.products for layer in of) / 1e6, 1) for name, of in layers.items()}
    assert millions == {"resnet20": 40.8, "mobilenet_v2": 299.5, "mlperf_tiny": 12.5}
    assert str(layers["mobilenet_v2"][4]) == "depthwise 3×3 / 2, 112×112×96 → 96"
    assert layers["mlperf_tiny"][3].sizes == (32, 32, 16, 32, 3, 2, 0, 1, 1)  # "same", an odd element behind


def test_equal_steps_make_one_row():
    layers = convolutions(NETWORKS["resnet20"]().graph())[1:3]
    steps = [StepCounts((x.name,), "convolution+relu", "conv:MR=6@aarch64", Counts(10, 5, 0, 2)) for x in layers]
    copy = StepCounts(("x",), "copy", "move:@aarch64", Counts(9, 0, 0, 0))
    (row,) = counts.rows_of([*steps, copy], layers, [Counts(11, 0, 0, 0), Counts(12, 0, 0, 0)])
    assert (row.kernels, row.products, row.instructions, row.xnnpack) == (2, 2 * layers[0].products, 20, 23)
    assert (row.tail, row.tactic) == ("relu", "conv:MR=6")


def test_two_percent_more_instructions_are_reported():
    old = measured(ROW)
    assert not [*results.regressions(old, measured(replace(ROW, instructions=305, tactic="conv:MR=8")))]
    lines = [*results.regressions(old, measured(replace(ROW, instructions=310)))]
    assert len(lines) == 2 and "3×3 relu: 300 → 310 instructions (+3.3%)" in lines[1]
    assert [*results.regressions(old, measured(ROW, 500))] == [
        "resnet20, aarch64_dotprod, all steps: 400 → 500 instructions (+25.0%)"
    ]
    assert "no committed counts" in [*results.regressions({}, old)][0]


def test_gates_compare_with_xnnpack():
    assert not results.missed_gates(measured(ROW))
    assert "1.032 of XNNPACK's" in results.missed_gates(measured(replace(ROW, instructions=320)))[0]


def test_committed_page_is_that_of_the_committed_counts():
    committed, versions = results.read()
    assert set(committed) == set(NETWORKS) and all(set(of) == set(counts.LEVELS) for of in committed.values())
    assert results.PAGE.read_text() == results.page(committed, versions)
    assert not results.missed_gates(committed)
