"""Every rule is tested by being declared: before ≡ after on random inputs, it fires, comes to rest, and refuses where
it must."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import symbolic

from pelton.errors import BuildError
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Node, Value, with_sizes, optimum_sizes
from pelton.ir.text import parse, to_text
from pelton.ir.types import F64, TensorType
from pelton.ir.verify import verify
from pelton.ops import get
from pelton.passes import pipeline  # noqa: F401  (declares all rules)
from pelton.passes.rewriting.example import draw, program
from pelton.passes.rewriting.pattern import ANY, Applied
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

SPELLINGS = [(r, k) for r in RULES.values() for k in range(len(r.patterns))]


def _name(x) -> str:
    return x.name if isinstance(x, Rule) else str(x)


def suited(r: Rule, k: int) -> list:
    """The examples that say enough for a pattern."""
    return [e for e in r.examples if r.patterns[k].needed <= e.keys()]


def assert_same(before: Graph, after: Graph, tolerance: float) -> None:
    """Equal names, types and results of outputs, all computed in float64, within a tolerance relative to the largest
    element."""
    verify(after)
    assert [v.name for v in before.inputs] == [v.name for v in after.inputs]
    assert [(v.name, v.type) for v in before.outputs] == [(v.name, v.type) for v in after.outputs]
    rng = np.random.default_rng(7)
    inputs = {v.name: draw(v.type, rng, -3, 3) for v in before.inputs}
    wanted, found = evaluate(before, inputs, round=False), evaluate(after, inputs, round=False)
    for name, w in wanted.items():
        w, f = np.asarray(w, np.float64), np.asarray(found[name], np.float64)
        assert (np.isfinite(w) == np.isfinite(f)).all(), f"{name} is finite in other places\n{to_text(after)}"
        largest = np.abs(w[np.isfinite(w)]).max(initial=1e-30)
        error = np.abs(np.where(np.isfinite(w), w - f, 0)).max(initial=0) / largest
        assert error <= tolerance, (
            f"{name} is off by {error:.1e} of its largest element\n{to_text(before)}{to_text(after)}"
        )


@pytest.mark.parametrize("r, k", SPELLINGS, ids=_name)
@pytest.mark.parametrize("dtype, tolerance", [(F64, 1e-13), (None, 1e-6)], ids=["f64", "f32"])
def test_rule(r, k, dtype, tolerance):
    examples = suited(r, k)
    assert r.doc, "does not say what it is, for `explain --why-not`"
    assert examples, "no example gives all that this pattern needs"
    for given in examples:
        before, report = program(r.patterns[k], given, dtype=dtype), PassReport("")
        after = rewrite(before, [r], report)
        assert list(report.fired) == [r.name], f"does not apply to its own example\n{to_text(before)}{report.rejected}"
        assert_same(before, after, tolerance)
        assert rewrite(after, [r]) is after, f"does not come to rest\n{to_text(after)}"
        names = {n.name for n in before.nodes}
        assert all(part in names for name in report.fired[r.name] for part in name.split("+")), report.fired


@pytest.mark.parametrize("r, k", SPELLINGS, ids=_name)
def test_rule_for_sizes_that_a_run_decides(r, k):
    """With symbols for sizes wherever the ops of an example can do with them, a rule applies or refuses, and what it
    makes is right for all sizes."""
    for given in suited(r, k):
        before = symbolic(program(r.patterns[k], given, dtype=F64))
        after = rewrite(before, [r])
        verify(after)
        for more in (0, 1, 5):
            sizes = {name: size + more for name, size in optimum_sizes(before).items()}
            assert_same(with_sizes(before, sizes)[0], with_sizes(after, sizes)[0], 1e-13)


@pytest.mark.parametrize(
    "name, text",
    [
        ("reshape_same", "%a = neg(%x)  %y = reshape(%a) {shape=([n], 6)}"),
        ("reshape_reshape", "%a = reshape(%x) {shape=([2*n], 3)}  %y = reshape(%a) {shape=(3, [2*n])}"),
        (
            "transpose_of_joined",
            (
                "%a = reshape(%x) {shape=([n], 2, 3)}  %b = tanh(%a)  %c = reshape(%b) {shape=([2*n], 3)}  %d ="
                " transpose(%c) {perm=(1, 0)}  %y = reshape(%d) {shape=(3, [n], 2)}"
            ),
        ),
        ("expand_expand", "%a = expand(%x) {shape=([m], [n], 6)}  %y = expand(%a) {shape=(5, [m], [n], 6)}"),
        ("expand_ones", "%y = expand(%x) {shape=(1, [n], 6)}"),
        ("unneeded_expand", "%c = constant f64[] 2  %a = expand(%c) {shape=([n], 6)}  %y = add(%x, %a)"),
        ("slice_whole", "%y = slice(%x) {starts=(0, 1), ends=([n], 3), axes=(0, 1), steps=(1, 1)}"),
        (
            "slice_slice",
            (
                "%a = slice(%x) {starts=(1,), ends=([n],), axes=(0,), steps=(1,)}"
                "  %y = slice(%a) {starts=(0, 1), ends=([n - 2], 5), axes=(0, 1), steps=(1, 2)}"
            ),
        ),
        (
            "slice_concat",
            "%a = concat(%x, %x) {axis=0}  %y = slice(%a) {starts=([n],), ends=([2*n - 1],), axes=(0,), steps=(1,)}",
        ),
        (
            "concat_slices",
            (
                "%a = slice(%x) {starts=(1,), ends=(2,), axes=(0,), steps=(1,)}  %b = slice(%x) {starts=(2,),"
                " ends=([n],), axes=(0,), steps=(1,)}  %y = concat(%a, %b) {axis=0}"
            ),
        ),
        ("gather_known", "%i = constant i64[] -1  %y = gather(%x, %i) {axis=0}"),
        ("tile_ones", "%a = reshape(%x) {shape=([n], 1, 6)}  %y = tile(%a) {repeats=(1, [n], 1)}"),
    ],
)
def test_views_of_sizes_that_a_run_decides(name, text):
    before, report = (
        parse(f"graph main[n: 3..4..9, m: 1..2..8](%x: f64[n, 6], %z: f64[m]) {{ {text}  return %y }}"),
        PassReport(""),
    )
    verify(before)
    after = rewrite(before, [RULES[name]], report)
    assert list(report.fired) == [name]
    for sizes in ({"n": 3, "m": 1}, {"n": 7, "m": 5}):
        assert_same(with_sizes(before, sizes)[0], with_sizes(after, sizes)[0], 0)
    assert rewrite(after, [RULES[name]]) is after


@pytest.mark.parametrize(
    "mask",
    [
        (
            "%t = constant bool[] true  %e = expand(%t) {shape=([n], [n])}  %l = trilu(%e) {upper=false}  %m ="
            " where(%l, %zero, %low)"
        ),
        (
            "%t = constant bool[] true  %e = expand(%t) {shape=([n], [n])}  %l = trilu(%e) {k=1}  %h = reshape(%l)"
            " {shape=(1, [n], [n])}  %m = where(%h, %low, %zero)"
        ),
        "%e = expand(%low) {shape=([n], [n])}  %l = trilu(%e) {k=1}  %m = reshape(%l) {shape=(1, [n], [n])}",
        (
            "%i = iota() {size=[n]}  %r = reshape(%i) {shape=([n], 1)}  %l = less_equal(%i, %r)  %m = where(%l, %zero,"
            " %low)"
        ),
        "%i = iota() {size=[n]}  %r = reshape(%i) {shape=([n], 1)}  %l = less(%r, %i)  %m = where(%l, %low, %zero)",
    ],
)
def test_masks_of_any_size_that_hide_what_lies_ahead(mask):
    text = (
        "graph main[n: 2..4..9](%q: f64[3, n, 8], %k: f64[3, n, 8], %v: f64[3, n, 5]) { %zero = constant f64[] 0 "
        f" %low = constant f64[] -1e9  {mask}  %y = attention(%q, %k, %v, %m) {{scale=0.5}}  return %y }}"
    )
    before = parse(text)
    after = rewrite(before, [RULES["attention_causal"]])
    assert [n.op.name for n in after.nodes] == ["attention"] and after.nodes[0].attrs["causal"]
    assert_same(with_sizes(before, {"n": 6})[0], with_sizes(after, {"n": 6})[0], 1e-13)
    for wrong in (
        ("k=1", "k=2"),
        ("upper=false", "upper=true"),
        ("-1e9", "-3.0"),
        ("less_equal(%i, %r)", "less_equal(%r, %i)"),
        ("less(%r, %i)", "less(%i, %r)"),
    ):
        other = parse(text.replace(*wrong))
        assert text == text.replace(*wrong) or rewrite(other, [RULES["attention_causal"]]) is other


def test_what_a_rule_would_have_to_know_of_a_size_is_its_refusal():
    report = PassReport("")
    before = parse(
        "graph main[n: 1..4..9](%x: f64[n], %z: f64[3]) { %a = concat(%x, %z) {axis=0}"
        '  %y = slice(%a) {starts=(2,), ends=(3,), axes=(0,), steps=(1,)} "cut"  return %y }'
    )
    assert rewrite(before, [RULES["slice_concat"]], report) is before
    assert "depends on sizes that only a run decides" in report.rejected["slice_concat"]["cut"]


def _inner(r: Rule, k: int) -> int | None:
    """Where the root of a pattern reads something that vanishes."""
    return next((i for i, a in enumerate(r.patterns[k].root.args) if isinstance(a, Applied)), None)


@pytest.mark.parametrize("r, k", [(r, k) for r, k in SPELLINGS if _inner(r, k) is not None and not r.shared], ids=_name)
@pytest.mark.parametrize("reader", ["output", "node"])
def test_values_that_others_read_stay(r, k, reader):
    before = program(r.patterns[k], suited(r, k)[0])
    value = before.nodes[-1].inputs[_inner(r, k)]
    if reader == "output":
        read = before.replace(outputs=(*before.outputs, value))
    else:
        extra = Node(get("copy"), (value,), {}, (Value(value.type, "extra"),), "other")
        read = before.replace(nodes=(*before.nodes, extra), outputs=(*before.outputs, extra.output))
    report = PassReport("")
    assert rewrite(read, [r], report) is read
    assert (
        f"%{value.name} {'is a graph output' if reader == 'output' else 'has another reader: other'}"
        in report.rejected[r.name].values()
    )


@pytest.mark.parametrize(
    "r, given, reason", [(r, given, reason) for r in RULES.values() for given, reason in r.rejections], ids=_name
)
def test_refusal(r, given, reason):
    for pattern in r.patterns:
        before, report = program(pattern, given), PassReport("")
        assert rewrite(before, [r], report) is before
        (said,) = report.rejected[r.name].values()
        assert reason in said


@pytest.mark.parametrize("r", [r for r in RULES.values() if r.inexact], ids=_name)
def test_strict_leaves_out_inexact_rules(r):
    before = program(r.patterns[0], suited(r, 0)[0])
    assert rewrite(before, [r], strict=True) is before


# --- the engine


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
    assert_same(before, rewrite(before, [first]), 0)


def test_outputs_keep_their_names_and_inputs_are_not_renamed(declare):
    @declare(lambda x: neg(neg(x)))
    def twice(x):
        return x

    before = parse("graph main(%x: f32[3]) { %a = tanh(%x)  %b = neg(%a)  %y = neg(%b)  %z = relu(%a)  return %y, %z }")
    after = rewrite(before, [twice])
    assert [n.op.name for n in after.nodes] == ["tanh", "relu"]
    assert_same(before, after, 0)
    report, alias = PassReport(""), parse('graph main(%x: f32[3]) { %b = neg(%x)  %y = neg(%b) "last"  return %y }')
    assert rewrite(alias, [twice], report) is alias
    assert "another name" in report.rejected["twice"]["last"]


def test_other_types_after_than_before_are_an_internal_error(declare):
    @declare(lambda x: relu(tanh(x)))
    def careless(x):
        return concat(x, x, axis=0)

    with pytest.raises(BuildError, match=r"rule careless gave f32\[6\] for f32\[3\].*'r'"):
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
    with pytest.raises(TypeError, match="must say what softmax has for axis"):
        declare(lambda x: softmax(x))(lambda x: x)
    with pytest.raises(TypeError, match="asks for y"):
        declare(lambda x: relu(x))(lambda y: y)
    with pytest.raises(TypeError, match="must give a term"):
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
        assert_same(before, rewrite(before, [wrong]), 1e-6)


def sub_instead(x, y):
    return add(x, mul(y, 0.999))
