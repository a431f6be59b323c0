"""The layout search finds templates as cheap as the best of all combinations, without trying every one."""

import itertools
import random

import numpy as np
import pytest

from pelton.ir.builder import Builder
from pelton.ir.types import F32, TensorType
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.ops import get
from pelton.plan import fuse, layout, place, layout_search
from pelton.plan.region import Region
from pelton.tuning import candidates


class Ordered:
    """A template that reads and writes everything in one order of axes."""

    def __init__(self, name, order):
        self.name, self.axes = name, order

    def output_order(self, region, value, layouts):
        return self.axes(value.type.rank)

    copy_order = output_order

    def fits(self, region, value, layouts):
        shape, strides = value.type.shape, layouts[value]
        inner = [a for a in self.axes(len(shape)) if shape[a] != 1][-1]
        return value in region.body.constants or (
            strides[inner] == 1 and layout.order_of(shape, strides) == self.axes(len(shape))
        )


LAST, PLANES = Ordered("last", layout.channels_last), Ordered("planes", layout.row_major)


def conv(b, x, channels=8):
    w = b.constant(np.ones((channels, x.type.shape[1], 1, 1), np.float32))
    bias = b.constant(np.zeros(channels, np.float32))
    return b.emit(get("convolution"), (x, w, bias), dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1))[0]


def image(b, name="x"):
    return b.input(TensorType(F32, (1, 8, 5, 7)), name)


def chain(length):
    b = Builder()
    x = image(b)
    for _ in range(length):
        x = conv(b, x)
    return b.graph([x])


def tangle(seed):
    """Convolutions that read, add, concatenate and slice results of others."""
    rng, b = random.Random(seed), Builder()
    made = [image(b)]
    for _ in range(4):
        made.append(conv(b, rng.choice(made[-2:])))
        then, alike = rng.choice(["nothing", "concat", "add", "slice"]), [v for v in made if v.type == made[-1].type]
        if then == "concat":
            made += b.emit(get(then), (made[-1], rng.choice(made)), dict(axis=1))
        elif then == "add":
            made += b.emit(get(then), (made[-1], rng.choice(alike)))
        elif then == "slice":
            made += b.emit(get(then), (made[-1],), dict(starts=(2,), ends=(5,), axes=(1,), steps=(1,)))
    return b.graph([made[-1], conv(b, made[-1])])


def is_copy(task):
    return task.region.title() == "copy"


def random_costs(seed):
    """Costs that depend on the layer, on the layouts of its operands, and on whether it is a copy."""
    rng = random.Random(seed)
    known = {}

    def cost(task):
        orders = tuple(
            layout.order_of(v.type.shape, task.layouts[v]) for v in (*task.reads, *task.writes) if v.type.rank > 1
        )
        key = (task.writes[0].name.split(".")[0], is_copy(task), orders)
        return known.setdefault(key, rng.randrange(1, 6) if is_copy(task) else rng.randrange(1, 20))

    return cost


def total(fused, choose, cost):
    return sum(cost(t) for t in place.place(fused, choose).tasks)


def cut(graph):
    return fuse.fuse(graph, candidates.rejection)


def regions(fused):
    return [i for i in fused.items if isinstance(i, Region)]


@pytest.mark.parametrize("graph, seed", [(chain(6), s) for s in range(5)] + [(tangle(s), s) for s in range(16)])
def test_the_search_is_as_cheap_as_the_best_of_all_combinations(graph, seed):
    fused, cost = cut(graph), random_costs(seed)
    found = layout_search.explore(fused, lambda r: (LAST, PLANES))
    chosen, decisions = found.cheapest(cost)
    every = [dict(zip(regions(fused), p)) for p in itertools.product((LAST, PLANES), repeat=len(regions(fused)))]
    assert total(fused, chosen.__getitem__, cost) == min(total(fused, p.__getitem__, cost) for p in every)
    # the excess of each alternative is at least what it would cost
    for d in decisions:
        for name, more in d.instead.items():
            earlier = decisions[: decisions.index(d)]
            forced = [p for p in every if p[d.region].name == name and all(p[e.region].name == e.by for e in earlier)]
            least = min(total(fused, p.__getitem__, cost) for p in forced)
            assert least - total(fused, chosen.__getitem__, cost) <= more


def test_the_search_finds_what_no_single_change_would():
    """Each of three layers is a little faster on planes, which pays only if none is copied in between."""
    fused = cut(chain(3))

    def cost(task):
        if is_copy(task):
            return 5
        output = task.writes[0]
        return 8 if layout.order_of(output.type.shape, task.layouts[output]) == (0, 1, 2, 3) else 9

    chosen, decisions = layout_search.explore(fused, lambda r: (LAST, PLANES)).cheapest(cost)
    assert {c.name for c in chosen.values()} == {"planes"} and not place.place(fused, chosen.__getitem__).copies
    # a copy to it and one from it, and one more for the layer
    assert [d.instead for d in decisions] == [{"last": 11}] * 3


def test_templates_of_equal_layouts_share_a_transition_and_ties_go_to_the_first():
    fused = cut(chain(4))
    found = layout_search.explore(fused, lambda r: (LAST, Ordered("another", layout.channels_last)))
    assert all(len(past) == 1 for past in found.transitions) and not found.undecided_tasks()
    chosen, decisions = layout_search.explore(fused, lambda r: (PLANES, LAST)).cheapest(lambda task: 0)
    assert {c.name for c in chosen.values()} == {"planes"} and len(decisions) == 4


def test_states_are_bounded_and_the_first_templates_are_among_them(monkeypatch):
    monkeypatch.setattr(layout_search, "MAX_STATES", 1)
    fused = cut(tangle(3))
    found = layout_search.explore(fused, lambda r: (LAST, PLANES))
    assert all(t.before == t.after == 0 for past in found.transitions for t in past)
    chosen, _ = found.cheapest(lambda task: 1 if is_copy(task) else 0)
    assert set(chosen) == set(regions(fused))


def test_layouts_that_no_kernel_runs_are_not_chosen():
    def cost(task):
        channels_last = task.layouts[task.writes[0]][1] == 1
        return layout_search.NEVER if channels_last and not is_copy(task) else 1

    fused = cut(chain(2))
    chosen, decisions = layout_search.explore(fused, lambda r: (LAST, PLANES)).cheapest(cost)
    assert {c.name for c in chosen.values()} == {"planes"} and decisions == ()
