"""The simulation of many replicas: known queues, determinism, and the table of docs/scaling.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.serve import scaling  # noqa: E402
from benchmarks.serve.scaling import BEGIN, END, Service, measured, simulate, table  # noqa: E402


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_one_replica_is_an_m_d_1_queue(load):
    """Pollaczek and Khinchine: a request of service time 1 takes 1 + load / (2 (1 - load)) on average."""
    latencies = simulate(Service((1.0,), 0.0), 1, load, 1)
    assert latencies.mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)


def test_many_replicas_at_random_are_as_many_queues():
    """Requests at random to N replicas are N Poisson processes."""
    latencies = simulate(Service((1.0,), 0.0), 50, 0.6, 1)
    assert latencies[10_000:].mean() == pytest.approx(1 + 0.6 / 0.8, rel=0.05)


def test_two_choices_are_better_than_one_and_cold_replicas_worse():
    service = Service((0.9, 1.0, 1.1), 20.0)
    one, two = (np.percentile(simulate(service, 100, 0.9, choices), 99) for choices in (1, 2))
    assert two < one / 2
    cold = simulate(service, 100, 0.5, 1, starting=0.5)[:500]
    assert cold.mean() > 2 * simulate(service, 100, 0.5, 1)[:500].mean()


def test_equal_seeds_give_equal_latencies():
    service = Service((0.9, 1.1), 0.0)
    assert np.array_equal(simulate(service, 7, 0.5, 2, seed=3), simulate(service, 7, 0.5, 2, seed=3))
    assert not np.array_equal(simulate(service, 7, 0.5, 2, seed=3), simulate(service, 7, 0.5, 2, seed=4))


def test_the_page_has_the_table_of_the_script():
    page = (ROOT / "docs" / "scaling.md").read_text()
    printed = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert printed == "\n".join(table(measured())) and scaling.REPLICAS[-1] == 1000
