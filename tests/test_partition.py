"""Partition is independent of formats: a model other than ONNX, with unread nodes, becomes a script too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import pelton
from pelton import importers
from pelton.engine.script import IfAction, RunAction
from pelton.errors import ModelError
from pelton.importers import registry
from pelton.importers.registry import Format
from pelton.ir import dims
from pelton.ir.bindings import BROKEN
from pelton.ir.builder import Builder
from pelton.ir.graph import Value
from pelton.ir.imported import Imported, ImportedNode, Info, OnData
from pelton.ir.types import F32, I64, DType, TensorType
from pelton.ir.unread import Branches, HostCall, Interface, order
from pelton.ops import get
from pelton.partition import partition

SIZE = dims.symbol("n", 1, 4, dims.UNBOUNDED)
X = TensorType(F32, (SIZE, 3))
ATTRIBUTES = {"reduce_sum": {"axes": (0, 1), "keepdims": False}, "cast": {"to": DType.F32}}


@dataclass(frozen=True, eq=False)
class Line:
    """`made = op read …`; "choose" has two programs."""

    outputs: tuple[str, ...]
    operator: str
    inputs: tuple[str, ...]
    branches: tuple[Program, ...] = ()
    name: str = ""
    domain: str = "toy"

    @property
    def label(self) -> str:
        return f"{self.operator} → {self.outputs[0]}"

    @property
    def title(self) -> str:
        return f"toy::{self.operator}"

    @property
    def reads(self) -> set[str]:
        inside = {name for b in self.branches for line in b.nodes for name in line.reads} - {
            o for b in self.branches for n in b.nodes for o in n.outputs
        }
        return {*self.inputs, *inside}

    @property
    def control(self) -> Branches | None:
        return Branches(*self.branches) if self.branches else None


@dataclass(frozen=True, eq=False)
class Program:
    """Lines, and the names of what comes out."""

    nodes: tuple[Line, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    name: str = "toy"
    held: Mapping[str, np.ndarray] = field(default_factory=dict)

    def constants(self) -> Mapping[str, np.ndarray]:
        return self.held


class Reader:
    """Ops by their names; choosing and counting are for the data to decide."""

    known_sizes: Iterable[str] = ()
    unanswered: Iterable[str] = ()
    imported_nodes: Sequence[ImportedNode] = ()

    def __init__(self) -> None:
        self.builder, self.bound = Builder(folds=True), {}
        self.problems: list[str] = []
        self.on_data: set[str] = set()
        self.unknown, self.undecided, self.warnings, self.foreign_steps = [], [], [], []

    def bind(self, name, thing):
        self.bound[name] = thing

    def read(self, line: Line):
        if line.operator in ("choose", "nonzero"):
            self.problems.append(f"what {line.label} depends on the data")
            self.on_data.add(self.problems[-1])
            return (BROKEN,) * len(line.outputs)
        inputs = [self.bound[name] for name in line.inputs]
        attrs = ATTRIBUTES.get(line.operator, {})
        return self.builder.emit(get(line.operator), inputs, attrs, names=line.outputs, node_name=line.label)


@dataclass(frozen=True, eq=False)
class Toy:
    """A model of lines."""

    graph: Program
    name: str = "a toy"
    opsets: Mapping[str, int] = field(default_factory=dict)

    def interface(self, settled):
        return Interface((Value(X, "x"),), self.graph.constants(), self.graph.outputs, {}, (), (), (), Info())

    def reader(self, wanted):
        return Reader()

    def dtype(self, name):
        return None

    def call(self, node, reason):
        if node.operator != "nonzero":
            raise ModelError(f"{reason}; nothing else runs it")
        return HostCall("nonzero", "{}", node.inputs, node.outputs)

    def types(self, node, known, fresh):
        return [TensorType(I64, (2, fresh("found", 1)))]


BOTH = Program(
    (
        Line(("s",), "reduce_sum", ("x",)),
        Line(("c",), "greater", ("s", "zero")),
        Line(
            ("y",),
            "choose",
            ("c",),
            (
                Program((Line(("a",), "exp", ("x",)), Line(("b",), "add", ("a", "one"))), ("b",)),
                Program((Line(("d",), "neg", ("x",)),), ("d",), held={"unused": np.float32(3)}),
            ),
        ),
        Line(("z",), "mul", ("y", "y")),
        Line(("at",), "nonzero", ("z",)),
        Line(("w",), "cast", ("at",)),
    ),
    ("z", "w"),
    ("x",),
    held={"zero": np.float32(0), "one": np.float32(1)},
)


def straight(source, *args) -> Imported:
    raise OnData("a toy's data determines the program")


@pytest.fixture
def toys(monkeypatch):
    toy = Format("toy", lambda source: isinstance(source, Program), straight, unread=lambda source, *_: Toy(source))
    monkeypatch.setattr(registry, "FORMATS", [*registry.FORMATS, toy])


def test_another_format_becomes_a_script(toys):
    found = partition.partition_model(importers.unread(BOTH))
    kinds = [type(step) for step in found.main.steps]
    assert kinds[:3] == [RunAction, IfAction, RunAction] and found.host == ("toy::nonzero (node 'at')",)
    assert [str(v.type) for v in found.inputs] == ["f32[n, 3]"] and [p.shape for p in found.outputs] == [
        ("n", 3),
        (2, "found"),
    ]
    engine = pelton.build(BOTH, level=0)
    for x in (np.full((2, 3), 0.5, np.float32), np.array([[1, -2, 0]], np.float32)):
        y = np.exp(x) + 1 if x.sum() > 0 else -x
        out = engine.run({"x": x})
        np.testing.assert_allclose(out["z"], y * y, rtol=1e-6)
        np.testing.assert_array_equal(out["w"], np.array(np.nonzero(y * y), np.float32))


def test_what_nothing_can_run_is_refused_with_its_reason(toys):
    model = Toy(replace(BOTH, nodes=tuple(replace(line, branches=()) for line in BOTH.nodes)))
    with pytest.raises(ModelError, match="what choose → y depends on the data; nothing else runs it"):
        partition.partition_model(model)


def test_a_format_without_unread_models_says_so(monkeypatch):
    monkeypatch.setattr(registry, "FORMATS", [Format("plain", lambda source: True, straight)])
    with pytest.raises(ModelError, match="models of the format plain cannot have control flow"):
        importers.unread(BOTH)


@pytest.mark.parametrize(
    "reads, makes, found",
    [
        ([["b"], ["x"], []], [["a"], ["b"], ["c"]], [1, 0]),
        ([[], []], [["a"], ["a"]], "made twice"),
        ([["b"], ["a"]], [["a"], ["b"]], "a cycle through node 'n0'"),
    ],
)
def test_order(reads, makes, found):
    names = [f"n{i}" for i in range(len(reads))]
    if isinstance(found, list):
        assert order(names, reads, makes, ["a"], {"x"}.__contains__) == found
    else:
        with pytest.raises(ModelError, match=found):
            order(names, reads, makes, ["a"], {"x"}.__contains__)
