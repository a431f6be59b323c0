"""Planning: views are strides, joins are written in place, memory never overlaps, waves respect dependences."""

import itertools
import random

import numpy as np
import pytest

import pelton
from pelton.ir.builder import Builder
from pelton.ir.text import parse
from pelton.ir.types import F32, DType, TensorType
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.ops import get
from pelton.engine import memory
from pelton.plan import fuse, layout, lower, place, placed
from pelton.plan.region import Region
from pelton.tuning import candidates
from pelton.tuning.tasks import task_key


def planned(graph):
    return place.place(fuse.fuse(graph, candidates.rejection), candidates.first_template)


def conv(b, x, channels, name, kernel=1):
    c = x.type.shape[1]
    w = b.constant(np.ones((channels, c, kernel, kernel), np.float32), name + ".w")
    bias = b.constant(np.zeros(channels, np.float32), name + ".b")
    return b.emit(
        get("convolution"),
        (x, w, bias),
        dict(strides=(1, 1), pads=(kernel // 2,) * 4, dilations=(1, 1), group=1),
        names=[name],
    )[0]


@pytest.mark.parametrize(
    "shape, order, to",
    [
        ((2, 3, 4, 5), (0, 1, 2, 3), (6, 20)),
        ((1, 8, 1, 1), (0, 2, 3, 1), (1, 8)),
        ((2, 8, 3, 3), (0, 2, 3, 1), (2, 8, 9)),
        ((4, 6), (0, 1), (2, 2, 6)),
        ((2, 1, 3), (0, 1, 2), (2, 3, 1)),
        ((1, 1), (0, 1), ()),
        ((6,), (0,), (1, 6, 1)),
    ],
)
def test_a_reshape_that_is_a_view_reads_the_same_elements(shape, order, to):
    strides = layout.dense(shape, order)
    found = layout.reshaped(shape, strides, to)
    assert found is not None
    flat = np.arange(np.prod(shape))

    def read(sizes, steps):
        return np.array([sum(i * s for i, s in zip(at, steps)) for at in itertools.product(*map(range, sizes))])

    assert (flat[read(shape, strides)] == flat[read(to, found)]).all()


@pytest.mark.parametrize(
    "shape, order, to", [((2, 8, 3, 3), (0, 2, 3, 1), (2, 72)), ((3, 4), (1, 0), (12,)), ((2, 3, 4), (0, 2, 1), (6, 4))]
)
def test_a_reshape_that_moves_elements_is_no_view(shape, order, to):
    assert layout.reshaped(shape, layout.dense(shape, order), to) is None


@pytest.mark.parametrize(
    "shape, strides, order",
    [
        ((4, 1, 5), (-10, 5, 1), (0, 1, 2)),
        ((4, 6), (1, -4), (1, 0)),
        ((2, 3, 4), (12, 4, -1), (0, 1, 2)),
        ((3, 4), (4, 1), (0, 1)),
    ],
)
def test_the_order_of_axes_that_are_read_backwards_is_that_of_their_elements(shape, strides, order):
    assert layout.order_of(shape, strides) == order


def test_zero_padding_is_part_of_how_a_value_lies():
    b = Builder()
    x, y = (b.input(TensorType(F32, (2, 3)), name) for name in "xy")
    lies = layout.Layouts({x: (5, 1)}).moved({x: (4, 1)}, zero_padded=True)
    assert dict(lies) == {x: (4, 1)} and lies.zero_padded == {x}
    assert dict(lies.moved({y: (3, 1)})) == {x: (4, 1), y: (3, 1)} and lies.moved({y: (3, 1)}).zero_padded == {x}
    assert not lies.moved({x: (4, 1)}).zero_padded  # what lies elsewhere is padded only where that is said


def test_a_value_is_written_in_the_layout_that_its_reader_prefers(monkeypatch):
    def tasks():
        b = Builder()
        c = conv(b, b.input(TensorType(F32, (1, 8, 5, 7)), "x"), 4, "one")
        graph = b.graph([conv(b, c, 4, "two", 3)])
        found = {c: layout.Layout((256, 1, 32, 4), zero_padded=True)}
        done = place.place(fuse.fuse(graph, candidates.rejection), candidates.first_template, found.get)
        assert done.places[c].zero_padded == (done.places[c].strides == (256, 1, 32, 4))
        return c, [task for task in done.tasks if task.region.anchors]

    c, (one, two) = tasks()
    assert one.layouts.zero_padded == two.layouts.zero_padded == {c}
    assert one.layouts[c] == two.layouts[c] == (256, 1, 32, 4)
    unpadded = placed.Task(two.region, two.layouts.moved({c: two.layouts[c]}))
    assert task_key(two) != task_key(unpadded)
    monkeypatch.setattr(place, "MAX_ZERO_PADDED", 100)
    c, (one, two) = tasks()
    assert not one.layouts.zero_padded and not two.layouts.zero_padded and two.layouts[c] == (140, 1, 28, 4)


def test_branches_write_straight_into_their_join():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    parts = [conv(b, x, c, f"branch{c}") for c in (5, 3, 16)]
    (joined,) = b.emit(get("concat"), parts, dict(axis=1))
    done = planned(b.graph([conv(b, joined, 4, "last")]))
    roots = {done.places[p].root for p in parts}
    assert roots == {joined}
    assert [done.places[p].offset for p in parts] == [0, 5, 8]
    assert not any("cannot be written in place" in c for c in done.copies.values())


def test_a_join_inside_a_join_is_one_buffer():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    one, two, three = (conv(b, x, c, f"branch{c}") for c in (4, 6, 2))
    (inner,) = b.emit(get("concat"), (one, two), dict(axis=1))
    (outer,) = b.emit(get("concat"), (three, inner), dict(axis=1))
    done = planned(b.graph([conv(b, outer, 4, "last")]))
    assert {done.places[v].root for v in (one, two, three, inner)} == {outer}
    assert done.places[two].offset == 6


def test_what_is_joined_twice_is_copied_once():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    y = conv(b, x, 4, "y")
    (first,) = b.emit(get("concat"), (y, conv(b, x, 4, "z")), dict(axis=1))
    (second,) = b.emit(get("concat"), (y, conv(b, x, 2, "w")), dict(axis=1))
    done = planned(b.graph([conv(b, first, 4, "a"), conv(b, second, 4, "b")]))
    assert sum("cannot be written in place" in c for c in done.copies.values()) == 1


def cut(b, x, *sizes, axis=1):
    ends = list(itertools.accumulate(sizes))
    return [
        b.emit(get("slice"), (x,), dict(starts=(e - n,), ends=(e,), axes=(axis,), steps=(1,)))[0]
        for n, e in zip(sizes, ends)
    ]


def test_slices_of_merged_siblings_are_written_where_they_are_joined():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    one, two = cut(b, b.emit(get("relu"), (conv(b, x, 8, "whole"),))[0], 5, 3)
    three = conv(b, two, 6, "three", kernel=3)
    (joined,) = b.emit(get("concat"), (three, one), dict(axis=1))
    done = planned(b.graph([conv(b, joined, 4, "last")]))
    assert [done.places[v].root for v in (three, one, two)] == [joined, joined, two]
    assert done.places[one].offset == 6 and layout.is_dense(two.type.shape, done.places[two].strides)
    assert not any("cannot be written in place" in c for c in done.copies.values())
    assert done.tasks[1].region.title() == "convolution+relu+slice+slice" and done.tasks[1].region.body.outputs == (
        one,
        two,
    )


def test_a_whole_that_is_read_is_written_once_more_only_where_a_slice_is_joined():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    whole = conv(b, x, 8, "whole")
    one, two = cut(b, whole, 5, 3)
    (joined,) = b.emit(get("concat"), (conv(b, whole, 6, "three"), one), dict(axis=1))
    done = planned(b.graph([conv(b, joined, 4, "last"), conv(b, two, 2, "side")]))
    assert done.places[one].root is joined and done.places[two].root is whole and done.places[two].offset == 5


@pytest.mark.parametrize("parts, axis", [((6, 2), 1), ((3, 2), 2)])
def test_slices_that_nothing_joins_or_no_kernel_writes_apart_are_views(parts, axis):
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    one, two = cut(b, conv(b, x, 8, "whole"), *parts, axis=axis)
    ends = (
        [conv(b, one, 4, "a"), conv(b, two, 4, "b")]
        if axis == 1
        else b.emit(get("concat"), (two, one), dict(axis=axis))
    )
    fused = fuse.fuse(b.graph(ends), candidates.rejection)
    assert sum(fuse.is_view(i) and i.op.name == "slice" for i in fused.items if not isinstance(i, Region)) == 2


def test_heads_are_views():
    b = Builder()
    x = b.input(TensorType(F32, (1, 16, 24)), "x")
    w = b.constant(np.ones((24, 36), np.float32), "w")
    (y,) = b.emit(get("matmul"), (x, w))
    (y,) = b.emit(get("slice"), (y,), dict(starts=(12,), ends=(24,), axes=(2,), steps=(1,)))
    (y,) = b.emit(get("reshape"), (y,), dict(shape=(1, 16, 3, 4)))
    (y,) = b.emit(get("transpose"), (y,), dict(perm=(0, 2, 1, 3)))
    done = planned(b.graph([b.emit(get("relu"), (y,))[0]]))
    assert done.places[y].strides[1:] == (4, 36, 1) and done.places[y].offset == 12


def test_a_region_takes_a_pointwise_dag_along_but_never_closes_a_cycle():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 4, 4)), "x")
    y = conv(b, x, 8, "y")
    (g,) = b.emit(get("sigmoid"), (y,))
    (swish,) = b.emit(get("mul"), (y, g))
    z = conv(b, swish, 8, "z")
    (out,) = b.emit(get("add"), (z, y))
    fused = fuse.fuse(b.graph([out]), candidates.rejection)
    assert [i.title() for i in fused.items] == ["convolution+sigmoid+mul", "convolution+add"]


def test_a_region_never_reads_of_another_that_waits_for_it():
    """The product reads %p, whose region reads the maxima of %n: the product is no part of the region of %n."""
    graph = parse(
        "graph main(%x: f32[5, 7], %y: f32[5, 7]) {\n"
        "  %p: f32[5, 7] = neg(%y)\n"
        "  %n: f32[5, 7] = relu(%x)\n"
        "  %largest: f32[5, 1] = reduce_max(%n) {axes=(1,)}\n"
        "  %sum: f32[5, 7] = add(%p, %largest)\n"
        "  %product: f32[5, 7] = mul(%n, %p)\n"
        "  return %sum, %product\n"
        "}\n"
    )
    regions = [r for r in fuse.fuse(graph, candidates.rejection).items if isinstance(r, Region)]
    assert sum(len(r.body.nodes) for r in regions) == len(graph.nodes)
    done = set(graph.inputs)
    for r in regions:
        assert done.issuperset(r.body.inputs)
        done.update(r.body.outputs)


def test_regions_that_need_each_other_are_never_made():
    """The last sum reads what a region computes that by then depends on its own other operand."""
    b = Builder()
    x = b.input(TensorType(F32, (8,)), "x")
    (moved,) = b.emit(get("add"), (x, b.constant(np.float32(1), "one")))
    (one,) = b.emit(get("mul"), (moved, b.constant(np.float32(2), "two")))
    (is_less,) = b.emit(get("less"), (x, b.constant(np.float32(3), "three")))
    (first,) = b.emit(get("where"), (is_less, x, one))
    (other,) = b.emit(get("mul"), (moved, b.constant(np.float32(5), "five")))
    (second,) = b.emit(get("where"), (is_less, x, other))
    graph = b.graph([first, second])
    fused = fuse.fuse(graph, candidates.rejection)
    assert {i.title() for i in fused.items} == {"add+mul+mul", "less+where+where"}


@pytest.mark.parametrize("also_read_by", ["nothing", "a convolution", "another sum", "the caller"])
def test_bytes_that_a_residual_widens_are_stored_as_bytes(also_read_by):
    """What widens them goes to the one region that reads the result, behind its convolution."""
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 4, 4)), "x")
    (q,) = b.emit(get("cast"), (conv(b, x, 8, "y"),), dict(to=DType.U8))
    (wide,) = b.emit(get("cast"), (q,), dict(to=F32))
    (wide,) = b.emit(get("mul"), (wide, b.constant(np.array(0.3, np.float32), "s")))
    z = conv(b, x, 8, "z", kernel=3)
    (out,) = b.emit(get("add"), (z, wide))
    more = []
    if also_read_by in ("a convolution", "another sum"):
        other = conv(b, wide if also_read_by == "a convolution" else x, 8, "w", kernel=3)
        more = b.emit(get("sub"), (other, wide)) if also_read_by == "another sum" else [other]
    elif also_read_by == "the caller":
        more = [wide]
    fused = fuse.fuse(b.graph([out, *more]), candidates.rejection)
    moved = also_read_by == "nothing"
    assert [i.title() for i in fused.items][:2] == (
        ["convolution+cast", "convolution+cast+mul+add"] if moved else ["convolution+cast+cast+mul", "convolution+add"]
    )
    assert [v.type.dtype for v in fused.items[0].body.outputs] == ([DType.U8] if moved else [F32])


def test_every_output_of_a_graph_is_row_major_and_its_own():
    b = Builder()
    x = b.input(TensorType(F32, (2, 8, 4, 4)), "x")
    y = conv(b, x, 8, "y")
    done = planned(b.graph([y, y, x]))
    assert len(set(done.outputs)) == 3
    for v in done.outputs:
        assert layout.same_memory(v.type.shape, done.places[v].strides, layout.dense(v.type.shape))


@pytest.mark.parametrize("seed", range(20))
def test_no_two_live_buffers_overlap(seed):
    rng = random.Random(seed)
    lives = {}
    for k in range(40):
        first = rng.randrange(30)
        lives[k] = memory.Lifetime(rng.randrange(1, 5000), first, first + rng.randrange(6))
    offsets, total = memory.assign(lives)
    for a, b in itertools.combinations(lives, 2):
        if lives[a].first <= lives[b].last and lives[b].first <= lives[a].last:
            assert offsets[a] + lives[a].size <= offsets[b] or offsets[b] + lives[b].size <= offsets[a]
    assert total <= sum(-(-v.size // memory.ALIGN) * memory.ALIGN for v in lives.values())
    assert all(o % memory.ALIGN == 0 and o + lives[k].size <= total for k, o in offsets.items())


def test_waves_put_branches_side_by_side_and_readers_after_writers():
    b = Builder()
    x = b.input(TensorType(F32, (1, 8, 5, 7)), "x")
    parts = [conv(b, x, c, f"branch{c}") for c in (5, 3)]
    (joined,) = b.emit(get("concat"), parts, dict(axis=1))
    done = planned(b.graph([conv(b, joined, 4, "last")]))
    waves = lower.waves(done)
    named = {t.what.output.name: w for t, w in zip(done.tasks, waves) if isinstance(t.what, Region)}
    assert named["branch5"] == named["branch3"] < named["last"]
    for i, task in enumerate(done.tasks):
        for v in task.reads:
            for j, other in enumerate(done.tasks):
                if any(done.places[w].root is done.places[v].root for w in other.writes) and j < i:
                    assert waves[j] < waves[i]


@pytest.mark.parametrize("size, alone", [(6, True), (160, False)])
def test_threads_share_no_waves_that_are_over_at_once(size, alone):
    net = pelton.Network()
    x = net.input("x", (1, 8, size, size))
    for k in (3, 2):
        net.output(net.convolution(x, np.ones((4, 8, k, k), np.float32)), f"y{k}")
    steps = pelton.build(net, level=0, threads=2).steps
    convolutions = [s for s in steps if s.info["op"].startswith("convolution")]
    assert len({s.wave for s in convolutions}) == (2 if alone else 1)
    assert all((s.grain >= s.tiles) == alone for s in convolutions)
    assert [s.wave for s in steps] == sorted(s.wave for s in steps)
