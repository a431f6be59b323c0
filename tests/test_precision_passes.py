"""Passes that choose element types: values that stay exact, and weights as TF32."""

from __future__ import annotations

import numpy as np

from pelton.ir.evaluate import evaluate
from pelton.ir.text import parse
from pelton.ir.types import DType
from pelton.ir.verify import verify
from pelton.passes.precision.lower_precision import lower_precision
from pelton.passes.precision.tf32 import nearest, round_weights


def test_places_and_angles_and_what_becomes_an_integer_are_not_rounded():
    """Corners of boxes at 700 pixels, angles of thousands, rows counted in floats: as f16 they would be half a pixel, a
    radian or a row away."""
    graph = parse("""graph main(%x: f32[1, 1, 1024, 4], %at: f32[3, 4], %t: f32[5]) {
        %far = constant f32[4]  %each = constant f32[5]  %n = constant i64[3]
        %boxes = add(%at, %far)
        %r = roi_align(%x, %boxes, %n) {height=2, width=1, samples=2}
        %angles = mul(%t, %each)
        %s = sin(%angles)
        %rows = cast(%angles) {to=i64}
        %z = mul(%each, %t)
        return %r, %s, %rows, %z }""")
    far, each, n = graph.constants
    graph = graph.replace(
        constants={
            far: np.array([0, 700.3, 2, 701.9], np.float32),
            each: np.float32([2100.6, 1100.3, 3001.7, 2049.5, 5.25]),
            n: np.zeros(3, np.int64),
        }
    )
    feeds = {
        "x": np.arange(4096, dtype=np.float32).reshape(1, 1, 1024, 4) % 128,
        "at": np.float32(np.random.default_rng().uniform(0, 3, (3, 4))),
        "t": np.float32([1, 1, 1, 1, 1]),
    }
    want, got = evaluate(graph, feeds, round=False), evaluate(lower_precision(graph, DType.F16), feeds)
    verify(lower_precision(graph, DType.F16))
    for name, tolerance in (("r", 0.1), ("s", 1e-3), ("rows", 0), ("z", 2)):
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=tolerance)
    kinds = {v.name: v.type.dtype for node in lower_precision(graph, DType.F16).nodes for v in node.outputs}
    assert kinds["boxes"] is kinds["angles"] is DType.F32 and DType.F16 in kinds.values()


def test_sums_of_integers_are_not_rounded_before_they_are_scaled():
    graph = parse("""graph main(%x: u8[3, 700], %z: f32[1]) {
        %w = constant i8[700, 5]  %s = constant f32[5]
        %y = matmul(%x, %w) {accumulate=i32}
        %f = cast(%y) {to=f32}
        %g = sub(%f, %z)
        %a = mul(%g, %s)
        %b = add(%a, %s)
        return %b }""")
    w, s = graph.constants
    graph = graph.replace(constants={w: np.full((700, 5), 127, np.int8), s: np.float32([1, 2, 3, 4, 5]) * 1e-5})
    feeds = {"x": np.full((3, 700), 255, np.uint8), "z": np.float32([1e5])}
    low = lower_precision(graph, DType.F16)
    np.testing.assert_allclose(evaluate(low, feeds)["b"], evaluate(graph, feeds)["b"], rtol=1e-3)
    kinds = {v.name: v.type.dtype for node in low.nodes for v in node.outputs}
    assert kinds["f"] is kinds["g"] is kinds["a"] is DType.F32 and DType.F16 in kinds.values()
    assert {v.type.dtype for v in low.constants if v.type.shape == (5,)} == {DType.F16, DType.F32}  # no cast in a run


def test_weights_of_tf32_are_the_nearest():
    graph = parse("""graph main(%x: f32[2, 3, 5, 5], %a: f32[4, 6]) {
        %w = constant f32[4, 3, 3, 3]  %b = constant f32[4]  %m = constant f32[6, 6]
        %y = convolution(%x, %w, %b) {dilations=(1, 1), group=1, pads=(0, 0, 0, 0), strides=(1, 1)}
        %z = matmul(%a, %m)
        %p = matmul(%m, %m)
        %q = add(%z, %a)
        %r = mul(%p, %m)
        return %y, %q, %r }""")
    rng = np.random.default_rng()
    graph = graph.replace(
        constants={v: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.constants}
    )
    after = round_weights(graph)
    verify(after)
    # m is also an operand of a multiplication
    assert {v.name for v in after.constants} == {"w_tf32", "b", "m", "m_tf32"}
    held, given = ({v.name: a for v, a in g.constants.items()} for g in (after, graph))
    for name in ("w", "m"):
        rounded = held[name + "_tf32"]
        assert not (rounded.view(np.uint32) & 0x1FFF).any() and rounded.dtype == np.float32
        off = np.abs(rounded - given[name].astype(np.float64))
        assert (off <= 2.0**-12 * 2.0 ** np.ceil(np.log2(np.abs(given[name])))).all() and off.any()
    assert nearest(np.float32([np.inf, -np.inf, 0, 1 + 2**-11, 1 + 3 * 2**-11])).tolist() == [
        np.inf,
        -np.inf,
        0,
        1,
        1 + 2**-9,
    ]
    assert np.isnan(nearest(np.uint32([0x7FFFFFFF]).view(np.float32))).all()
