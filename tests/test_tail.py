"""Tails: read once, for any output language; and sizes that stay values until a kernel's text is generated."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import program, region_of

from pelton.codegen.c import emit as c
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.code import Code, code, join, is_dynamic
from pelton.codegen.grid import Grid
from pelton.codegen.tail import Access, expression, operands, statements
from pelton.codegen.template import Tactic
from pelton.codegen.triton import emit as triton
from pelton.ir import dims
from pelton.ir.types import BOOL, F16, F32, I64
from pelton.ir.scalar import Scalar
from pelton.plan.layout import dense

N, M = dims.symbol("n", 1, 4, 64), dims.symbol("m", 1, 5, 64)


def spell(x):
    return f"<{x}>"


@dataclass
class Words:
    """A language of words, which also says what it was asked for."""

    over: str = "by"
    strided: bool = True
    places: list[Access] = field(default_factory=list)

    def literal(self, x, dtype):
        return f"{dtype.value} {x}"

    def cast(self, text, given, to, saturate=True, round_mode="up"):
        return f"[{given.value} to {to.value} of {text}]"

    def select(self, dtype, mask, a, b):
        return f"[{a} if {mask} else {b}]"

    def call(self, fn, dtype, args: Sequence[str]):
        return f"[{dtype.value} {fn} of {' and '.join(args)}]"

    def load(self, place):
        self.places.append(place)
        return code("{} at {}", place.pointer.name, place.at)

    def let(self, name, dtype, text, comment=""):
        return code("let {} be {}", name, text)

    def increase(self, name, text):
        return code("add {} to {}", text, name)

    def store(self, place, name):
        self.places.append(place)
        return code("put {} to {} at {}", name, place.pointer.name, place.at)

    def pieces(self, name, pieces):
        return [code("put {} from {} on, {} of them, to {}", name, p.start, p.size, p.pointer.name) for p in pieces]


def tail_of(graph, grid, lay=None, language=None, **how):
    region = region_of(graph)
    made = region.anchor.outputs if region.anchor is not None else ()
    language = language or Words()
    lies = {v: dense(v.type.shape) for v in (*region.body.inputs, *region.body.constants, *region.body.outputs)}
    done = statements(language, region, {**lies, **(lay or {})}, grid, made, first=2, **how)
    return region, done, [text if isinstance(text, str) else text.render(spell) for text in done.lines], language


ROWS = Grid((3, 7), (), (0,), (1,))


def test_a_tail_is_read_in_order():
    graph = program(
        ("y", "matmul", "a b"),
        ("s", "mul", "y two"),
        ("t", "add", "s z"),
        ("out", "relu", "t"),
        a="f32[3, 5]",
        b="f32[5, 7]",
        z="f32[7]",
        two=np.float32([[2]]),
    )
    region, done, lines, language = tail_of(graph, ROWS)
    assert lines == [
        "let v1 be [f32 mul of x0 and f32 2.0]",
        "let v2 be e0 at c",
        "let v3 be [f32 add of v1 and v2]",
        "let v4 be [f32 maximum of v3 and f32 0]",
        "put v4 to y1 at r * <7> + c",
    ]
    assert [v.name for v in done.operands] == ["z", "out"] == [v.name for v in operands(region)]
    assert [(p.slot, p.written) for p in done.pointers] == [(2, False), (3, True)]
    assert [(p.step, p.varying) for p in language.places] == [(1, "c"), (1, "rc")]
    assert {v.name: name for v, name in done.names.items()} == {"y": "x0", "s": "v1", "z": "v2", "t": "v3", "out": "v4"}


def test_a_bias_comes_first_and_outputs_may_be_left_to_the_caller():
    attrs = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1)
    graph = program(
        ("y", "convolution", "x w b", attrs),
        ("out", "relu", "y"),
        x="f32[1, 5, 1, 3]",
        w=np.ones((7, 5, 1, 1), np.float32),
        b=np.ones(7, np.float32),
    )
    bias = region_of(graph).anchor.inputs[2]
    grid = Grid((1, 7, 1, 3), (0,), (2, 3), (1,))
    _, done, lines, _ = tail_of(graph, grid, bias=bias, stored=False)
    assert lines == ["add bias at c to x0", "let v1 be [f32 maximum of x0 and f32 0]"]
    assert [p.name for p in done.pointers] == ["bias"]


def test_slices_come_by_where_they_start():
    cut = [(f"out{s}", "slice", "y", dict(starts=(s,), ends=(e,), axes=(1,), steps=(1,))) for s, e in ((5, 7), (0, 5))]
    _, done, lines, _ = tail_of(program(("y", "matmul", "a b"), *cut, a="f32[3, 5]", b="f32[5, 7]"), ROWS)
    assert lines == ["put x0 from <0> on, <5> of them, to y0", "put x0 from <5> on, <2> of them, to y1"]


def test_what_does_not_lie_in_steps_is_for_languages_that_need_none():
    graph = program(("out", "add", "x y"), x="f32[3, 7]", y="f32[3, 7]")
    x, grid = graph.inputs[0], Grid((3, 7), (), (), (0, 1))
    lay = {x: (1, 3)}
    with pytest.raises(ValueError, match="%x of .* has no single stride along the vector axis"):
        tail_of(graph, grid, lay)
    assert tail_of(graph, grid, lay, Words(strided=False))[2][0] == "let v0 be e0 at (c by <7>) + (c % <7>) * <3>"


def test_the_languages_differ_in_words_alone():
    x, mask = Scalar("var", ("x",), F32), Scalar("var", ("m",), BOOL)
    for e, in_c, in_triton in (
        (Scalar("add", (x, 1.5), F32), "(x + bc_f32(1.5f))", "(x + tl.full([], 1.5, tl.float32))"),
        (Scalar("lt", (x, 0), BOOL), "f32_lt(x, bc_f32(0.0f))", "(x < tl.full([], 0.0, tl.float32))"),
        (
            Scalar("select", (mask, x, 0), F32),
            "f32_select(m, x, bc_f32(0.0f))",
            "tl.where(m, x, tl.full([], 0.0, tl.float32))",
        ),
        (Scalar("not", (mask,), BOOL), "(~m)", "(m == 0)"),
        (Scalar("cast", (x,), I64), "cast_f32_i64(x)", "x.to(tl.int64)"),
        (Scalar("cast", (x,), F16), "cast_f32_f16(x)", "x.to(tl.float16).to(tl.float32)"),
    ):
        assert expression(c.CLanguage(), e) == in_c and expression(triton.TritonDialect(), e) == in_triton
    assert c.literal(-1 << 63, I64) == "bc_i64((i64)(-9223372036854775807LL - 1))"
    assert c.literal(5, I64) == "bc_i64((i64)5LL)"


def test_no_language_knows_another():
    """What both need stands above them. Templates may share what they claim."""

    def emitters(text):
        return re.findall(r"import .*\bc\.emit|from \S*\bc\.emit import|from \S*codegen\.c import .*\bemit\b", text)

    files = {p: p.read_text() for p in Path(triton.__file__).parent.rglob("*.py")}
    assert len(files) > 15 and not any(map(emitters, files.values()))
    assert emitters("from pelton.codegen.c.emit import Grid") and emitters(
        "from pelton.codegen.c import emit as c_emit"
    )


def test_sizes_stay_values_in_code():
    one = code("{} * {} + {}", "r", N, 3)
    assert one.parts == ("r", " * ", N, " + ", 3) and one.render(spell) == "r * <n> + <3>"
    assert ("(" + one + ")").render(spell) == "(r * <n> + <3>)"
    assert join(", ", [1, one, "x"]).render(spell) == "<1>, r * <n> + <3>, x"
    assert code("{ {} }", "x").render(spell) == "{ x }" and join(", ", ()).render(spell) == ""
    assert is_dynamic(one) and not is_dynamic(code("{}", 3)) and not is_dynamic("n")
    for wrong in (lambda: f"{one}", lambda: str(one), lambda: "".join([one])):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="has 1 places, got 2 arguments"):
        code("{}", 1, 2)
    assert repr(Code(("x", 3))) == "Code(parts=('x', 3))"


def test_every_size_has_one_slot_behind_the_pointers():
    region = region_of(program(("y", "relu", "x"), x="f32[3]"))
    block = c.constants(ROWS=N, COLS=5) + c.macro("X_AT(r)", code("r * {} + {} + {}", N * M, N, M))
    block += c.list_macro("SIZES", (M, 2))
    k = c.kernel("pointwise.c", region, Tactic("pointwise", "x86_64_v3"), block, region.body.inputs, N)
    assert k.dims == (N, N * M, M)
    assert "#define ARGS 4\n#define SIZE0 (a[1].d)  // n\n" in k.source and "#define SIZE2 (a[3].d)  // m\n" in k.source
    assert (
        "enum : idx { COLS = 5 };\n#define ROWS SIZE0\n#define X_AT(r) (r * SIZE1 + SIZE0 + SIZE2)\n"
        "#define SIZES {SIZE2, 2LL}\n" in k.source
    )
    way = Tactic("pointwise", "sm_90", (("RB", 1), ("CB", 16), ("WARPS", 4)))
    block = triton.emit_offset("x_at", Grid((N, 5), (), (0,), (1,)), (N * M, 1))
    lay = {v: (1,) for v in region.body.inputs}
    k = triton.kernel("pointwise.py", region, way, dict(ROWS=M, COLS=5), block, region.body.inputs, N, lay)
    assert k.dims == (N * M, M)
    assert all(text in k.source for text in ("return r * a[1] + c\n", "COLS = tl.constexpr(5)", "a[2]"))


def test_grids_say_what_makes_a_difference():
    grid = Grid((2, N, 1, 6), (0,), (1, 2), (3,))
    for strides, moving, step, text in (
        ((0, 6, 6, 1), "rc", 1, "r * <6> + c"),
        ((1, 0, 9, 0), "b", 0, "b"),
        ((6 * N, 6, 6, 1), "brc", 1, "b * <6*n> + r * <6> + c"),
    ):
        assert grid.varying(strides) == moving and grid.step(strides) == step
        assert grid.address(strides).render(spell) == text
    assert Grid((2, 3, 4), (), (0, 1), (2,)).index(1, "//").render(spell) == "(r % <3>)" and grid.index(3) == "c"
    assert Grid((2, 3, 4), (), (0, 1), (2,)).index(0).render(spell) == "(r / <3>)"
