"""The passes: before and expected as text, whole pipelines on random programs, and what is reported."""

from __future__ import annotations

import re

import numpy as np
import pytest
from random_programs import Programs

from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, with_sizes, symbols
from pelton.ir.text import key, parse, to_text
from pelton.ir.types import DType
from pelton.ir.verify import verify
from pelton.passes.decompose import decompose
from pelton.passes.fold import fold_constants, merge_equal
from pelton.passes.precision.lower_precision import lower_precision
from pelton.passes.pipeline import PIPELINE, run
from pelton.passes.rewriting.report import PassReport
from pelton.passes.siblings import sibling_convolutions, sibling_matmuls
from pelton.passes.precision.tf32 import nearest, round_weights


def assert_becomes(after: Graph, expected: str) -> None:
    """Equal up to the names of values and the elements of large constants."""
    verify(after)
    wanted = parse(expected)
    assert key(after) == key(wanted), f"got\n{to_text(after, data=True)}\nexpected\n{to_text(wanted, data=True)}"


def assert_same(before: Graph, after: Graph, tolerance: float) -> None:
    verify(after)
    assert [v.name for v in before.inputs] == [v.name for v in after.inputs] and [v.name for v in before.outputs] == [
        v.name for v in after.outputs
    ]
    rng = np.random.default_rng(3)
    inputs = {v.name: rng.uniform(-2, 2, v.type.shape).astype(v.type.dtype.numpy) for v in before.inputs}
    wanted, found = evaluate(before, inputs, round=False), evaluate(after, inputs, round=False)
    for name, w in wanted.items():
        np.testing.assert_allclose(
            found[name], w, rtol=0, atol=tolerance * max(1.0, np.abs(w).max(initial=0)), err_msg=name
        )


# --- constants, equal things, dead code


def test_constants_are_folded():
    graph = parse("""graph main(%x: f32[3]) {
      %a = constant f32[3] [1.0, 2.0, 3.0]
      %b = constant f32[] 0.5
      %c = mul(%a, %b) "scaled"
      %d = reshape(%c) {shape=(1, 3)}
      %y = add(%x, %d)
      return %y }""")
    report = PassReport("")
    after = fold_constants(graph, report)
    assert_becomes(after, "graph main(%x: f32[3]) { %d = constant f32[1, 3]  %y = add(%x, %d)  return %y }")
    assert report.fired == {"constant": ["scaled", "%d"]}
    (folded,) = after.constants.values()
    assert folded.tolist() == [[0.5, 1.0, 1.5]]


@pytest.mark.parametrize(
    "line", ["%c = matmul(%a, %a)", "%c = expand(%a) {shape=(1000, 300, 3, 3)}", "%c, %i = top_k(%x) {k=1, axis=1}"]
)
def test_products_large_results_and_what_is_not_constant_stay(line):
    graph = parse(f"graph main(%x: f32[3, 3]) {{ %a = constant f32[3, 3]  {line}  %y = add(%x, %c)  return %y }}")
    assert fold_constants(graph, PassReport("")) is graph


def test_a_constant_output_is_folded_under_its_name():
    after = fold_constants(parse("graph main() { %a = constant f32[] 4.0  %y = sqrt(%a)  return %y }"), PassReport(""))
    assert evaluate(after, {}) == {"y": 2.0} and not after.nodes


def test_equal_nodes_and_constants_are_merged():
    graph = parse("""graph main(%x: f32[3], %z: f32[3]) {
      %one = constant f32[3] [1.0, 2.0, 3.0]
      %two = constant f32[3] [1.0, 2.0, 3.0]
      %a = add(%x, %one) "left"
      %b = add(%two, %x) "right"
      %c = sub(%x, %z)
      %d = sub(%z, %x)
      %e = mul(%a, %c)
      %f = mul(%b, %d)
      %y = add(%e, %f)
      return %y }""")
    report = PassReport("")
    after = merge_equal(graph, report)
    assert_becomes(
        after,
        """graph main(%x: f32[3], %z: f32[3]) {
      %one = constant f32[3]
      %a = add(%x, %one)
      %c = sub(%x, %z)
      %d = sub(%z, %x)
      %e = mul(%a, %c)
      %f = mul(%a, %d)
      %y = add(%e, %f)
      return %y }""",
    )
    assert report.fired == {"equal": ["left+right"]} and len(after.constants) == 1


def test_equal_outputs_and_random_foreign_ops_stay_apart():
    graph = parse("graph main(%x: f32[3]) { %y = relu(%x)  %z = relu(%x)  return %y, %z }")
    assert len(merge_equal(graph, PassReport("")).nodes) == 2


def test_large_constants_that_differ_in_one_element_are_not_equal():
    a = np.ones((100, 100), np.float32)
    b = a.copy()
    b[17, 3] = 2
    text = (
        "graph main(%x: f32[100, 100]) { %a = constant f32[100, 100]  %b = constant f32[100, 100]  %c = add(%x, %a)  %y"
        " = add(%c, %b)  return %y }"
    )
    assert len(merge_equal(parse(text, {"a": a, "b": b}), PassReport("")).constants) == 2
    assert len(merge_equal(parse(text, {"a": a, "b": a.copy()}), PassReport("")).constants) == 1


# --- siblings


def _inception(tails: tuple[str, str] = ("relu(%a)", "relu(%b)")) -> str:
    return f"""graph main(%x: f32[1, 4, 5, 5]) {{
      %w1 = constant f32[3, 4, 1, 1]
      %b1 = constant f32[3]
      %w2 = constant f32[2, 4, 1, 1]
      %b2 = constant f32[2]
      %w3 = constant f32[2, 4, 3, 3]
      %six = constant f32[] 6.0
      %one = constant f32[] 1.0
      %row = constant f32[5]
      %a = convolution(%x, %w1, %b1) {{strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)}} "one"
      %b = convolution(%x, %w2, %b2) {{strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)}} "two"
      %c = convolution(%x, %w3, %b2) {{strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)}} "three"
      %d = {tails[0]}
      %e = {tails[1]}
      return %d, %e, %c }}"""


def test_sibling_convolutions_and_their_equal_tails_are_one():
    report = PassReport("")
    after = sibling_convolutions(_random_constants(_inception()), report)
    assert_becomes(
        after,
        """graph main(%x: f32[1, 4, 5, 5]) {
      %w = constant f32[5, 4, 1, 1]
      %b = constant f32[5]
      %a = convolution(%x, %w, %b) {strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)}
      %r = relu(%a)
      %w3 = constant f32[2, 4, 3, 3]
      %b2 = constant f32[2]
      %c = convolution(%x, %w3, %b2) {strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)}
      %d = slice(%r) {starts=(0,), ends=(3,), axes=(1,), steps=(1,)}
      %e = slice(%r) {starts=(3,), ends=(5,), axes=(1,), steps=(1,)}
      return %d, %e, %c }""",
    )
    assert report.fired == {"sibling_convolutions": ["one+two"]}
    assert "another kernel" in report.rejected["sibling_convolutions"]["three"]


@pytest.mark.parametrize(
    "tails, after",
    [
        (("relu(%a)", "tanh(%b)"), ["convolution", "convolution", "convolution", "relu", "tanh"]),
        (("minimum(%a, %six)", "minimum(%six, %b)"), ["convolution", "minimum", "convolution", "slice", "slice"]),
        (
            ("clip(%a, %six, %six)", "clip(%b, %one, %six)"),
            ["convolution", "convolution", "slice", "slice", "clip", "clip"],
        ),
        (("mul(%a, %row)", "mul(%b, %row)"), ["convolution", "convolution", "slice", "slice", "mul", "mul"]),
        (("mul(%a, %six)", "mul(%one, %b)"), ["convolution", "mul", "convolution", "slice", "slice"]),
    ],
)
def test_tails_that_differ_stay_apart(tails, after):
    """Limits of a clip are numbers, and a constant along the width is none along the channels."""
    graph = _random_constants(_inception(tails))
    found = sibling_convolutions(graph, PassReport(""))
    assert sorted(n.op.name for n in found.nodes) == sorted(after)
    assert_same(graph, found, 1e-12)


def _random_constants(text: str) -> Graph:
    """The program with random elements for the constants that the text gives none for."""
    graph, rng = parse(text), np.random.default_rng(0)
    return graph.replace(
        constants={
            v: a if a.any() else rng.uniform(-1, 1, v.type.shape).astype(v.type.dtype.numpy)
            for v, a in graph.constants.items()
        }
    )


QKV = """graph main(%x: f32[2, 5, 8]) {
  %wq = constant f32[8, 8]
  %wk = constant f32[8, 8]
  %wv = constant f32[8, 6]
  %bq = constant f32[8]
  %bk = constant f32[8]
  %bv = constant f32[6]
  %q = matmul(%x, %wq) "query/matmul"
  %k = matmul(%x, %wk) "key/matmul"
  %v = matmul(%x, %wv) "value/matmul"
  %qb = add(%q, %bq) "query/add"
  %kb = add(%bk, %k) "key/add"
  %vb = add(%v, %bv) "value/add"
  return %qb, %kb, %vb }"""


def test_sibling_matmuls_and_their_biases_are_one():
    graph, report = _random_constants(QKV), PassReport("")
    after = sibling_matmuls(graph, report)
    assert_becomes(
        after,
        """graph main(%x: f32[2, 5, 8]) {
      %w = constant f32[8, 22]
      %m = matmul(%x, %w)
      %b = constant f32[22]
      %a = add(%m, %b)
      %q = slice(%a) {starts=(0,), ends=(8,), axes=(2,), steps=(1,)}
      %k = slice(%a) {starts=(8,), ends=(16,), axes=(2,), steps=(1,)}
      %v = slice(%a) {starts=(16,), ends=(22,), axes=(2,), steps=(1,)}
      return %q, %k, %v }""",
    )
    assert report.fired == {"sibling_matmuls": ["query/matmul+key/matmul+value/matmul"]}
    assert [n.name for n in after.nodes[:2]] == ["query/matmul+key/matmul+value/matmul", "query/add+key/add+value/add"]
    assert_same(graph, after, 1e-12)
    assert sibling_matmuls(after, PassReport("")) is after


# --- pieces of networks through the whole pipeline


def test_a_residual_block():
    graph = _random_constants("""graph main(%x: f32[1, 4, 6, 6]) {
      %w = constant f32[4, 4, 3, 3]
      %b = constant f32[4]
      %s = constant f32[4]
      %var = exp(%s)
      %a = convolution(%x, %w, %b) {strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)} "conv1"
      %n = batch_norm(%a, %s, %b, %s, %var) "bn1"
      %r = relu(%n)
      %y = add(%r, %x)
      return %y }""")
    after, report = run(graph)
    assert_becomes(
        after,
        """graph main(%x: f32[1, 4, 6, 6]) {
      %w = constant f32[4, 4, 3, 3]
      %b = constant f32[4]
      %a = convolution(%x, %w, %b) {strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)}
      %r = relu(%a)
      %y = add(%r, %x)
      return %y }""",
    )
    assert report.fired()["conv_batch_norm"] == ["conv1+bn1"] and after.nodes[0].name == "conv1+bn1"
    assert_same(graph, after, 1e-5)


def test_attention_as_exported():
    """Keys are transposed along with their heads; the scale divides; the mask is added; the GELU is spelled out."""
    graph = _random_constants("""graph main(%x: f32[2, 5, 8], %mask: f32[2, 1, 1, 5]) {
      %wq = constant f32[8, 8]
      %wk = constant f32[8, 8]
      %wv = constant f32[8, 8]
      %b = constant f32[8]
      %two = constant f32[1] [2.0]
      %root = constant f32[] 1.4142135
      %one = constant f32[] 1.0
      %half = constant f32[] 0.5
      %q0 = matmul(%x, %wq)
      %q1 = add(%q0, %b)
      %q2 = reshape(%q1) {shape=(2, 5, 2, 4)}
      %q = transpose(%q2) {perm=(0, 2, 1, 3)}
      %k0 = matmul(%x, %wk)
      %k1 = add(%b, %k0)
      %k2 = reshape(%k1) {shape=(2, 5, 2, 4)}
      %kt = transpose(%k2) {perm=(0, 2, 3, 1)}
      %v0 = matmul(%x, %wv)
      %v1 = add(%v0, %b)
      %v2 = reshape(%v1) {shape=(2, 5, 2, 4)}
      %v = transpose(%v2) {perm=(0, 2, 1, 3)}
      %s0 = matmul(%q, %kt)
      %s1 = div(%s0, %two)
      %s2 = add(%s1, %mask)
      %p = softmax(%s2) {axis=3}
      %h = matmul(%p, %v)
      %g0 = div(%h, %root)
      %g1 = erf(%g0)
      %g2 = add(%g1, %one)
      %g3 = mul(%h, %g2)
      %y = mul(%g3, %half)
      return %y }""")
    after, _ = run(graph)
    assert_becomes(
        after,
        """graph main(%x: f32[2, 5, 8], %mask: f32[2, 1, 1, 5]) {
      %w = constant f32[8, 24]
      %m = matmul(%x, %w)
      %b = constant f32[24]
      %a = add(%m, %b)
      %q0 = slice(%a) {starts=(0,), ends=(8,), axes=(2,), steps=(1,)}
      %q1 = reshape(%q0) {shape=(2, 5, 2, 4)}
      %q = transpose(%q1) {perm=(0, 2, 1, 3)}
      %k0 = slice(%a) {starts=(8,), ends=(16,), axes=(2,), steps=(1,)}
      %k1 = reshape(%k0) {shape=(2, 5, 2, 4)}
      %v0 = slice(%a) {starts=(16,), ends=(24,), axes=(2,), steps=(1,)}
      %v1 = reshape(%v0) {shape=(2, 5, 2, 4)}
      %v = transpose(%v1) {perm=(0, 2, 1, 3)}
      %k = transpose(%k1) {perm=(0, 2, 1, 3)}
      %h = attention(%q, %k, %v, %mask) {scale=0.5}
      %y = gelu(%h)
      return %y }""",
    )
    assert_same(graph, after, 1e-6)


def test_rotary_embedding_as_exported():
    """Angles are positions times frequencies, written twice; the halves of a head's first part are turned, its rest is
    handed through."""
    graph = _random_constants("""graph main(%x: f32[1, 5, 32], %positions: i64[1, 5]) {
      %frequencies = constant f32[1, 3, 1]
      %p0 = reshape(%positions) {shape=(1, 1, 5)}
      %p1 = cast(%p0) {to=f32}
      %f0 = matmul(%frequencies, %p1)
      %f1 = transpose(%f0) {perm=(0, 2, 1)}
      %f2 = concat(%f1, %f1) {axis=2}
      %c0 = cos(%f2)
      %c = reshape(%c0) {shape=(1, 1, 5, 6)}
      %s0 = sin(%f2)
      %s = reshape(%s0) {shape=(1, 1, 5, 6)}
      %h0 = reshape(%x) {shape=(1, 5, 2, 16)}
      %h = transpose(%h0) {perm=(0, 2, 1, 3)}
      %q = slice(%h) {starts=(0,), ends=(8,), axes=(3,), steps=(1,)}
      %q1 = slice(%q) {starts=(0,), ends=(6,), axes=(3,), steps=(1,)}
      %q2 = slice(%q) {starts=(6,), ends=(8,), axes=(3,), steps=(1,)}
      %a = slice(%q1) {starts=(0,), ends=(3,), axes=(3,), steps=(1,)}
      %b = slice(%q1) {starts=(3,), ends=(6,), axes=(3,), steps=(1,)}
      %n = neg(%b)
      %r = concat(%n, %a) {axis=3}
      %u = mul(%q1, %c)
      %v = mul(%r, %s)
      %t = add(%u, %v)
      %y = concat(%t, %q2) {axis=3}
      return %y }""")
    after, report = run(graph)
    assert_becomes(
        after,
        """graph main(%x: f32[1, 5, 32], %positions: i64[1, 5]) {
      %p0 = reshape(%positions) {shape=(1, 1, 5)}
      %p1 = cast(%p0) {to=f32}
      %frequencies = constant f32[3, 1]
      %f0 = mul(%frequencies, %p1)
      %f1 = transpose(%f0) {perm=(0, 2, 1)}
      %h0 = reshape(%x) {shape=(1, 5, 2, 16)}
      %h = transpose(%h0) {perm=(0, 2, 1, 3)}
      %c0 = cos(%f1)
      %c = reshape(%c0) {shape=(1, 1, 5, 3)}
      %s0 = sin(%f1)
      %s = reshape(%s0) {shape=(1, 1, 5, 3)}
      %q = slice(%h) {starts=(0,), ends=(8,), axes=(3,), steps=(1,)}
      %y = rotary(%q, %c, %s)
      return %y }""",
    )
    assert {"rotary_halves", "rotary_part"} <= report.fired().keys()
    assert_same(graph, after, 1e-6)


def test_strict_keeps_the_rounding():
    graph = parse("graph main(%x: f32[3]) { %c = constant f32[] 0.3  %y = div(%x, %c)  return %y }")
    assert [n.op.name for n in run(graph)[0].nodes] == ["mul"]
    assert [n.op.name for n in run(graph, strict=True)[0].nodes] == ["div"]


def test_the_report_counts_and_observers_see_every_pass():
    graph, seen = _random_constants(QKV), []
    after, report = run(graph, see=lambda name, g: seen.append((name, len(g.nodes))))
    assert [name for name, _ in seen] == [name for name, _ in PIPELINE] == [p.name for p in report.passes]
    assert (
        [p.after for p in report.passes] == [n for _, n in seen]
        and report.passes[0].before == 6
        and report.passes[-1].after == len(after.nodes) == 5
    )
    assert re.search(r"sibling matmuls: 6 → 5 nodes \(sibling_matmuls 1×\)", str(report))


def test_what_a_later_pass_does_is_no_refusal():
    graph = parse("""graph main(%x: f32[1, 1, 4, 4], %w: f32[1, 1, 1, 1]) {
      %b = constant f32[1]
      %s = constant f32[1] [1.0]
      %a = convolution(%x, %w, %b) {strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)}
      %n = batch_norm(%a, %s, %b, %b, %s) "bn"
      return %n }""")
    after, report = run(graph)
    assert [n.op.name for n in after.nodes] == ["convolution", "mul"]
    assert (
        "conv_batch_norm" not in report.rejected()
        and "weights are not constant" in report.rejected()["conv_scale"]["bn"]
    )


# --- composites


def test_composites_nobody_keeps_are_written_out():
    graph = parse(
        'graph main(%q: f32[2, 3, 4], %m: f32[]) { %a = attention(%q, %q, %q, %m) {scale=0.5, causal=true} "att"'
        '  %g = constant f32[4]  %y = layer_norm(%a, %g, %g) {axis=2} "ln"  return %y }'
    )
    after = decompose(graph, lambda graph, node: False)
    assert not any(n.op.kind == "composite" for n in after.nodes) and {n.name for n in after.nodes} == {"att", "ln"}
    assert_same(graph, after, 1e-6)
    kept = decompose(graph, lambda graph, node: node.op.name == "attention")
    assert [n.op.name for n in kept.nodes if n.op.kind == "composite"] == ["attention"]
    assert decompose(graph, lambda graph, node: True) is graph


def test_constants_inside_of_expansions_are_computed():
    graph = _random_constants(
        "graph main(%x: f32[2, 3, 4]) { %s = constant f32[3]  %v = exp(%s)  %y = batch_norm(%x, %s, %s, %s, %v)  return"
        " %y }"
    )
    after = decompose(fold_constants(graph, PassReport("")), lambda graph, node: False)
    assert [n.op.name for n in after.nodes] == ["sub", "mul", "add"]
    assert_same(graph, after, 1e-6)


# --- narrow values


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


# --- random programs


@pytest.mark.parametrize("seed", range(150))
def test_random_programs_keep_their_meaning(seed):
    graph = Programs(seed).graph(4 + seed % 20)
    verify(graph)
    after, _ = run(graph)
    assert_same(graph, after, 1e-9)
    again, report = run(after)
    assert not report.fired(), f"seed {seed}: the second run still does something: {report}"
    assert to_text(again) == to_text(after)


@pytest.mark.parametrize("seed", range(100))
def test_random_programs_keep_their_meaning_for_all_sizes(seed):
    graph = Programs(seed, dynamic=True).graph(6 + seed % 20)
    verify(graph)
    assert symbols(graph)
    after, _ = run(graph)
    verify(after)
    for more in (0, 1, 4):
        sizes = {s.name: s.optimum + more for s in symbols(graph)}
        assert_same(with_sizes(graph, sizes)[0], with_sizes(after, sizes)[0], 1e-9)
    again, report = run(after)
    assert not report.fired(), f"seed {seed}: the second run still does something: {report}"
