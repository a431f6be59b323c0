"""The results of all parts in one file, merged part by part, and the gates that they must pass."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import suite

# gpu, machine, parts: name → what it found, when, in what time, and its error where it failed
Results = dict[str, Any]
# images per second: NVIDIA's own, ResNet-50 in INT8 by TensorRT, per H200 (MLPerf Inference v4.1, offline)
MLPERF = 94_620
START_MS, MORE_BYTES = 150, 20_000_000


def file_name(gpu: str) -> str:
    """ "NVIDIA H200" → "h200"."""
    return (
        "-".join(
            "".join(c if c.isalnum() else " " for c in gpu.lower()).split()[
                1 if gpu.lower().startswith("nvidia") else 0 :
            ]
        )
        or "gpu"
    )


def read(folder: Path, gpu: str) -> Results:
    """What earlier runs on such a GPU found."""
    path = folder / f"{file_name(gpu)}.json"
    return json.loads(path.read_text()) if path.exists() else {"gpu": gpu, "machine": {}, "parts": {}}


def write(results: Results, folder: Path) -> tuple[Path, Path]:
    """Both files, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    results["gates"] = [{"gate": g.what, "value": g.said, "holds": g.holds} for g in gates(results)]
    paths = []
    from .page import page  # which reads what is here

    for ending, text in (("json", json.dumps(results, indent=1, sort_keys=True) + "\n"), ("md", page(results))):
        path = folder / f"{file_name(results['gpu'])}.{ending}"
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_text(text)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        paths.append(path)
    return paths[0], paths[1]


def wrong(results: Results, parts: Mapping[str, Any] | None = None) -> dict[str, str]:
    """All that failed: checks, and whole parts."""
    found: dict[str, str] = {}
    for name in results["parts"] if parts is None else parts:
        part = results["parts"].get(name, {})
        found |= part.get("wrong", {}) | ({name: part["error"]} if "error" in part else {})
    return found


# ---- gates


@dataclass(frozen=True)
class Gate:
    """Something that has to hold. `holds`: None where it was not measured."""

    what: str
    said: str
    holds: bool | None


def ms(part: Mapping[str, Any] | None, runtime: str = "pelton") -> float:
    """The median of a run; not a number where there is none that counts."""
    result = (part or {}).get("runtimes", {}).get(runtime, {})
    times = [p["ms"] for p in result.get("passes", ())]
    return sum(times) / len(times) if times and counts(result) else math.nan


def counts(result: Mapping[str, Any]) -> bool:
    """Whether a runtime computes the model, so that its time says something; bf16 is what JAX computes in."""
    return "failed" not in result and result.get("off", math.inf) <= suite.TOLERANCE["bf16"]


def lead(part: Mapping[str, Any] | None) -> float:
    """The time of the best other runtime by Pelton's."""
    others = [ms(part, name) for name in (part or {}).get("runtimes", {}) if name != "pelton"]
    return min((t for t in others if not math.isnan(t)), default=math.nan) / ms(part)


def gates(results: Results) -> Iterator[Gate]:
    parts = results["parts"]
    for precision in ("fp32", "fp16"):
        offs = {m: parts.get(f"networks-{m}", {}).get(precision, {}).get("off", math.nan) for m in suite.MODELS}
        known = [o for o in offs.values() if not math.isnan(o)]
        limit = suite.TOLERANCE[precision]
        yield Gate(
            f"all six models right in {precision}: within {limit:g} of the largest output",
            f"worst {max(known):.1e} of {len(known)} models" if known else "",
            None if not known else max(known) <= limit and len(known) == len(offs),
        )
    leads = {e: lead(parts.get(e)) for e in suite.ENTRIES}
    some = {e: v for e, v in leads.items() if not math.isnan(v)}
    yield Gate(
        "best other runtime / Pelton: none under 0.9",
        (
            f"least {min(some.values()):.2f} ({min(some, key=some.__getitem__)}), {len(some)} of {len(leads)}"
            if some
            else ""
        ),
        None if not some else min(some.values()) >= 0.9,
    )
    for about, batches, least in (("at batch 1", (1,), 1.1), ("at batch 32 to 128", (32, 128), 1.0)):
        group = [v for e, v in some.items() if suite.ENTRIES[e].batch in batches]
        mean = math.exp(sum(map(math.log, group)) / len(group)) if group else math.nan
        yield at_least(
            f"its geometric mean {about} is {least:g} and more", mean, least, f"{mean:.2f} of {len(group)} models"
        )
    yield at_most("resnet50, batch 1: 0.7 ms (aim 0.30)", ms(parts.get("resnet50")), 0.7, "ms")
    per_second = 128e3 / ms(parts.get("resnet50_b128"))
    yield at_least(
        "resnet50, batch 128: 15,000 images/s (aim 30,000)",
        per_second,
        15_000,
        f"{per_second:,.0f} images/s, {per_second / MLPERF:.0%} of NVIDIA's own best in INT8 (MLPerf, {MLPERF:,})",
    )
    yield at_most("bert_base, 1 × 128: 0.8 ms (aim 0.45)", ms(parts.get("bert_base")), 0.8, "ms")
    large, rate = parts.get("bert_base_b32", {}), [m["TFLOP_per_s"] for m in parts.get("ceilings", {}).get("f16", ())]
    share = large.get("flops", math.nan) / ms(large) / 1e9 / max(rate, default=math.nan)
    yield at_least(
        "bert_base, 32 × 128: half of the measured matrix rate", share, 0.5, f"{share:.0%} in {ms(large):.2f} ms"
    )
    ours = parts.get("resnet50", {}).get("runtimes", {}).get("pelton", {})
    yield at_most(
        f"resnet50: load, upload and capture in {START_MS} ms", 1e3 * ours.get("start_s", math.nan), START_MS, "ms"
    )
    yield at_most(
        "resnet50: engine file at most its weights and 20 MB",
        (ours.get("engine_bytes", math.nan) - ours.get("weight_bytes", 0)) / 1e6,
        MORE_BYTES / 1e6,
        "MB more than the weights",
    )


def at_most(what: str, value: float, most: float, unit: str) -> Gate:
    return Gate(what, "" if math.isnan(value) else f"{value:.3g} {unit}", None if math.isnan(value) else value <= most)


def at_least(what: str, value: float, least: float, said: str) -> Gate:
    return Gate(what, "" if math.isnan(value) else said, None if math.isnan(value) else value >= least)
