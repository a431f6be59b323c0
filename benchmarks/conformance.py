#!/usr/bin/env python3
"""Counts, kind by kind, how many of the onnx package's backend tests pass, and how many of them without a host step:
conformance.py [--kinds node,simple] [--match PART] [--failures] [--json FILE] [--page FILE]"""

import argparse
import contextlib
import io
import json
import logging
import os
import tempfile
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx.backend.test
from onnx import numpy_helper

from pelton import onnx_backend
from pelton.errors import Error
from pelton.options import Options

# what its package calls the kinds of tests → the classes of its suite
KINDS = {
    "node": "",
    "simple": "Simple",
    "pytorch-converted": "PyTorchConverted",
    "pytorch-operator": "PyTorchOperator",
    "real (light)": "Real",
}
# "the generator operator is non-deterministic", say these tests themselves
RANDOM = ("test_bernoulli",)
PAGE = """# Conformance

All backend tests of the onnx {onnx} package, run through `pelton.onnx_backend`. A test passes if every output has the
expected type, shape and, within the test's tolerances, values; random outputs need the right type, shape and
range. "Without a host step" counts the tests that ran entirely in compiled code; host steps run in numpy or the onnx
package.

| kind | tests | passed | without a host step | refused with a reason | failed |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}

{refused}`benchmarks/conformance.py --page docs/conformance.md` (`make conformance`) writes this page; do not edit it.
"""
Test = Callable[[], list[onnx_backend.PeltonRep]]  # raises where it is not passed; else what ran


@dataclass
class Count:
    """How the tests of a kind ended."""

    tests: int = 0
    passed: int = 0
    native: int = 0
    refused: int = 0
    failed: int = 0


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument(
        "--kinds", default=",".join(KINDS), help="of tests, the first words of their names; without it all of them"
    )
    ask.add_argument("--match", default="", help="only tests whose name contains this")
    ask.add_argument("--failures", action="store_true", help="list every failure with its reason")
    ask.add_argument("--json", type=Path, help="where the counts and the failures are written")
    ask.add_argument("--page", type=Path, help="where the table is written as a page")
    a = ask.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    kinds = [k for k in KINDS if any(k.startswith(word) for word in a.kinds.split(","))]
    start, counts, failures = time.time(), dict[str, Count](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        # where the suite writes down what the light models are fed
        os.environ["ONNX_MODELS"] = f"{folder}/models"
        for kind in kinds:
            count = counts[kind] = Count()
            for name, test in tests(kind, Options(level=0, cache_dir=f"{folder}/kernels")):
                if a.match in name:
                    reason = judge(test, count)
                    if reason:
                        failures[f"{kind}: {name}"] = reason
                        if a.failures:
                            print(f"{name}: {reason}", flush=True)
            print(
                f"{kind}: {count.passed} of {count.tests} tests pass ({count.native} without a host step),"
                f" {count.refused} are refused with a reason, {count.failed} fail; {time.time() - start:.0f} s so far",
                flush=True,
            )
    if a.json:
        results = {"onnx": onnx.__version__, "kinds": {k: asdict(c) for k, c in counts.items()}, "failures": failures}
        a.json.write_text(json.dumps(results, indent=1) + "\n")
    if a.page:
        a.page.write_text(page(counts, failures))


def tests(kind: str, options: Options) -> Iterator[tuple[str, Test]]:
    """The tests of a kind by name."""
    if kind == "node":
        from onnx.backend.test.case.node import collect_testcases

        for case in collect_testcases(None):
            yield case.name, lambda case=case: node_test(case, options)
        return

    class Noting(onnx_backend.PeltonBackend):
        """Remembers what the test at hand prepared."""

        made: list[onnx_backend.PeltonRep] = []

        @classmethod
        def prepare(cls, model, device="CPU", **_):
            cls.made.append(super().prepare(model, device, options=options))
            return cls.made[-1]

    suite = onnx.backend.test.BackendTest(Noting, __name__).test_cases[f"OnnxBackend{KINDS[kind]}ModelTest"]
    for name in sorted(n for n in vars(suite) if n.startswith("test_") and n.endswith("_cpu")):

        def test(name: str = name) -> list[onnx_backend.PeltonRep]:
            Noting.made.clear()
            with contextlib.redirect_stdout(io.StringIO()):
                getattr(suite(name), name)()
            return Noting.made

        yield name.removesuffix("_cpu"), test


def judge(test: Test, count: Count) -> str:
    """Counts how the test ends; gives the reason where it is not passed."""
    count.tests += 1
    try:
        ran = test()
    except (Error, AssertionError, TypeError, ValueError, NotImplementedError, unittest.SkipTest) as e:
        count.refused += isinstance(e, Error)
        count.failed += not isinstance(e, Error)
        return f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
    count.passed += 1
    count.native += all(not e.meta["host_steps"] for rep in ran for e in rep.engines)
    return ""


def node_test(case, options: Options) -> list[onnx_backend.PeltonRep]:
    rep = onnx_backend.prepare(case.model, options=options)
    for inputs, outputs in case.data_sets:
        got = rep.run([plain(x) for x in inputs])
        for g, w in zip(got, outputs, strict=True):
            if any(case.name.startswith(name) for name in RANDOM):
                drawn(g, plain(w))
            else:
                compare(g, plain(w), case.rtol, case.atol)
    return [rep]


def page(counts: dict[str, Count], failures: dict[str, str]) -> str:
    every = Count(*(sum(column) for column in zip(*(asdict(c).values() for c in counts.values()))))
    rows = [
        f"| {kind} | {c.tests:,} | {c.passed:,} | {c.native:,} ({c.native / max(c.tests, 1):.1%}) | {c.refused:,} |"
        f" {c.failed:,} |"
        for kind, c in (*counts.items(), *([("all", every)] if len(counts) > 1 else []))
    ]
    listed = "".join(f"- {name}: {reason}\n" for name, reason in failures.items())
    return PAGE.format(
        onnx=onnx.__version__, rows="\n".join(rows), refused=f"Not passed:\n\n{listed}\n" if listed else ""
    )


def drawn(got, want) -> None:
    """What is random by specification, with seed or without: shape, element type and the two values that may come."""
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    )
    assert np.isin(got, [0, 1]).all(), "something other than 0 and 1 was drawn"


def plain(x):
    """A test's value as the backend takes it."""
    if isinstance(x, list):
        return [plain(i) for i in x]
    if x is None:
        return None
    return numpy_helper.to_array(x) if hasattr(x, "data_type") else np.asarray(x)


def compare(got, want, rtol: float, atol: float) -> None:
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            compare(g, w, rtol, atol)
    elif want is None:
        assert got is None
    else:
        got = np.asarray(got)
        assert got.dtype == want.dtype and got.shape == want.shape, (
            f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        )
        # as the onnx package's own runner allows
        rtol = max(rtol, 2**-6) if want.dtype.name == "bfloat16" else rtol
        if want.dtype.kind in "OUSb":
            assert (got == want).all()
        else:
            np.testing.assert_allclose(
                got.astype(np.complex128 if want.dtype.kind == "c" else np.float64),
                want.astype(np.complex128 if want.dtype.kind == "c" else np.float64),
                rtol=rtol,
                atol=atol,
            )


if __name__ == "__main__":
    main()
