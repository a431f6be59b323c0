"""The time of every step of an engine, its bound, and the distance from it."""

from __future__ import annotations

import statistics
import textwrap
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import BuildError, InputError

from . import build, roofline, text

if TYPE_CHECKING:
    from pelton.runtime import Context, Engine

RULE = """A step is bound by memory if its bytes (weights and activations, each once) take longer at that rate than its
operations do at theirs, by compute if it is the other way round, by neither (–) if both take less than a microsecond.
% of it: the bound as a share of the step's time. Operations are counted for the direct algorithm (Winograd needs
fewer), and caches are faster than memory: both percentages may pass 100."""
NO_PEAK = 'without a compiler the peak cannot be measured: pip install "pelton[build]"'
SLOW = 0.1, 2.0  # a step is coloured from this share of a run and this multiple of the average on
PROFILES = 100  # maximum runs with time stamps


def measure(context: Context, feeds: dict[str, np.ndarray]) -> tuple[list[dict[str, Any]], float]:
    """Returns every step with its median time, and the nanoseconds of a run outside of steps. Both come from the same
    runs, because runs of large networks differ by more. Reading time stamps, a few microseconds, is included."""
    runs = [context.profile(feeds)]
    around: list[int] = []
    budget = sum(ns for _, ns in runs[0])
    for _ in range(min(PROFILES, max(3, int(2e9 / max(budget, 1))))):
        start = time.perf_counter_ns()
        runs.append(context.profile(feeds))
        around.append(time.perf_counter_ns() - start - sum(ns for _, ns in runs[-1]))
    medians = [statistics.median(run[i][1] for run in runs[1:]) for i in range(len(runs[0]))]
    total = sum(medians) or 1
    out = []
    for (step, _), ns in zip(runs[0], medians):
        info = step.info
        flops, nbytes = info.get("flops", 0), info.get("bytes", 0)
        out.append(
            {
                "name": step.name,
                "op": info.get("op", ""),
                "tactic": "host" if step.host else info.get("tactic", ""),
                "layers": list(info.get("layers") or ()),
                "ns": ns,
                "share": ns / total,
                "flops": flops,
                "bytes": nbytes,
                "gflops": flops / max(ns, 1),
                "gbytes": nbytes / max(ns, 1),
            }
        )
    return out, statistics.median(around)


def measure_roof(engine: Engine, threads: int) -> roofline.Roof | None:
    """Measures the peak of the machine; returns None without a compiler."""
    try:
        from pelton.tuning.peak import peak

        return roofline.Roof(*peak(engine.plain.target["isa"], threads))
    except (ModuleNotFoundError, BuildError):
        return None


def check_roof() -> None:
    """Raises InputError if there is no compiler to measure the peak of the machine with."""
    try:
        from pelton.codegen.c.toolchain import compiler_id

        compiler_id()
    except (ModuleNotFoundError, BuildError) as e:
        raise InputError(f"--plot: {NO_PEAK}") from e


def measure_beside_roof(
    engine: Engine, context: Context, feeds: dict[str, np.ndarray]
) -> tuple[list[dict[str, Any]], float, roofline.Roof | None]:
    """Returns the results of `measure`, and the peak of the machine; None for GPU engines. Load from other users
    varies: the better of two measurements of the peak counts, one before and one after."""
    before = None if build.on_gpu(engine) else measure_roof(engine, context.threads)
    steps, around = measure(context, feeds)
    return steps, around, before and before.best(measure_roof(engine, context.threads) or before)


def styles(found: list[dict[str, Any]]) -> dict[int, str]:
    """Returns the colours of rows of `table`: host steps are red, slow steps yellow."""
    much = max(SLOW[0], SLOW[1] / max(len(found), 1))
    slow = {i: "yellow" for i, s in enumerate(found, 1) if s["share"] > much}
    return {**slow, **{i: "red" for i, s in enumerate(found, 1) if s["tactic"] == "host"}}


def table(found: list[dict[str, Any]], roof: roofline.Roof | None, around: float, gpu: bool = False) -> str:
    """Formats steps in execution order, their sum, and the time of a run outside of them."""
    columns = [
        ("step", "r"),
        ("time", "r"),
        ("share", "r"),
        ("GFLOP/s", "r"),
        ("% of peak", "r"),
        ("GB/s", "r"),
        ("bound by", "l"),
        ("% of it", "r"),
        ("tactic", "l"),
        ("what", "l"),
    ]
    rows = [tuple(name for name, _ in columns)]
    for i, s in enumerate(found):
        rows.append(
            (
                f"{i}",
                text.duration(s["ns"]),
                f"{100 * s['share']:.1f} %",
                f"{s['gflops']:.1f}" if s["gflops"] else "",
                f"{100 * s['gflops'] / roof.gflops:.0f}" if roof and s["gflops"] else "",
                f"{s['gbytes']:.1f}" if s["gbytes"] else "",
                s["bound"] or "–",
                f"{100 * s['reached']:.0f}" if s["bound"] else "",
                text.shortened(s["tactic"].partition("@")[0], 40),
                text.shortened(s["name"] or s["op"], 44),
            )
        )
    total = sum(s["ns"] for s in found)
    speed = sum(s["flops"] for s in found) / max(total, 1)
    rows.append(
        (
            "sum",
            text.duration(total),
            "100 %",
            f"{speed:.1f}",
            f"{100 * speed / roof.gflops:.0f}" if roof else "",
            "",
            "",
            f"{100 * sum(s['reached'] * s['ns'] for s in found) / max(total, 1):.0f}",
            "",
            "",
        )
    )
    kept = [i for i, (name, _) in enumerate(columns) if roof or name not in ("% of peak", "bound by", "% of it")]
    lines = [
        text.table(
            [[row[i] for i in kept] for row in rows], "".join(columns[i][1] for i in kept), styles=styles(found)
        ),
        f"in kernels {text.duration(total)}, "
        + (
            f"one after the other; a run, as one graph, with its copies: {text.duration(total + around)}"
            if gpu
            else f"around them {text.duration(around)}: the call, its arrays, waking threads"
        ),
    ]
    if gpu:
        return "\n".join(lines)
    if roof is None:
        lines.append(NO_PEAK)
    else:
        lines += textwrap.wrap(
            f"Measured: {roof.gflops:.0f} GFLOP/s in the CPU time of the threads, {roof.gbytes:.1f} GB/s. {RULE}", 150
        )
    return "\n".join(lines)
