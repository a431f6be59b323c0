"""Random typed graphs, with reference values and rounding tolerances, and their shrinking."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from compare import tolerance

from pelton.importers.onnx.names import read_by

from . import (  # noqa: F401  (they propose, in this order)
    aged,
    operators,
    operators_arrays,
    operators_attributes,
    operators_coordinates,
    operators_decided,
    operators_quantized,
)
from .operators_quantized import MICROSOFT
from .proposals import CODES, DECIDED, PROPOSALS
from .reference import STEPS, build_model, by_importer, is_near, is_sane, is_slow, reference

NEWEST = 26
SHAKES = 2
# for integers, which are the same however floats are rounded, or near a tie
MORE = 6
# results that are small differences of larger numbers: x · (1 + tanh …) far out, gates, cubic curves, logarithms
CANCELS = {"Gelu", "BiasGelu", "FastGelu", "LSTM", "GRU", "RNN", "Resize", "LogSoftmax"}
LESS_ONE = {"Elu", "Celu", "Selu"}  # exp(x) - 1
# where a sum cancels out, the rounding of its products remains, which are as large as other sums
SUMS = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "QGemm"}
SUMS |= {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
_SHAPES: tuple[tuple[int, ...], ...] = (
    *((3,), (4,), (2, 3), (3, 4), (1, 5), (2, 3, 4), (1, 3, 4), (2, 1, 3)),
    *((1, 4, 6, 6), (2, 3, 5, 4), (1, 1, 1), (1, 8, 4, 4), ()),
)


@dataclass
class Program:
    """A graph that grows node by node. Any of its nodes can be left out: their results are known."""

    rng: np.random.Generator
    dynamic: bool = False  # some dimensions are
    decided: bool = False  # data decides some shapes or branches
    opset: int = aged.NOW  # that the model is written for
    prefix: str = ""  # of all names in a graph within a graph
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    shaken: dict[str, list[np.ndarray]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    around: list[str] = field(default_factory=list)  # values that a graph within a graph sees
    bodies: int = 0

    # --- what proposals ask for

    def either(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def array(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def pick(self, *dtypes: str, rank: int | None = None, like: str = "") -> str:
        """A value of one of these types; `like`: one that broadcasts with that one.

        Recent ones are likelier; where there is none, an input or a constant is added.
        """
        dtype = self.either(*dtypes)
        names = [
            n
            for n in self.seen()
            if self.arrays[n].dtype.name == dtype
            and (rank is None or self.arrays[n].ndim == rank)
            and (not like or self.fits(n, like))
        ]
        if names and self.rng.random() < 0.85:
            return self.newest(names)
        if like:
            shape = self.arrays[like].shape
            if self.rng.random() < 0.5:
                return self.random(dtype, *self.either(shape, shape[-1:], tuple(1 for _ in shape), (), shape))
            return self.input(dtype, self.either(shape, shape[1:], ()))
        shapes = [s for s in _SHAPES if rank in (None, len(s))]
        return self.input(dtype, self.either(*shapes))

    def seen(self) -> list[str]:
        return [*self.around, *self.inputs, *self.made()]

    def made(self) -> list[str]:
        return [o for n in self.nodes for o in n.output]

    def newest(self, names: list[str]) -> str:
        return names[-1 - int(self.rng.integers(min(len(names), 1 + int(self.rng.exponential(3)))))]

    def some(self, dtype: str, test: Callable[[np.ndarray], bool]) -> str:
        """A value of a type for which the test holds."""
        names = [n for n in self.seen() if self.arrays[n].dtype.name == dtype and test(self.arrays[n])]
        if not names:
            raise LookupError
        return self.newest(names)

    def fits(self, one: str, other: str) -> bool:
        return all(a == b or 1 in (a, b) for a, b in zip(self.arrays[one].shape[::-1], self.arrays[other].shape[::-1]))

    def drawn(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if "int" in dtype:
            return np.asarray(self.rng.integers(-4 if dtype[0] == "i" else 1, 6, shape)).astype(dtype)
        return np.asarray(self.rng.uniform(-1.5, 2, shape)).astype(numpy_type(dtype))

    def random(self, dtype: str, *shape: int) -> str:
        """A constant of data: sums of it may cancel out, so it is perturbed like computed values."""
        array = self.drawn(dtype, shape)
        name = self.constant(array)
        self.hold(name, array, [self.shake(array) for _ in range(SHAKES)])
        return name

    def constant(self, array) -> str:
        name = f"{self.prefix}c{len(self.constants)}"
        self.constants.append(name)
        self.hold(name, np.asarray(array), [np.asarray(array)] * SHAKES)
        return name

    def input(self, dtype: str, shape: Sequence[int]) -> str:
        # a graph within a graph gets no further inputs
        if self.prefix:
            return self.random(dtype, *shape)
        name, array = f"x{len(self.inputs)}", self.drawn(dtype, shape)
        self.inputs.append(name)
        self.hold(name, array, [self.shake(array) for _ in range(SHAKES)])
        return name

    def hold(self, name: str, array: np.ndarray, shaken: list[np.ndarray]) -> None:
        self.arrays[name], self.shaken[name] = array, shaken

    # --- graphs within this one

    def inner(self, count: int, given: Mapping[str, np.ndarray]) -> Program:
        """A graph within this one, grown by `count` nodes from its values and `given` inputs with first arrays."""
        self.bodies += 1
        inside = Program(
            self.rng,
            opset=self.opset,
            decided=self.decided and not self.prefix,
            prefix=f"{self.prefix}b{self.bodies}.",
            arrays=dict(self.arrays),
            shaken=dict(self.shaken),
        )
        for name, array in given.items():
            inside.hold(inside.called(name), np.asarray(array), [np.asarray(array)] * SHAKES)
        inside.around = [*self.seen(), *map(inside.called, given)]
        return inside.grow(count)

    def called(self, name: str) -> str:
        return self.prefix + name

    def fresh(self) -> str:
        return f"{self.prefix}v{len(self.made())}"

    def body(self, given: Sequence[str], outputs: Sequence[str]) -> onnx.GraphProto:
        def typed(name: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, CODES[self.arrays[name].dtype.name], None)

        if not outputs:
            raise LookupError
        return helper.make_graph(
            self.nodes,
            "body",
            [typed(self.called(n)) for n in given],
            [typed(n) for n in outputs],
            [numpy_helper.from_array(self.arrays[n], n) for n in self.constants],
        )

    # --- growth

    def grow(self, count: int) -> "Program":
        for _ in range(8 * count):
            if len(self.nodes) >= count:
                break
            kept = len(self.inputs), len(self.constants)
            proposals = [*PROPOSALS, *2 * DECIDED] if self.decided else PROPOSALS
            try:
                op, inputs, outputs, attrs = proposals[self.rng.integers(len(proposals))](self)
                first = len(self.made())
                names = [f"{self.prefix}v{first + i}" for i in range(outputs)]
                node = helper.make_node(op, inputs, names, f"{self.prefix}n{len(self.nodes)}", **attrs)
                fits = self.take(node)
            except (LookupError, ValueError):  # no value fits
                fits = False
            if not fits:
                for names, n in ((self.inputs, kept[0]), (self.constants, kept[1])):
                    for name in names[n:]:
                        del self.arrays[name], self.shaken[name]
                    del names[n:]
        return self

    def take(self, node: onnx.NodeProto) -> bool:
        """Adds the node, if the reference can run it and rounding cannot change its results much."""
        # the onnx package runs the outer graph
        if self.prefix and (by_importer(node) or is_slow(node)):
            return False
        aged.agreed(node, self.opset, self.arrays, CODES, self.constants)
        run, reads = reference(node, self.constants, max(self.opset, aged.NOW)), sorted(read_by(node))
        results = run({n: self.arrays[n] for n in reads})
        if results is None:
            return False
        moved = [run({n: self.shaken[n][k] for n in reads}) for k in range(SHAKES)]
        # or values are rounded inside
        if any(a.dtype.name not in STEPS for a in results) or "Quantize" in node.op_type:
            moved += [run({n: self.again(n, node.domain == MICROSOFT) for n in reads}) for _ in range(MORE)]
        for i, a in enumerate(results):
            if not is_sane(a) or any(
                m is None or not is_sane(m[i]) or m[i].shape != a.shape or not is_near(a, m[i]) for m in moved
            ):
                return False
        # results that depend on rounding to f16 inside, such as small squares, are not compared
        if any(self.arrays[n].dtype == np.float16 for n in reads):
            arrays = {n: self.arrays[n] for n in reads}
            wide = run({n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in arrays.items()})
            if wide is not None and any(
                w.shape == a.shape and a.dtype == np.float16 and not is_near(w, a) for w, a in zip(wide, results)
            ):
                return False
        lost = (
            sum(np.abs(self.arrays[n].astype(np.float64)).max(initial=0) for n in reads)
            if node.op_type in CANCELS
            else float(node.op_type in LESS_ONE)
        )
        for i, (name, a) in enumerate(zip(node.output, results)):
            spread = np.abs(a.astype(np.float64)).max(initial=0) if node.op_type in SUMS else 0.0
            self.hold(name, a, [self.shake(m[i], lost + spread, a) for m in moved])
        self.nodes.append(node)
        return True

    def shake(self, a: np.ndarray, lost: float | np.ndarray = 0.0, away: np.ndarray | None = None) -> np.ndarray:
        """The same, rounded differently.

        lost: the largest magnitude that cancels out in it. away: the array that was moved to this one, which is moved
        further.
        """
        step = STEPS.get(a.dtype.name)
        if step is None:
            return a
        wide, sign = a.astype(np.float64), self.rng.choice((-1.0, 1.0), a.shape)
        if away is not None:
            moved = wide - away.astype(np.float64)
            part = (1 - 0.3 * (0.618 * np.arange(a.size) % 1)).reshape(a.shape)  # equal elements get different ones
            sign = np.where(moved == 0, sign, np.sign(moved) * part)
        return np.asarray(wide + (np.abs(wide) + lost) * step * sign).astype(a.dtype)

    def again(self, name: str, free: bool) -> np.ndarray:
        """A value rounded differently once more, if it may be.

        free: constants, too, for an operator whose arithmetic is not specified step by step.
        """
        a, moved = self.arrays[name], self.shaken[name]
        if not (free and name in self.constants) and all(np.array_equal(a, s) for s in moved):
            return a
        far = (
            sum(np.abs(s.astype(np.float64) - a.astype(np.float64)) for s in moved) / len(moved)
            if a.dtype.name in STEPS
            else 0.0
        )
        # as far as it is known to move, but in any direction
        return self.shake(a, far / STEPS.get(a.dtype.name, 1.0))

    # --- as a model

    def model(
        self, nodes: Sequence[onnx.NodeProto] | None = None
    ) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
        """These nodes as a model, its feeds, and its outputs.

        Outputs are values without readers, and some intermediate ones; results of nodes that are left out are inputs.
        """
        nodes = self.nodes if nodes is None else nodes
        nodes = [aged.aged(n, self.opset, self.arrays) for n in nodes]
        made, read = {o for n in nodes for o in n.output}, set().union(*map(read_by, nodes))
        outputs = [o for n in nodes for o in n.output if o not in read or zlib.crc32(o.encode()) % 5 == 0]
        inputs = [n for n in self.arrays if n in read and n not in made and n not in self.constants]
        constants = [n for n in self.constants if n in read]
        declared = [helper.make_tensor_value_info(n, CODES[self.arrays[n].dtype.name], None) for n in outputs]
        graph = helper.make_graph(
            nodes,
            "fuzz",
            [self.info(n) for n in inputs],
            declared,
            [numpy_helper.from_array(self.arrays[n], n) for n in constants],
        )
        m = build_model(graph, self.opset)
        return m, {n: self.arrays[n] for n in inputs}, outputs

    def info(self, name: str) -> onnx.ValueInfoProto:
        """A declared input; some dimensions of dynamic programs are names, equal for equal sizes."""
        a = self.arrays[name]
        shape = [
            f"d{d}" if self.dynamic and d > 1 and zlib.crc32(f"{name} {i}".encode()) % 3 else d
            for i, d in enumerate(a.shape)
        ]
        return helper.make_tensor_value_info(name, CODES[a.dtype.name], shape)

    def assert_near(self, name: str, got: np.ndarray) -> None:
        """Asserts that a result is the reference's, as far as rounding leaves it determined."""
        want = self.arrays[name]
        assert got.dtype == want.dtype and got.shape == want.shape, (
            f"{name}: got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        )
        if want.dtype.name not in STEPS:
            assert (got == want).all(), (
                f"{name}: {int((got != want).sum())} of {want.size} differ, e.g. {got[got != want][:3]} is not"
                f" {want[got != want][:3]}"
            )
            return
        if not want.size:
            return
        g, w = got.astype(np.float64), want.astype(np.float64)
        moved = max(np.abs(s.astype(np.float64) - w).max() for s in self.shaken[name])
        allowed = 4 * moved + tolerance(want.dtype) * np.abs(w).max() + 1e-30
        error = np.abs(g - w)
        assert not np.isnan(g).any() and error.max() <= allowed, (
            f"{name}: off by {error.max():.3g} where {allowed:.3g} is allowed, of {np.abs(w).max():.3g}"
        )


def numpy_type(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)


def program(seed: int) -> Program:
    """The random graph of a seed, of 5 to 40 nodes.

    Every third one is dynamic, every fourth one has shapes or branches that data decides, every fourth one is of an
    older opset, and every fourth one of a newer.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 41))
    old = int(rng.integers(aged.OLDEST, aged.NOW))
    new = int(rng.integers(aged.NOW, NEWEST + 1))
    opset = {2: new, 3: old}.get(seed % 4, aged.NOW)
    return Program(rng, dynamic=seed % 3 == 0, decided=seed % 4 == 1, opset=opset).grow(count)


def shrunk(nodes: list[onnx.NodeProto], fails: Callable[[list[onnx.NodeProto]], bool]) -> list[onnx.NodeProto]:
    """A minimal part of the nodes that still fails, found by leaving out smaller and smaller runs of them."""
    size = len(nodes) // 2
    while size:
        for at in range(0, len(nodes), size):
            fewer = nodes[:at] + nodes[at + size :]
            if fewer and fails(fewer):
                nodes = fewer
                break
        else:
            size //= 2
    return nodes
