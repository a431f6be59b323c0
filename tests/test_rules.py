"""Every declared rule is tested: before ≡ after on random inputs, it fires, reaches a fixed point, and refuses where it
must."""

from __future__ import annotations

import pytest
from kernel_harness import symbolic
from pass_harness import assert_same_in_float64

from pelton.ir.graph import Node, Value, with_sizes, optimum_sizes
from pelton.ir.text import parse, to_text
from pelton.ir.types import F64
from pelton.ir.verify import verify
from pelton.ops import get
from pelton.passes import pipeline  # noqa: F401  (declares all rules)
from pelton.passes.rewriting.example import program
from pelton.passes.rewriting.pattern import Applied
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import RULES, Rule, rewrite

SPELLINGS = [(r, k) for r in RULES.values() for k in range(len(r.patterns))]


def _name(x) -> str:
    return x.name if isinstance(x, Rule) else str(x)


def suited(r: Rule, k: int) -> list:
    """The examples that say enough for a pattern."""
    return [e for e in r.examples if r.patterns[k].required <= e.keys()]


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
        assert_same_in_float64(before, after, tolerance)
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
            assert_same_in_float64(with_sizes(before, sizes)[0], with_sizes(after, sizes)[0], 1e-13)


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
        assert_same_in_float64(with_sizes(before, sizes)[0], with_sizes(after, sizes)[0], 0)
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
    assert_same_in_float64(with_sizes(before, {"n": 6})[0], with_sizes(after, {"n": 6})[0], 1e-13)
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
    assert "depends on dynamic dimensions" in report.rejected["slice_concat"]["cut"]


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
