"""Random typed graphs with the values that the onnx package's reference gives them, and how far rounding may move
those; and their smallest failing part."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from compare import tolerance

from pelton.importers.onnx import load as importer
from pelton.importers.onnx.names import read_by
from pelton.errors import Error
from pelton.ir.evaluate import evaluate
from pelton.ops.foreign import bounded

from . import (  # noqa: F401  (they propose, in this order)
    aged,
    operators,
    operators_arrays,
    operators_attributes,
    operators_coordinates,
    operators_decided,
    operators_quantized,
)
from .proposals import CODES, DECIDED, PROPOSALS
from .operators_quantized import MICROSOFT, ML

OPSETS, IR = {ML: 3, MICROSOFT: 1}, 10
RECURRENT = ("LSTM", "GRU", "RNN")
NEWEST = 26
LARGEST = 4096  # elements of a value
SHAKES = 2
# for integers, which are the same however floats are rounded, or near a tie
MORE = 6
# relative changes of every value, to learn how much rounding may matter
STEPS = {"float64": 2.0**-46, "float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}
# x · (1 + what is -1 for small x) / 2: far out, what is left is rounding; states of which gates leave little; cubic
# curves; logarithms near 0
CANCELS = {"Gelu", "BiasGelu", "FastGelu", "LSTM", "GRU", "RNN", "Resize", "LogSoftmax"}
LESS_ONE = {"Elu", "Celu", "Selu"}  # powers of e, of which 1 is taken
# what cancels out in one place leaves the rounding of products as large as the sums of other places
SUMS = {
    "MatMul",
    "Gemm",
    "Conv",
    "ConvTranspose",
    "Einsum",
    "FusedMatMul",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
    "QGemm",
}
_SHAPES = (
    (3,),
    (4,),
    (2, 3),
    (3, 4),
    (1, 5),
    (2, 3, 4),
    (1, 3, 4),
    (2, 1, 3),
    (1, 4, 6, 6),
    (2, 3, 5, 4),
    (1, 1, 1),
    (1, 8, 4, 4),
    (),
)


@dataclass
class Program:
    """A graph that grows node by node. Any of its nodes can be left out: what they would have made is known."""

    rng: np.random.Generator
    open_sizes: bool = False
    decided: bool = False  # the data decides of some of it
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
        """A value of one of these types; `like`: one that broadcasts with that one. The newest are the likeliest; what
        is not there is made."""
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
            return (
                self.random(dtype, *self.either(shape, shape[-1:], tuple(1 for _ in shape), (), shape))
                if self.rng.random() < 0.5
                else self.input(dtype, self.either(shape, shape[1:], ()))
            )
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
        return np.asarray(self.rng.uniform(-1.5, 2, shape)).astype(_numpy(dtype))

    def random(self, dtype: str, *shape: int) -> str:
        """A constant that is data: sums of it may cancel out, so it is shaken like what is computed."""
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
        # a graph within a graph gets no more inputs than it has
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
        """A graph within this one, grown a little from what there is here and from inputs of its own, `given` with what
        they are at first."""
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
            except (LookupError, ValueError):  # nothing there that it could be done to
                fits = False
            if not fits:
                for names, n in ((self.inputs, kept[0]), (self.constants, kept[1])):
                    for name in names[n:]:
                        del self.arrays[name], self.shaken[name]
                    del names[n:]
        return self

    def take(self, node: onnx.NodeProto) -> bool:
        """Adds the node, if the reference can run it and its results can be told from rounding."""
        # the onnx package runs the graph that this one lies in
        if self.prefix and (by_importer(node) or slow(node)):
            return False
        aged.agreed(node, self.opset, self.arrays, CODES, self.constants)
        run, reads = evaluated(node, self.constants, max(self.opset, aged.NOW)), sorted(read_by(node))
        results = run({n: self.arrays[n] for n in reads})
        if results is None:
            return False
        moved = [run({n: self.shaken[n][k] for n in reads}) for k in range(SHAKES)]
        # or what is rounded on the way
        if any(a.dtype.name not in STEPS for a in results) or "Quantize" in node.op_type:
            moved += [run({n: self.again(n, node.domain == MICROSOFT) for n in reads}) for _ in range(MORE)]
        for i, a in enumerate(results):
            if not sane(a) or any(
                m is None or not sane(m[i]) or m[i].shape != a.shape or not near(a, m[i]) for m in moved
            ):
                return False
        # what it loses on the way in f16, such as small squares, is nobody's result
        if any(self.arrays[n].dtype == np.float16 for n in reads):
            wide = run(
                {
                    n: self.arrays[n].astype(np.float32) if self.arrays[n].dtype == np.float16 else self.arrays[n]
                    for n in reads
                }
            )
            if wide is not None and any(
                w.shape == a.shape and a.dtype == np.float16 and not near(w, a) for w, a in zip(wide, results)
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
        """The same, rounded otherwise. lost: the largest of what is added up and cancels out in it. away: what has been
        moved to here, and is moved further."""
        step = STEPS.get(a.dtype.name)
        if step is None:
            return a
        wide, sign = a.astype(np.float64), self.rng.choice((-1.0, 1.0), a.shape)
        if away is not None:
            moved = wide - away.astype(np.float64)
            # equals come apart
            sign = np.where(
                moved == 0, sign, np.sign(moved) * (1 - 0.3 * (0.618 * np.arange(a.size) % 1).reshape(a.shape))
            )
        return np.asarray(wide + (np.abs(wide) + lost) * step * sign).astype(a.dtype)

    def again(self, name: str, free: bool) -> np.ndarray:
        """A value rounded otherwise once more, if it may be. free: constants, too, for an operator whose arithmetic
        nobody has written down step by step."""
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
        """These nodes as a model, what to feed it, and its outputs: what nobody reads, and some of what lies between.
        What left out nodes would have made is an input."""
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
        m = _model(graph, self.opset)
        return m, {n: self.arrays[n] for n in inputs}, outputs

    def info(self, name: str) -> onnx.ValueInfoProto:
        """A declared input; with open sizes some of them are names, equal for equal sizes."""
        a = self.arrays[name]
        shape = [
            f"d{d}" if self.open_sizes and d > 1 and zlib.crc32(f"{name} {i}".encode()) % 3 else d
            for i, d in enumerate(a.shape)
        ]
        return helper.make_tensor_value_info(name, CODES[a.dtype.name], shape)

    def assert_near(self, name: str, got: np.ndarray) -> None:
        """Whether a result is the reference's, as far as that can be told."""
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


def _numpy(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)


def sane(a: np.ndarray) -> bool:
    if a.size > LARGEST or a.dtype.name not in CODES:
        return False
    return a.dtype.name not in STEPS or bool(np.all(np.abs(a.astype(np.float64)) < 1e4))


def near(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether rounding leaves a value what it is: the same integers, about the same floats."""
    if a.dtype.name not in STEPS:
        return bool((a == b).all())
    wide = a.astype(np.float64)
    return not a.size or np.abs(wide - b.astype(np.float64)).max() <= 0.03 * np.abs(wide).max()


def _model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    return helper.make_model(
        graph, ir_version=IR, opset_imports=[helper.make_opsetid(d, v) for d, v in {"": opset, **OPSETS}.items()]
    )


def by_importer(node: onnx.NodeProto) -> bool:
    """Whether a node means what the importer says: where the onnx package has no reference, takes no notice of
    attributes, sums up the wrong channels, takes the pads of one axis for those of another, or a pixel's neighbour for
    the pixel that a place falls on but for rounding."""
    attrs = {a.name: a.ints for a in node.attribute}
    swaps = (
        node.op_type == "MaxPool"
        and len(pads := attrs.get("pads", ())) == 4
        and pads[1] != pads[2]
        and set(attrs.get("strides", ())) <= {1}
    )
    return (
        node.domain == MICROSOFT
        or node.op_type in RECURRENT
        and len(attrs) > 1
        or node.op_type == "LRN"
        or swaps
        or (any(a.s == b"half_pixel_symmetric" for a in node.attribute))
    )


def slow(node: onnx.NodeProto) -> bool:
    """Whether the onnx package's reference writes a function anew for every run of the node: half a second in loops
    within loops."""
    return not node.domain and onnx.defs.get_schema(node.op_type).has_context_dependent_function


def evaluated(
    node: onnx.NodeProto, constants: Sequence[str], opset: int
) -> Callable[[dict[str, np.ndarray]], list[np.ndarray] | None]:
    """The reference of one node: the onnx package's (its Erf mended), and where that has none, what the importer says
    that the operator means, in float64. It gives None for what it cannot do, or will not."""

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        held = [numpy_helper.from_array(np.asarray(a), n) for n, a in feeds.items() if n in constants]
        inputs = {n: a for n, a in feeds.items() if n not in constants}
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(n, CODES[a.dtype.name], a.shape) for n, a in inputs.items()],
            [onnx.ValueInfoProto(name=o) for o in node.output],
            held,
        )
        m = _model(graph, opset)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if by_importer(node):
                    meant = evaluate(importer.load(m).graph, inputs)
                    return [meant[o] for o in node.output]
                inferred = onnx.shape_inference.infer_shapes(m, check_type=True, strict_mode=True)
                found = [np.asarray(a) for a in bounded(m).run(None, inputs)]
        except (
            onnx.checker.ValidationError,
            onnx.shape_inference.InferenceError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            AssertionError,
            Error,
        ):
            return None
        declared = [v.type.tensor_type.elem_type for v in inferred.graph.output]
        return None if any(CODES.get(a.dtype.name) != d for a, d in zip(found, declared)) else found

    return run


def program(seed: int) -> Program:
    """The random graph of a seed: 5 to 40 nodes; every third one has open sizes, of every fourth one the data decides,
    every fourth one is of an older opset, and every fourth one of a newer."""
    rng = np.random.default_rng(seed)
    count, old, new = (
        int(rng.integers(*between)) for between in ((5, 41), (aged.OLDEST, aged.NOW), (aged.NOW, NEWEST + 1))
    )
    return Program(
        rng, open_sizes=seed % 3 == 0, decided=seed % 4 == 1, opset={2: new, 3: old}.get(seed % 4, aged.NOW)
    ).grow(count)


def shrunk(nodes: list[onnx.NodeProto], fails: Callable[[list[onnx.NodeProto]], bool]) -> list[onnx.NodeProto]:
    """The least part of the nodes that still fails, as far as leaving out more and more of them finds it."""
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
