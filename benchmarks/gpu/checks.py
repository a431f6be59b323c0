"""Checks of kernels and networks on the GPU here: fresh random inputs, poisoned outputs, against float64."""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import pelton
from pelton.backends.cuda.driver import device as gpu
from pelton.engine.cubin import Cubin
from pelton.system.cache import Cache
from pelton.engine.library import LIBRARIES
from pelton.errors import BuildError, Error
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.codegen.triton.toolchain import GLUON, TritonCompiler, release
from pelton.compiler.targets.cuda import target_for

from . import suite
from ..child import ROOT
from .on_gpu import Kernels, Placed, Unproposed

MOST = 3  # tactics of a template that a case is checked with


class Templates:
    """The cases that the tests have of GPU templates, one after the other on the GPU instead of under the
    interpreter."""

    def __init__(self, cache: str, seed: int):
        if str(ROOT / "tests") not in sys.path:
            sys.path.insert(0, str(ROOT / "tests"))
        self.harness = importlib.import_module("triton_harness")
        self.templates = importlib.import_module("pelton.codegen.template").GPU_TEMPLATES
        self.seed = seed
        self.device = gpu(0)
        self.target = target_for([self.device.arch], self.device, level=5)
        self.compiler = TritonCompiler((self.device.arch,), Cache(cache), os.cpu_count() or 1)
        here = {**self.device.libraries, "im2col": self.device.arch == 90 and release() >= GLUON}
        self.cases = [
            (name, case)
            for name, cases in found_cases().items()
            for case in cases
            if here.get(name, name not in LIBRARIES)
        ]
        self.cubins: dict[str, Cubin] = {}

    def names(self) -> list[str]:
        return [f"{template} {case.name}" for template, case in self.cases]

    def compile(self, cases: list[int]) -> dict[str, Any]:
        """Cubins of all that these cases launch, side by side."""
        start, sources = time.monotonic(), dict[str, str]()
        for i in cases:
            name, case = self.cases[i]
            sources |= {
                k.symbol: k.source
                for k, _, _ in self.harness.tried(self.templates[name], case, MOST, self.target)
                if k.symbol not in LIBRARIES
            }
        self.failed: dict[str, BuildError] = {}
        made = self.compiler.cubins(sources, failed=self.failed)
        self.cubins = {symbol: m.cubin for (symbol, _), m in made.items()}
        return {
            "kernels": len(made),
            "failed": {symbol: str(why) for symbol, why in self.failed.items()},
            "seconds": time.monotonic() - start,
        }

    def check(self, i: int) -> dict[str, Any]:
        """How many kernels were right, and the first that was not."""
        name, case = self.cases[i]
        kernels = Kernels(self.device, self.cubins)
        try:
            self.harness.check(self.templates[name], case, MOST, self.seed, self.target, kernels.run)
        except Unproposed:
            pass
        except AssertionError as e:
            return {"launched": kernels.launched, "wrong": str(e)}
        except Error as e:
            # the driver's: what comes after it in this process says nothing
            return {"launched": kernels.launched, "wrong": str(e), "lost": True}
        return {"launched": kernels.launched}


def found_cases() -> Mapping[str, list[Any]]:
    """Template → cases, of all tests of templates; those of single pointwise ops stand behind the others."""
    found: dict[str, list[Any]] = {}
    for path in sorted((ROOT / "tests").glob("test_triton_*.py")):
        module = importlib.import_module(path.stem)
        for name, cases in getattr(module, "CASES", {}).items():
            found.setdefault(name, []).extend(c for c in cases if not any(c is known for known in found.get(name, ())))
    scalars = importlib.import_module("test_triton_kernels").SCALARS
    found.setdefault("pointwise", []).extend(scalars)
    return found


class Networks:
    """A model of the suite on the GPU, in every precision, against the reference in float64."""

    def __init__(self, path: str, cache: str, seed: int):
        self.path, self.cache = path, cache
        self.graph = importer.load(path).graph
        self.feeds = [suite.drawn(suite.ports(self.graph), s) for s in (seed, seed + 1)]
        self.want = [evaluate(self.graph, feeds, round=False) for feeds in self.feeds]

    def check(self, precision: str) -> dict[str, Any]:
        start = time.monotonic()
        try:
            engine = pelton.build(self.path, target="cuda", precision=precision, cache_dir=self.cache, level=0)
            built = time.monotonic() - start
            got = [self.run(engine, feeds) for feeds in self.feeds]
            off = max(map(suite.off, got, self.want))
            return {
                "off": suite.finite(off),
                "follows": suite.follows(got, self.want) if math.isfinite(off) else 0.0,
                "build_s": built,
                "steps": len(engine.steps),
                "host_steps": engine.meta["host_steps"],
            }
        except (AssertionError, Error) as e:
            return {"wrong": str(e)}

    def run(self, engine: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs, into memory that was poisoned, from inputs that lie on the GPU."""
        context = engine.context()
        with context.engine.device as device:
            given = {name: Placed(device, a, context.stream) for name, a in feeds.items()}
            out = {p.name: Placed.poisoned(device, p.shape, p.numpy_dtype, context.stream) for p in engine.outputs}
        context.run_async(given, out)
        context.synchronize()
        with context.engine.device:
            for placed in given.values():
                placed.fetched(context.stream)
            return {name: placed.fetched(context.stream) for name, placed in out.items()}
