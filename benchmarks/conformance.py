#!/usr/bin/env python3
"""Counts how many of the onnx package's node tests pass, and how many of them without a host step: conformance.py [--failures] [--match PART]"""
import argparse
import collections
import logging
import tempfile
import time
import warnings

import numpy as np
from onnx import numpy_helper

from pelton import onnx_backend
from pelton.errors import Error
from pelton.options import Options

RANDOM = ("test_bernoulli",)                       # "the generator operator is non-deterministic", say these tests themselves


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--failures", action="store_true", help="list every failure with its reason")
    ask.add_argument("--match", default="", help="only tests whose name contains this")
    a = ask.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from onnx.backend.test.case.node import collect_testcases
    cases = [c for c in collect_testcases(None) if a.match in c.name]
    outcome: collections.Counter[str] = collections.Counter()
    native = 0
    start = time.time()
    with tempfile.TemporaryDirectory() as cache:
        for case in cases:
            try:
                rep = onnx_backend.prepare(case.model, options=Options(level=0, cache_dir=cache))
                for inputs, outputs in case.data_sets:
                    got = rep.run([plain(x) for x in inputs])
                    for g, w in zip(got, outputs, strict=True):
                        if any(case.name.startswith(name) for name in RANDOM):
                            drawn(g, plain(w))
                        else:
                            compare(g, plain(w), case.rtol, case.atol)
                outcome["passed"] += 1
                native += all(not e.meta["host_steps"] for e in rep.engines)
            except (Error, AssertionError, TypeError, ValueError, NotImplementedError) as e:
                outcome["refused" if isinstance(e, Error) else "failed"] += 1
                if a.failures:
                    print(f"{case.name}: {type(e).__name__}: {' '.join(str(e).split())[:200]}", flush=True)
    print(f"{outcome['passed']} of {len(cases)} node tests pass ({native} without a host step), {outcome['refused']} are refused with a reason, "
          f"{outcome['failed']} fail; {time.time() - start:.0f} s")


def drawn(got, want) -> None:
    """What is random by specification, with seed or without: shape, element type and the two values that may come."""
    assert got.dtype == want.dtype and got.shape == want.shape, f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    assert np.isin(got, [0, 1]).all(), "something other than 0 and 1 was drawn"


def plain(x):
    """A test's value as the backend takes it."""
    if isinstance(x, list):
        return [plain(i) for i in x]
    return numpy_helper.to_array(x) if hasattr(x, "data_type") else np.asarray(x) if x is not None else None


def compare(got, want, rtol: float, atol: float) -> None:
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            compare(g, w, rtol, atol)
    elif want is None:
        assert got is None
    else:
        got = np.asarray(got)
        assert got.dtype == want.dtype and got.shape == want.shape, f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        rtol = max(rtol, 2**-6) if want.dtype.name == "bfloat16" else rtol          # as the onnx package's own runner allows
        if want.dtype.kind in "OUSb":
            assert (got == want).all()
        else:
            np.testing.assert_allclose(got.astype(np.complex128 if want.dtype.kind == "c" else np.float64),
                                       want.astype(np.complex128 if want.dtype.kind == "c" else np.float64), rtol=rtol, atol=atol)


if __name__ == "__main__":
    main()
