"""A profile with round figures, and a small model, for tests of `pelton advise`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import pelton
from pelton.advise import measure, profile, work
from pelton.advise.predict import RatedDevice
from pelton.advise.profile import BandwidthLevel, LaunchCosts, TemplateFit
from pelton.advise.work import ModelWork

ASSUMED = profile.assumed("cpu")
PROFILE = replace(
    ASSUMED,
    name="test bench",
    fitted=True,
    note="fitted here",
    costs=LaunchCosts(10.0, 2.0, 0.5, 50.0),
    templates={"*": TemplateFit("*", 0.5, 0.25, 0.1, 0), "conv": TemplateFit("conv", 0.8, 0.5, 0.2, 9)},
    run_spread=0.1,
    transfer_spread=0.3,
    peaks={"fp32": 0.2, "int8": 0.8},
    levels=(BandwidthLevel("l2", 100.0, 1 << 20), BandwidthLevel("memory", 20.0)),
    machine={"cpu": "bench", "isa": "x86_64_v4", "threads": 2, "memory_gb": 16.0, "level": 3},
    networks=(profile.FittedNetwork("a", 1.5, 1.25),),
    date="2026-11-29",
    pelton="0.1.0",
)


def device(**changes) -> RatedDevice:
    return replace(measure.device_of(PROFILE), **changes)


def small(batch: str = "batch") -> pelton.Network:
    """A convolution of 3×3 on 32 channels, which Winograd's algorithm takes, and a product."""
    rng, net = np.random.default_rng(0), pelton.Network("small")
    x = net.input("x", f"f32[{batch}, 32, 32, 32]")
    y = net.relu(net.convolution(x, rng.standard_normal((32, 32, 3, 3)).astype(np.float32), padding=1))
    y = net.flatten(net.global_average_pool(y))
    net.output(net.linear(y, rng.standard_normal((10, 32)).astype(np.float32)), "y")
    return net


def planned(net: pelton.Network | Path, *batches: int, precision: str = "fp32") -> list[ModelWork]:
    return [work.plan_work(size, precision) for size in work.import_batches(net, batches or None)]
