"""Builds engines in the fastest precision: FP32, halves, and, given calibration data, layers in INT8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.compiler.compile import BuildResult, compile_graph
from pelton.compiler.targets import target_kind
from pelton.ir.imported import Imported
from pelton.logs import Logger
from pelton.options import Options
from pelton.runtime import Engine

from .int8 import compile_int8, without_int8
from .race import compare_times, random_feed

log = Logger("pelton.build")


def compile_best(imported: Imported, options: Options) -> BuildResult:
    """Returns the fastest engine of a program in any precision.

    On CPUs, kernels read weights in FP16 where that measured faster. On GPUs, the engine in FP16 (BF16, if that
    overflows) races against the one in FP32; without a GPU, a model compares them. Given calibration data, the INT8
    build has to beat the faster one. `meta["precision"]` records the choice, `meta["best"]` the reason.
    """
    halves: BuildResult | None = None
    why: Mapping[str, str]
    if options.on_cpu:
        rest, why = "fp16", {"fp16": "weights of kernels that were timed faster so"}
    else:
        rest, why, halves = _faster(imported, options)
    if options.calibration is None:
        result = halves or compile_graph(imported, without_int8(options, rest))
        return _with_meta(result, precision=rest, best=why)
    result = compile_int8(imported, options, rest)
    record = result.engine.meta["int8"]
    layers = record["layers"]
    count = sum(layer["precision"] == "int8" for layer in layers)
    why = {**why, "int8": f"{count} of {len(layers)} layers"}
    return _with_meta(result, precision="int8" if count else record["rest"], best=why)


def _faster(imported: Imported, options: Options) -> tuple[str, Mapping[str, str], BuildResult]:
    """Returns the faster one of FP32 and halves on a GPU, the reason, and its build."""
    fp32, fp16 = (compile_graph(imported, without_int8(options, p)) for p in ("fp32", "fp16"))
    here = bool(options.level) and target_kind(options).runs_here(options)
    ratio, how = compare_times(fp16.engine, fp32.engine, {}, here)
    why = {"fp16": f"{ratio:.2f} of the time of FP32{how}" if ratio else "not timed"}
    if ratio >= 1:
        return "fp32", why, fp32
    if not here:
        log.warning("no %s on this machine: a model compares the precisions", options.target)
    elif _overflows(fp16.engine, fp32.engine):
        log.warning("FP16 overflows: BF16 is taken")
        return "bf16", {**why, "bf16": "as FP16 overflows"}, compile_graph(imported, without_int8(options, "bf16"))
    return "fp16", why, fp16


def _overflows(engine: Engine, reference: Engine) -> bool:
    """True if an engine returns infinities or NaN for random inputs for which the reference returns none."""
    feed = random_feed(engine)
    want, outputs = reference.run(dict(feed)), engine.run(dict(feed))
    return any(
        a.dtype.kind == "f" and bool(np.isfinite(want[name]).all()) and not np.isfinite(a).all()
        for name, a in ((name, np.asarray(a)) for name, a in outputs.items())
    )


def _with_meta(result: BuildResult, **more: Any) -> BuildResult:
    plain = result.engine.plain
    return replace(result, engine=Engine(replace(plain, meta={**plain.meta, **more})))
