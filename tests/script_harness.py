"""Builds engines of models with data-dependent control flow, and compares their outputs with the onnx package."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from script_models import MODELS

import pelton


def builder(cache: Path) -> Callable[..., pelton.Engine]:
    """Builds models at level 0, with options of `pelton.build`."""
    return functools.partial(pelton.build, level=0, cache_dir=cache)


def by_name(build: Callable[[onnx.ModelProto], pelton.Engine]) -> Callable[[str], pelton.Engine]:
    """Gives the engine of one of MODELS by its name, built once."""
    return functools.cache(lambda name: build(MODELS[name]()[0]))


def same(found: dict, m: onnx.ModelProto, feeds: dict) -> None:
    """Asserts that the outputs found are those of the onnx package."""
    try:
        expected = dict(zip((o.name for o in m.graph.output), ReferenceEvaluator(m).run(None, feeds)))
    except RuntimeError:
        # the package scans forwards only; known lengths are written out
        expected = pelton.build(m, level=0, shapes={name: a.shape for name, a in feeds.items()}).run(feeds)
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        got, want = found[name], np.asarray(want)
        types = f"{name}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
        assert got.dtype == want.dtype and got.shape == want.shape, types
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
