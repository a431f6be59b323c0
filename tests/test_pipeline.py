"""The whole pipeline: pieces of networks, its report, and random programs, which keep their meaning."""

from __future__ import annotations

import re

import pytest
from pass_harness import QKV, assert_becomes, assert_same, random_constants
from random_programs import Programs

from pelton.ir.graph import with_sizes, symbols
from pelton.ir.text import parse, to_text
from pelton.ir.verify import verify
from pelton.passes.pipeline import PIPELINE, run


def test_a_residual_block():
    graph = random_constants("""graph main(%x: f32[1, 4, 6, 6]) {
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
    graph = random_constants("""graph main(%x: f32[2, 5, 8], %mask: f32[2, 1, 1, 5]) {
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
    graph = random_constants("""graph main(%x: f32[1, 5, 32], %positions: i64[1, 5]) {
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
    graph, seen = random_constants(QKV), []
    after, report = run(graph, observe=lambda name, g: seen.append((name, len(g.nodes))))
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
