"""Single passes: folding, merging, siblings and decomposition; input and expected output as text."""

from __future__ import annotations

import numpy as np
import pytest
from pass_harness import QKV, assert_becomes, assert_same, random_constants

from pelton.ir.evaluate import evaluate
from pelton.ir.text import parse
from pelton.passes.decompose import decompose
from pelton.passes.fold import fold_constants, merge_equal
from pelton.passes.rewriting.report import PassReport
from pelton.passes.siblings import sibling_convolutions, sibling_linears, sibling_matmuls


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
    after = sibling_convolutions(random_constants(_inception()), report)
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
    graph = random_constants(_inception(tails))
    found = sibling_convolutions(graph, PassReport(""))
    assert sorted(n.op.name for n in found.nodes) == sorted(after)
    assert_same(graph, found, 1e-12)


def test_sibling_matmuls_and_their_biases_are_one():
    graph, report = random_constants(QKV), PassReport("")
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


def test_siblings_of_few_bits_are_one():
    """Others stay apart: without zero points, or in blocks of another size."""
    graph = random_constants(
        "graph main(%x: f32[2, 64]) {"
        "  %a = constant u8[8, 32]  %b = constant u8[6, 32]  %sa = constant f32[8, 2]  %sb = constant f32[6, 2]"
        "  %za = constant u8[8, 2]  %zb = constant u8[6, 2]  %sc = constant f32[8, 4]"
        "  %p = quantized_linear(%x, %a, %sa, %za) {block=32, bits=4}"
        "  %q = quantized_linear(%x, %b, %sb, %zb) {block=32, bits=4}"
        "  %r = quantized_linear(%x, %a, %sa) {block=32, bits=4}"
        "  %s = quantized_linear(%x, %a, %sc) {block=16, bits=4}"
        "  return %p, %q, %r, %s }"
    )
    report = PassReport("")
    after = sibling_linears(graph, report)
    products = [n for n in after.nodes if n.op.name == "quantized_linear"]
    assert sorted(n.output.type.shape[1] for n in products) == [8, 8, 14]
    assert len(report.fired["sibling_linears"]) == 1
    assert_same(graph, after, 1e-12)


def test_siblings_of_one_table_are_one():
    table = tuple(i / 8 for i in range(16))
    graph = random_constants(
        "graph main(%x: f32[2, 64]) {"
        "  %a = constant u8[8, 32]  %b = constant u8[6, 32]  %sa = constant f32[8, 2]  %sb = constant f32[6, 2]"
        f"  %p = codebook_linear(%x, %a, %sa) {{block=32, table={table}}}"
        f"  %q = codebook_linear(%x, %b, %sb) {{block=32, table={table}}}"
        f"  %r = codebook_linear(%x, %b, %sb) {{block=32, table={table[::-1]}}}"
        "  return %p, %q, %r }"
    )
    after = sibling_linears(graph, PassReport(""))
    products = [n for n in after.nodes if n.op.name == "codebook_linear"]
    assert sorted(n.output.type.shape[1] for n in products) == [6, 14]
    assert_same(graph, after, 1e-12)


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
    graph = random_constants(
        "graph main(%x: f32[2, 3, 4]) { %s = constant f32[3]  %v = exp(%s)  %y = batch_norm(%x, %s, %s, %s, %v)  return"
        " %y }"
    )
    after = decompose(fold_constants(graph, PassReport("")), lambda graph, node: False)
    assert [n.op.name for n in after.nodes] == ["sub", "mul", "add"]
    assert_same(graph, after, 1e-6)
