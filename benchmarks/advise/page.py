"""The page of published and predicted throughput: every point, none left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.advise.catalog import Catalog
from pelton.advise.predict import CONFIDENCE
from pelton.advise.profile import load_profile
from pelton.advise.work import ModelWork

from .points import Point, PointResult, evaluate, mean_error

HEAD = """# Predictions for GPUs beside published throughput

`make advise-points` writes this page and the profile `src/pelton/advise/profiles/fitted_nvidia.toml`: it fits seven
parameters on half of the devices, and predicts all points of `points.toml` as `pelton advise` does. No GPU is needed.
Rules that decided which figures are taken, and which devices are held out, are in `collect.py`.

- **Published**: inputs per second of one device: of MLPerf's Offline scenario, or the batch over its mean latency.
- **Networks**: ResNet-50 v1.5 at 224×224; BERT-Base at 128 and BERT-Large at 384 tokens. Inputs of MLPerf are padded to
  384 tokens and have 177 on average: [54 % of SQuAD v1.1 is padding](https://openreview.net/forum?id=3nzKUh9a4M), which
  NVIDIA's submissions cut off. Their predictions are for 177 tokens.
- **Plans** are Pelton's: its fused steps, not TensorRT's. Between products in INT8, steps are FP16.
- **Clocks** are not modelled. A T4 at 70 W runs below the clock that its peak is quoted at, and is predicted too fast.
- **Caches** are not modelled. ResNet-50 on Ada's GPUs, whose caches hold its activations, is predicted too slow.
"""
FOOT = """
Devices whose peaks no source of the catalog states cannot be predicted: Jetson Orin and A16 are in MLPerf, not here.
Jetson Xavier is not, either: its peak is that of its GPU and two other accelerators. A number in brackets is the number
of devices of a system.
"""


def page(points: Sequence[Point], works: Mapping[tuple[Any, ...], ModelWork], profile: Path, catalog: Catalog) -> str:
    """Returns the text. profile: the file, as later predictions read it."""
    loaded = load_profile(profile)
    results = evaluate(points, works, loaded, catalog)
    halves = {name: [r for r in results if r.point.held_out == held] for name, held in (("fit", 0), ("held out", 1))}
    lines = [HEAD, "| half | devices | points | mean error | largest | within the interval |", "| --- " * 6 + "|"]
    for name, half in halves.items():
        inside = sum(r.inside for r in half) / len(half)
        devices = len({r.point.device for r in half})
        worst = max(abs(r.error) for r in half)
        lines.append(f"| {name} | {devices} | {len(half)} | {mean_error(half):.1%} | {worst:.0%} | {inside:.0%} |")
    lines += [f"\nIntervals should hold {CONFIDENCE:.0%}. Their width is that of the errors of devices held out.\n"]
    lines += ["| device | half | points | mean error | bias |", "| --- " * 5 + "|"]
    for device in sorted({p.device for p in points}):
        own = [r for r in results if r.point.device == device]
        bias = sum(r.error for r in own) / len(own)
        lines.append(f"| {device} | {half_of(own[0])} | {len(own)} | {mean_error(own):.1%} | {bias:+.1%} |")
    shares = {t: f"{loaded.fit(t).compute:.0%}" for t in ("conv", "gemm", "attention")}
    lines += [
        f"\nFitted shares of the peak: products {shares['gemm']}, attention {shares['attention']}, "
        f"convolutions {shares['conv']}.\nMost convolutions of ResNet-50 are bound by bytes, which hide their share."
    ]
    lines += [FOOT, "| device | network | batch | published | predicted | error | half | source |", "| --- " * 8 + "|"]
    lines += [row(r) for r in sorted(results, key=lambda r: (r.point.device, r.point.name))]
    return "\n".join(lines) + "\n"


def half_of(result: PointResult) -> str:
    """Returns the half of a point."""
    return "held out" if result.point.held_out else "fit"


def row(result: PointResult) -> str:
    """Returns the line of a point."""
    p = result.point
    network = {"resnet50": "ResNet-50", "bert_base": "BERT-Base", "bert_large": "BERT-Large"}[p.model]
    tokens = "" if p.sequence is None else f", {p.sequence} tokens"
    cells = (
        p.device if p.count == 1 else f"{p.device} ({p.count})",
        f"{network}{tokens}, {p.precision.upper()}",
        str(p.batch),
        f"{p.throughput:.4g}",
        f"{result.predicted:.4g}",
        f"{result.error:+.0%}",
        half_of(result),
        f"[{p.name.removeprefix(p.device + ', ')}]({p.source}), {p.date}",
    )
    return f"| {' | '.join(cells)} |"
