"""The rewriting engine: pattern matching, valid results of rules, and reports of rejections."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pass_harness import assert_same_in_float64

from pelton.errors import BuildError
from pelton.ir.text import parse
from pelton.ir.types import TensorType
from pelton.ops import get
from pelton.passes import pipeline  # noqa: F401  (declares all rules)
from pelton.passes.rewriting.example import program
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import RULES, Rule, is_constant, require, rewrite, rule, scalar, when
from pelton.ops.words import (
    add,
    batch_norm,
    clip,
    concat,
    convolution,
    copy,
    mul,
    neg,
    relu,
    softmax,
    sub,
    tanh,
    top_k,
    transpose,
)


@pytest.fixture
def declare():
    """Declares rules for the length of a test."""
    known = dict(RULES)
    yield rule
    for name in RULES.keys() - known.keys():
        del RULES[name]


def fired(text: str, *rules: Rule) -> list[str]:
    report = PassReport("")
    rewrite(parse(text), rules, report)
    return [name for names in report.fired.values() for name in names]


def test_commutative_ops_match_in_both_orders(declare):
    @declare(lambda x, c: mul(relu(x), c))
    def swap(x, c):
        when(is_constant(c))
        return relu(mul(x, c))

    for operands in ("%a, %c", "%c, %a"):
        assert fired(
            f'graph main(%x: f32[3]) {{ %c = constant f32[3]  %a = relu(%x) "a"  %y = mul({operands}) "m"  return'
            " %y }",
            swap,
        ) == ["a+m"]


def test_a_variable_stands_for_one_value(declare):
    @declare(lambda x: sub(relu(x), relu(x)))
    def nothing(x):
        return mul(x, 0.0)

    text = "graph main(%x: f32[3], %z: f32[3]) {{ %a = relu(%x)  %b = relu(%{0})  %y = sub(%a, %b)  return %y }}"
    assert fired(text.format("x"), nothing) and not fired(text.format("z"), nothing)


def test_a_term_used_twice_is_one_node(declare):
    def square(x):
        r = relu(x)
        return mul(r, r)

    @declare(square)
    def squares(x):
        return relu(mul(x, relu(x)))

    assert fired("graph main(%x: f32[3]) { %a = relu(%x)  %y = mul(%a, %a)  return %y }", squares)
    assert not fired("graph main(%x: f32[3]) { %a = relu(%x)  %b = relu(%x)  %y = mul(%a, %b)  return %y }", squares)


@pytest.mark.parametrize(
    "dtype, number, matches",
    [
        ("f32", "0.70710677", True),
        ("f32", "0.7071", False),
        ("f16", "0.7071", True),
        ("f64", "0.70710678", True),
        ("f64", "0.7071", False),
    ],
)
def test_numbers_match_as_well_as_their_type_holds_them(declare, dtype, number, matches):
    @declare(lambda x: mul(x, 0.7071067811865476))
    def half_root(x):
        return neg(x)

    assert (
        bool(
            fired(
                f"graph main(%x: {dtype}[3]) {{ %c = constant {dtype}[] {number}  %y = mul(%x, %c)  return %y }}",
                half_root,
            )
        )
        == matches
    )


def test_numbers_that_the_type_holds_match_exactly_and_have_rank_0(declare):
    @declare(lambda x: mul(x, 1.0))
    def one(x):
        return relu(x)

    text = "graph main(%x: f32[3]) {{ %c = constant {} {}  %y = mul(%x, %c)  return %y }}"
    assert fired(text.format("f32[]", "1.0"), one)
    assert not fired(text.format("f32[]", "1.0000001"), one) and not fired(text.format("f32[1]", "[1.0]"), one)


def test_attributes_match_exactly_by_default_or_anything(declare):
    @declare(lambda x: softmax(softmax(x, axis=1), axis=ANY))
    def twice(x, axis):
        return softmax(x, axis=axis)

    text = "graph main(%x: f32[3, 3, 3]) {{ %a = softmax(%x) {{axis={}}}  %y = softmax(%a) {{axis={}}}  return %y }}"
    assert fired(text.format(1, 0), twice) and not fired(text.format(0, 1), twice)

    @declare(lambda x, s, b, m, v: batch_norm(x, s, b, m, v))
    def usual(x, s, b, m, v):
        return relu(x)

    text = "graph main(%x: f32[2, 3], %s: f32[3]) {{ %y = batch_norm(%x, %s, %s, %s, %s) {{epsilon={}}}  return %y }}"
    assert fired(text.format(1e-5), usual) and not fired(text.format(1e-3), usual)


def test_attributes_bound_twice_have_to_agree(declare):
    @declare(lambda x, *, p: transpose(relu(transpose(x, perm=p)), perm=p))
    def around(x, p):
        return relu(x)

    text = (
        "graph main(%x: f32[3, 3, 3]) {{ %a = transpose(%x) {{perm={}}}  %b = relu(%a)  %y = transpose(%b) {{perm=(1,"
        " 0, 2)}}  return %y }}"
    )
    assert fired(text.format((1, 0, 2)), around) and not fired(text.format((0, 2, 1)), around)


def test_a_root_with_several_outputs(declare):
    @declare(lambda x: top_k(x, k=1, axis=ANY, largest=ANY, sorted=ANY))
    def first(x, axis, node):
        return get("reduce_max")(x, axes=(axis,)), get("arg_max")(x, axis=axis)

    before = parse("graph main(%x: f32[3, 5]) { %v, %i = top_k(%x) {k=1, axis=1}  return %i, %v }")
    assert_same_in_float64(before, rewrite(before, [first]), 0)


def test_outputs_keep_their_names_and_inputs_are_not_renamed(declare):
    @declare(lambda x: neg(neg(x)))
    def twice(x):
        return x

    before = parse("graph main(%x: f32[3]) { %a = tanh(%x)  %b = neg(%a)  %y = neg(%b)  %z = relu(%a)  return %y, %z }")
    after = rewrite(before, [twice])
    assert [n.op.name for n in after.nodes] == ["tanh", "relu"]
    assert_same_in_float64(before, after, 0)
    report, alias = PassReport(""), parse('graph main(%x: f32[3]) { %b = neg(%x)  %y = neg(%b) "last"  return %y }')
    assert rewrite(alias, [twice], report) is alias
    assert "another name" in report.rejected["twice"]["last"]


def test_other_types_after_than_before_are_an_internal_error(declare):
    @declare(lambda x: relu(tanh(x)))
    def careless(x):
        return concat(x, x, axis=0)

    with pytest.raises(BuildError, match=r"rule careless returned f32\[6\] for f32\[3\].*'r'"):
        fired('graph main(%x: f32[3]) { %a = tanh(%x)  %y = relu(%a) "r"  return %y }', careless)


def test_rules_that_never_rest_are_an_internal_error(declare):
    @declare(lambda x: relu(x))
    def forth(x):
        return copy(x)

    @declare(lambda x: copy(x))
    def back(x):
        return relu(x)

    with pytest.raises(BuildError, match=r"do not come to rest, the last one was (forth|back)"):
        fired("graph main(%x: f32[3]) { %y = relu(%x)  return %y }", forth, back)


def test_reasons_are_collected_per_node_and_those_of_vanished_nodes_forgotten(declare):
    @declare(lambda x, c: mul(x, c))
    def small(x, c):
        when(is_constant(c))
        require(scalar(c) < 2, f"{scalar(c)} is too large")
        return relu(x)

    @declare(lambda x: tanh(mul(x, 3)))
    def three(x):
        return tanh(x)

    report = PassReport("")
    rewrite(
        parse(
            'graph main(%x: f32[2]) { %c = constant f32[] 5.0  %d = constant f32[] 3.0  %a = mul(%x, %c) "five"  %b ='
            ' mul(%x, %d) "three"  %t = tanh(%b)  return %a, %t }'
        ),
        [small, three],
        report,
    )
    assert report.rejected == {"small": {"five": "5.0 is too large"}}


def test_declarations_are_checked(declare):
    with pytest.raises(ValueError, match="declared twice"):
        declare(lambda x: neg(x))(RULES["neg_neg"].after)
    with pytest.raises(TypeError, match="must set softmax's axis"):
        declare(lambda x: softmax(x))(lambda x: x)
    with pytest.raises(TypeError, match="uses y"):
        declare(lambda x: relu(x))(lambda y: y)
    with pytest.raises(TypeError, match="must return a term"):
        declare(lambda x: x)(lambda x: x)


def test_numbers_in_replacements_take_the_type_around_them(declare):
    @declare(lambda x: relu(x))
    def limited(x):
        return clip(x, 0, np.float64(0.1))

    for dtype in ("f16", "f32", "f64"):
        after = rewrite(parse(f"graph main(%x: {dtype}[3]) {{ %y = relu(%x)  return %y }}"), [limited])
        assert {v.type for v in after.constants} == {TensorType.parse(f"{dtype}[]")}
        assert sorted(map(float, after.constants.values())) == [0.0, float(np.asarray(0.1, f"float{dtype[1:]}"))]


def test_statistics_are_rounded_once():
    """Folding is done in float64 and rounded at the end: the folded weights are the nearest float32 to the exact
    ones."""
    r = RULES["conv_batch_norm"]
    before = program(r.patterns[0], r.examples[0])
    after = rewrite(before, [r])
    w, b, g, s, m, v = (before.constants[c].astype(np.float64) for n in before.nodes for c in n.inputs[1:])
    (conv,) = (n for n in after.nodes if n.op is convolution)
    factor = g / np.sqrt(v + r.examples[0]["epsilon"])
    assert (after.constants[conv.inputs[1]] == (w * factor[:, None, None, None]).astype(np.float32)).all()
    assert (after.constants[conv.inputs[2]] == (b * factor + (s - m * factor)).astype(np.float32)).all()


def test_a_wrong_rule_is_found():
    """The comparer of this file fails when it must."""
    r = RULES["sub_neg"]
    wrong = replace(r, after=sub_instead)
    before = program(r.patterns[0], r.examples[0])
    with pytest.raises(AssertionError, match="is off by"):
        assert_same_in_float64(before, rewrite(before, [wrong]), 1e-6)


def sub_instead(x, y):
    return add(x, mul(y, 0.999))
