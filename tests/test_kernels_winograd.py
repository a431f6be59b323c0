"""Winograd convolutions of images with a wide range: an output must not depend on pixels outside its window."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import Case, program, region_of
from kernel_harness import TARGETS, linked
from kernel_memory import laid, run_kernel

from pelton.codegen.template import TEMPLATES
from pelton.ir.types import F16

LEAST = 1e-30  # a window of zeros


def convolution(shape, filters, pads=(1, 1, 1, 1), seed=0):
    """A case of a convolution of 3 × 3 with random filters, and these."""
    w = np.random.default_rng(seed).standard_normal((filters, shape[1], 3, 3)).astype(np.float32)
    w /= np.float32(3 * np.sqrt(shape[1]))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": pads}
    text = f"f32[{', '.join(map(str, shape))}]"
    return Case("wide", program(("y", "convolution", "x w b", attrs), x=text, w=w, b=np.zeros(filters, np.float32))), w


def windows(x, pads, reduce):
    """Of each output's window, `reduce` of all pixels and channels: [N, OH, OW]."""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return reduce(seen, (1, 4, 5))


def by_definition(x, w, pads):
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(np.float64)
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    with np.errstate(invalid="ignore"):
        return np.einsum("nchwij,ocij->nohw", seen, w.astype(np.float64))


def one(value):
    def change(x, r):
        x[tuple(r.integers(0, d) for d in x.shape)] = value

    return change


def half(value):
    """A part of the image, in all channels, as a mask is."""

    def change(x, r):
        x[:, :, :, : r.integers(1, x.shape[3])] = value

    return change


def scattered(*values):
    def change(x, r):
        pixels = r.random((x.shape[0], *x.shape[2:])) < 0.04
        x.transpose(0, 2, 3, 1)[pixels] = r.choice(np.array(values, np.float32), (pixels.sum(), x.shape[1]))

    return change


def quiet(x, r):
    """A part of the image is far below the rest, and rectified."""
    x[:, :, r.integers(1, x.shape[2]) :] *= np.float32(1e-5)
    np.maximum(x, 0, out=x)


CHANGES = {
    "nan": one(np.nan),
    "inf": one(np.inf),
    "-inf": one(-np.inf),
    "1e6": one(1e6),
    "1e38": one(1e38),  # overflows as it is transformed
    "mask": half(-1e9),
    "depth": half(np.inf),
    "dropouts": scattered(1e6, -1e6),
    "broken": scattered(np.nan, np.inf, 0),
    "same dropouts": scattered(65504),
    "quiet": quiet,
}
SHAPES = [((1, 9, 13, 11), 19, (1, 1, 1, 1)), ((2, 32, 15, 7), 16, (0, 1, 1, 0)), ((1, 17, 6, 23), 40, (1, 1, 1, 1))]


# Errors as shares of the largest value that an output sees; that of F(2×2) by rounded filters is theirs.
SHARES = {
    ("winograd", 2): 1e-5,
    ("winograd", 4): 1e-4,
    ("winograd", 6): 4e-4,
    ("winograd_half", 2): 2e-3,
    ("winograd_half", 4): 4e-3,
}


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("name, f", SHARES)
@pytest.mark.parametrize(
    "shape, filters, pads", SHAPES, ids=lambda v: "x".join(map(str, v)) if type(v) is tuple else ""
)
def test_outputs_do_not_feel_what_they_do_not_see(isa, name, f, shape, filters, pads):
    """Against the sums in f64, to a share of the largest value in the window of an output."""
    case, w = convolution(shape, filters, pads)
    template, target, region = TEMPLATES[name], replace(TARGETS[isa], half=F16), region_of(case.graph)
    layouts = laid(template, region, case, 0)
    tactic = next(t for t in template.tactics(region, layouts, target) if t["F"] == f)
    kernel = template.emit(region, layouts, tactic, target)
    code = linked([kernel], target)
    (y,) = region.body.outputs
    for what, change in CHANGES.items():
        r = np.random.default_rng([ord(c) for c in f"{what} {f} {shape}"])
        x = r.standard_normal(shape).astype(np.float32)
        change(x, r)
        about = f"{what} by {tactic}"
        got = run_kernel(region, kernel, code, layouts, {"x": x}, about, behind=True, tiles="whole")[y]
        want = by_definition(x, w, pads)
        sees_all = np.isfinite(want).all(1) & (np.abs(want).max(1, initial=0) < np.finfo(np.float32).max)
        assert (np.isfinite(got).all(1) == sees_all).all(), f"{what}: other outputs are not finite"
        largest = np.maximum(windows(np.abs(x), pads, np.max), LEAST)
        pixels = (values.transpose(0, 2, 3, 1)[sees_all] for values in (got, want))
        off = np.abs(np.subtract(*pixels)).max(1, initial=0) / largest[sees_all]
        assert off.max(initial=0) <= SHARES[name, f], (
            f"{what}: off by {off.max():.1e} of the largest that an output sees"
        )
