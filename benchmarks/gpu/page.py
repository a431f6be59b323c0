"""The results as a page of tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from . import suite
from .results import Results, counts, gates, lead, ms, wrong

MARKS = {True: "holds", False: "**does not hold**", None: "not measured"}
ABOUT_TIMES = """Milliseconds per run in a sequence of asynchronous runs, by CUDA events (for JAX, which has
none, by the host's clock), each timed twice: medians of interleaved rounds, in brackets half the difference between
the slowest and the fastest one. Pelton and torch compute in FP16, JAX in BF16. Inputs are on the GPU and alternate;
those of torch and JAX are in half precision already, Pelton's in FP32. Weights stay in caches as far as they fit, for
all alike."""
ABOUT_ENGINES = """Pelton's engines. `off`: the largest difference from ONNX Runtime in FP32 on the CPU, relative to the
largest output; `start`: load, upload, capture, without the CUDA context; `waited for`: one run at a time, until its end
is known."""


def page(results: Results) -> str:
    parts = results["parts"]
    said = [
        f"# {results['gpu']}",
        "",
        ", ".join(f"{k} {v}" for k, v in results["machine"].items()) + ".",
        "Written by `python -m benchmarks.gpu`; not to be edited.",
        "",
        "## Gates",
        "",
        table(["gate", "measured", ""], [[g.what, g.said, MARKS[g.holds]] for g in gates(results)], 3),
        *models({e: parts[e] for e in suite.ENTRIES if "runtimes" in parts.get(e, {})}),
        *measured(parts.get("ceilings", {})),
        *checked(parts),
    ]
    if failed := wrong(results):
        said += [
            "",
            "## What failed",
            "",
            *(f"- {name}: {' '.join(why.split())}" for name, why in sorted(failed.items())),
        ]
    rows = [[n, p.get("when", ""), number(p.get("took_s", math.nan), ".0f")] for n, p in parts.items()]
    return "\n".join([*said, "", "## Parts", "", table(["part", "when", "seconds"], rows, 2)]) + "\n"


def models(found: Mapping[str, Any]) -> list[str]:
    """How fast, and what Pelton's engines are; runtimes that failed with their reason."""
    if not found:
        return []
    runtimes = ("pelton", *suite.WITH_JAX)
    times = [[e, *(timed(p, r) for r in runtimes), number(lead(p), ".2f")] for e, p in found.items()]
    engines = []
    for e, p in found.items():
        ours = p["runtimes"].get("pelton", {})
        cells = (
            ("build_s", 1, ".1f"),
            ("engine_bytes", 1e-6, ".1f"),
            ("weight_bytes", 1e-6, ".1f"),
            ("start_s", 1e3, ".0f"),
            ("off", 1, ".1e"),
            ("alone_ms", 1, ".3f"),
            ("steps", 1, ".0f"),
        )
        engines.append(
            [
                e,
                *(number(ours.get(key, math.nan) * by, form) for key, by, form in cells),
                number(p["flops"] / ms(p) / 1e9, ".0f"),
                *(number(p["runtimes"].get(r, {}).get("build_s", math.nan), ".0f") for r in suite.WITH_JAX),
            ]
        )
    said = [
        "",
        "## Models",
        "",
        ABOUT_TIMES,
        "",
        table(["model", *runtimes, "best other / Pelton"], times),
        "",
        ABOUT_ENGINES,
        "",
        table(
            [
                "model",
                "build s",
                "engine MB",
                "weights MB",
                "start ms",
                "off",
                "waited for ms",
                "steps",
                "TFLOP/s",
                *(f"{r} ready s" for r in suite.WITH_JAX),
            ],
            engines,
        ),
    ]
    failed = [
        f"- {e}: {r}: {result['failed']}"
        for e, p in found.items()
        for r, result in p["runtimes"].items()
        if r != "pelton" and "failed" in result
    ]
    return said + (["", "Runtimes that failed:", "", *failed] if failed else [])


def table(heading: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table in Markdown; numbers, behind the first columns, to the right."""
    line = "|" + "|".join([" --- "] * left + [" ---: "] * (len(heading) - left)) + "|"
    return "\n".join(["| " + " | ".join(heading) + " |", line, *("| " + " | ".join(r) + " |" for r in rows)])


def number(value: float, form: str = ".3f") -> str:
    return "–" if math.isnan(value) else format(value, form)


def timed(part: Mapping[str, Any], runtime: str) -> str:
    result = part["runtimes"].get(runtime)
    if result is None:
        return ""
    if "failed" in result or not result.get("passes"):
        return "failed"
    passes = " / ".join(f"{p['ms']:.3f}" for p in result["passes"])
    return f"{passes} (±{(max(p['spread'] for p in result['passes']) - 1) / 2:.0%})" + (
        "" if counts(result) else f", off {result['off']:.0e}"
    )


def measured(part: Mapping[str, Any]) -> list[str]:
    """What the GPU can do."""
    units: dict[str, tuple[str, Callable[[Mapping[str, float]], float]]] = {
        "copy": ("TB/s, read and written", lambda m: m["TB_per_s"]),
        **{k: ("TFLOP/s", lambda m: m["TFLOP_per_s"]) for k in ("f16", "bf16", "tf32")},
    }
    rows = [
        [what, " / ".join(f"{of(m):.3g}" for m in part[what]) + " " + unit]
        for what, (unit, of) in units.items()
        if what in part
    ]
    rows += [[k, f"{v:.2f}"] for k, v in part.get("starts", {}).items()]
    return ["", "## Ceilings", "", table(["of the GPU, through torch", "measured twice"], rows)] if rows else []


def checked(parts: Mapping[str, Any]) -> list[str]:
    """What was looked at, and how far it was off."""
    said: list[str] = []
    if "cases" in (found := parts.get("templates", {})):
        said += [
            "",
            (
                f"{found['cases']} cases of templates, {found['kernels']} kernels launched, {len(found['wrong'])} cases"
                f" wrong; seed {found['seed']}."
            ),
        ]
    tool = parts.get("sanitizer", {})
    if tool.get("absent"):
        said += ["", "compute-sanitizer is not installed there."]
    elif "cases" in tool:
        said += [
            "",
            (
                f"compute-sanitizer over {tool['cases']} cases: memcheck {tool.get('memcheck', '–')}; racecheck"
                f" {tool.get('racecheck', '–')}."
            ),
        ]
    rows = [
        [m, *(number(found.get(p, {}).get("off", math.nan), ".1e") for p in suite.TOLERANCE)]
        for m in suite.MODELS
        if (found := parts.get(f"networks-{m}", {}))
    ]
    if rows:
        said += [
            "",
            "Off from float64, of the largest output, at batch 1 with first guesses for tactics.",
            "",
            table(["model", *suite.TOLERANCE], rows),
        ]
    return ["", "## Checks", *said] if said else []
