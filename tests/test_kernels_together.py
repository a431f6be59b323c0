"""Random programs of kernels and views: layouts meet in every combination, and each region equals its reference in its
allotted memory."""

import random

import numpy as np
import pytest
from emulator import here
from kernel_harness import TARGET, TARGETS, linked

from pelton.compiler.accuracy import check_accuracy
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages, start
from pelton.ir.imported import Imported, Info
from pelton.ir.dims import Undecided, bounds, is_known, maximum, symbol, optimum
from pelton.ir.builder import Builder
from pelton.ir.graph import Graph, Value, remove_dead_nodes
from pelton.ir.types import F32, TensorType
from pelton.codegen.template import Target
from pelton.ops import get
from pelton.options import Options
from pelton.plan import lower, place, placed
from pelton.runtime import Engine
from pelton.tuning import candidates, search


class Layers:
    """Builds a random program of images, sequences and matrices, layer after layer; varying: with dynamic inputs."""

    def __init__(self, seed: int, varying: bool = False):
        self.rng, self.builder = np.random.default_rng(seed), Builder()
        some = [
            symbol(name, minimum, size, 64) if varying else size
            for name, minimum, size in (
                ("batch", 1, 1),
                ("height", 4, 7),
                ("width", 4, 9),
                ("lines", 1, 2),
                ("length", 2, 5),
                ("rows", 1, 3),
            )
        ]
        shapes = ("image", (some[0], 12, *some[1:3])), ("rows", (*some[3:5], 24)), ("matrix", (some[5], 8))
        self.values = [self.builder.input(TensorType(F32, shape), name) for name, shape in shapes]
        self.given = len(self.values)

    def emit(self, op: str, *inputs: Value, **attrs) -> None:
        self.values += [v for v in self.builder.emit(get(op), inputs, attrs) if optimum(v.type.size) < 20000]

    def constant(self, *shape: int) -> Value:
        """Random numbers, one for an axis whose size is not known."""
        return self.builder.constant(
            self.rng.standard_normal([d if is_known(d) else 1 for d in shape]).astype(np.float32)
        )

    def either(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def upto(self, n: int) -> int:
        return int(self.rng.integers(n))

    def pick(self, rank: int | None = None) -> Value:
        recent = [v for v in self.values[-6:] if v.type.rank == (rank or v.type.rank) > 0]
        return self.either(*(recent or [v for v in self.values if v.type.rank == (rank or 3)]))

    def view(self) -> None:
        x = self.pick()
        shape, rank = x.type.shape, x.type.rank
        axis, step = self.upto(rank), self.either(1, 2, -1, -2)
        beside = [
            v
            for v in self.values
            if v.type.rank == rank and all(a == b for i, (a, b) in enumerate(zip(v.type.shape, shape)) if i != axis)
        ]
        kind = self.either("transpose", "slice", "concat", "expand", "reshape")
        if kind == "transpose":
            self.emit(kind, x, perm=tuple(map(int, self.rng.permutation(rank))))
        elif kind == "slice":
            self.emit(
                kind,
                x,
                starts=(0 if step > 0 else shape[axis] - 1,),
                ends=(shape[axis] if step > 0 else -1,),
                axes=(axis,),
                steps=(step,),
            )
        elif kind == "concat":
            self.emit(kind, self.either(*beside), self.either(*beside), axis=axis)
        elif kind == "expand" and rank < 4:
            self.emit(kind, x, shape=(1 + self.upto(3), *shape))
        elif rank > 1:
            self.emit("reshape", x, shape=(shape[0] * shape[1], *shape[2:]))

    def pointwise(self) -> None:
        x = self.pick()
        alike = [v for v in self.values if v.type == x.type]
        self.either(
            lambda: self.emit(self.either("relu", "sigmoid", "abs"), x),
            lambda: self.emit("add", x, self.either(*alike)),
            lambda: self.emit("mul", x, self.constant(x.type.shape[-1])),
        )()

    def along(self) -> None:
        x = self.pick()
        shape, rank = x.type.shape, x.type.rank
        axis = self.upto(rank)
        some = tuple(sorted(set(map(int, self.rng.integers(0, rank, 1 + self.upto(rank))))))
        pads = [0] * (2 * rank)
        pads[axis], pads[rank + axis] = self.upto(3), self.upto(3)
        least, known = bounds(shape[axis])[0], is_known(*shape[axis:])
        picked = self.builder.constant(
            self.rng.integers(-least, least, 1 + self.upto(5)) if least else np.zeros(0, np.int64)
        )
        self.either(
            lambda: self.emit(
                self.either("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"),
                x,
                axes=some,
                keepdims=self.either(True, False),
            ),
            lambda: self.emit(self.either("softmax", "log_softmax"), x, axis=axis),
            lambda: (
                self.emit("layer_norm", x, self.constant(*shape[axis:]), self.constant(*shape[axis:]), axis=axis)
                if known
                else None
            ),
            lambda: self.emit("cumsum", x, axis=axis, reverse=self.either(True, False)),
            lambda: self.emit("gather", x, picked, axis=axis),
            lambda: self.emit(
                "pad", x, self.constant(), pads=tuple(pads), mode=self.either("constant", "edge", "wrap")
            ),
            lambda: self.emit("tile", x, repeats=tuple(2 if a == axis else 1 for a in range(rank))),
            lambda: self.emit("trilu", x, k=self.upto(5) - 2, upper=self.either(True, False)) if rank > 1 else None,
        )()

    def image(self) -> None:
        x = self.pick(4)
        n, c, h, w = x.type.shape
        if not is_known(c):
            return
        k = min(bounds(h)[0], bounds(w)[0], 1 + self.upto(3))
        if k < 1:
            return
        size, narrower = (
            dict(kernel=(k, k), strides=(1 + self.upto(2), 1 + self.upto(2)), pads=(k // 2,) * 4, dilations=(1, 1)),
            maximum(1, w - 1),
        )
        same = dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1))
        self.either(
            lambda: self.emit(self.either("max_pool", "average_pool"), x, **size, ceil_mode=self.either(True, False)),
            lambda: (
                self.emit(
                    "resize",
                    x,
                    shape=(n, c, h * 2, narrower),
                    scales=(1.0, 1.0, 2.0, narrower / w),
                    mode=self.either("nearest", "linear", "cubic"),
                )
                if is_known(h, w)
                else None
            ),
            lambda: self.emit("instance_norm", x, self.constant(c), self.constant(c)),
            lambda: self.emit(
                "group_norm",
                x,
                self.constant(c),
                self.constant(c),
                groups=self.either(*(g for g in range(1, c + 1) if c % g == 0)),
            ),
            lambda: self.emit("lrn", x, size=3, alpha=0.1, beta=0.75, bias=1.0),
            lambda: self.emit("convolution", x, self.constant(6, c, 1, 1), self.constant(6), **same),
            lambda: self.emit(
                "conv_transpose",
                x,
                self.constant(c, 6, 2, 2),
                self.constant(6),
                **{**same, "strides": (2, 1)},
                output_padding=(0, 0),
            ),
        )()

    def graph(self, steps: int) -> Graph:
        while len(self.values) < self.given + steps:
            try:
                self.either(self.view, self.pointwise, self.along, self.image)()
            except Undecided:
                # an op may ask what is not known of its sizes: then it is another's turn
                continue
        made = self.values[self.given :]
        outputs = dict.fromkeys([made[-1], *(self.either(*made) for _ in range(3))])
        return remove_dead_nodes(self.builder.graph(outputs))


SEEDS = pytest.mark.parametrize(
    "seed", [*range(30), *(pytest.param(s, marks=pytest.mark.slow) for s in range(30, 200))]
)


def planned(seed: int, target: Target) -> Compilation:
    """Random layers with everything in its place, no pass having run over them that is not about element types."""
    return run_stages(start(Imported(Layers(seed).graph(12), Info()), Options(), target, "optimize"), "place")


@here
@SEEDS
def test_random_layers_in_the_memory_they_are_given(seed):
    run(planned(seed, TARGET).placed, seed, TARGET)


@pytest.mark.parametrize("seed", range(300, 303))
@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t is not TARGET], ids=lambda t: t.isa)
def test_random_layers_for_cpus_of_other_levels(seed, target):
    run(planned(seed, target).placed, seed, target)


@here
@SEEDS
def test_random_layers_placed_as_any_template_demands(seed):
    rng = random.Random(seed)
    run(place.place(planned(seed, TARGET).fused, lambda r: rng.choice(candidates.accepting_templates(r))), seed, TARGET)


def run(placed: placed.Placed, seed: int, target: Target) -> None:
    choices = search.select(placed, target, None, strict=False, max_tactics=1)
    code = linked([c.kernel for c in choices.values()], target)
    waves = lower.waves(placed)
    chosen = [
        lower.ScheduledTask(t, choices[i].kernel if i in choices else None, waves[i], {"name": f"{i}"})
        for i, t in enumerate(placed.tasks)
    ]
    names = [f"y{i}" for i, _ in enumerate(placed.graph.outputs)]
    plain = lower.lower(
        placed, chosen, code, name="random", target={}, meta={"threads": target.threads}, output_names=names
    )
    check_accuracy(Engine(plain), placed, chosen, seed)
