"""What every importer returns: a model as a program, and what is worth knowing of it besides; and the errors that are
no last word."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pelton.errors import ModelError

from .graph import Graph, Node
from .bindings import Broken, Binding

Forms = Mapping[str, Mapping[str, Any]]


class OnData(ModelError):
    """What an importer wants to know depends on the data: no straight line of steps can do this, a script may."""


class OnSizes(ModelError):
    """The problem may exist only for the sizes that were assumed where none were specified."""


@dataclass(frozen=True)
class Metadata:
    """What a model says of itself: "" and 0 where it does not."""

    producer: str = ""
    producer_version: str = ""
    domain: str = ""
    description: str = ""
    version: int = 0
    graph: str = ""
    graph_description: str = ""
    custom: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Info:
    """What is worth knowing about a model besides its graph."""

    path: str = ""  # "" for a model that came as bytes or as an object
    metadata: Metadata = Metadata()
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)  # domain ("" is ai.onnx) → version
    # dynamic dimensions: minimum, optimum, maximum (None: any)
    symbols: Mapping[str, tuple[int, int, int | None]] = field(default_factory=dict)
    defaulted: tuple[str, ...] = ()  # unspecified sizes: "image[0] (batch)"
    # ops that will run on the onnx package: "onnx::Unique@11 (node 'u')"
    foreign: tuple[str, ...] = ()
    # inputs that decide the program: knowing their values would have saved some of these
    wanted: tuple[str, ...] = ()
    # inputs that became constants: "i64[2] = [1, 2]", "nothing"
    values: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    # unspecified sizes that had to be numbers: "x[2] (height) = 128"
    assumed: tuple[str, ...] = ()
    # outputs f32[batch, boxes, 5 + classes]: relative center, width, height, objectness and scores of boxes
    box_outputs: tuple[str, ...] = ()
    # inputs that keep state from run to run: the output with their next values, and the first ones, or one for all
    states: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # the files and folders that it was read from; () for `path` alone
    files: tuple[str, ...] = ()
    # of models that another package converted to ONNX: how the result compares with what their framework computes
    conversion: str = ""

    @property
    def label(self) -> str:
        """The name of the model's file; "" where it came without one."""
        return os.path.basename(self.path)

    @property
    def producer(self) -> str:
        """What made the model, with its version."""
        return f"{self.metadata.producer} {self.metadata.producer_version}".strip()

    def record(self) -> dict[str, Any]:
        """What engines keep of it as JSON, besides their provenance."""
        kept = {k: v for k, v in asdict(self).items() if k not in ("path", "files", "metadata")}
        return {**kept, "producer": self.producer}


@dataclass(frozen=True)
class Imported:
    """A model as a program.

    `forms` tells which inputs and outputs of the model are no single tensor, and of which ports they consist:
    {"inputs": {"x": ["x[0]", "x[1]"]}, "outputs": {"y": ["y[0]"], "z": None}}, a list for a sequence, None for an
    optional without a value, a dict for maps (`runtime.forms`). What it does not name is a port itself."""

    graph: Graph
    info: Info
    forms: Forms = field(default_factory=lambda: {"inputs": {}, "outputs": {}})


@dataclass(frozen=True)
class ImportedNode:
    """A node of a model or of a graph nested in it, what it reads, what was written for it, and what was wrong with it;
    or how it runs as a step of a script.

    `label` is its name in messages, `domain` and `operator` are what the format says that it is. `written` is in the
    script's program of that number, and without what was written for nodes in the node's own graphs."""

    label: str
    domain: str
    operator: str
    inputs: Sequence[Binding | Broken] = ()
    written: Sequence[Node] = ()
    program: int = 0
    problems: Sequence[str] = ()
    where: str = ""
    step: Literal["", "host", "decomposed"] = ""


@dataclass(frozen=True)
class Examined:
    """What became of each node of a model when it was imported: the program, or why there is none.

    `source` is the model as it was read, for whoever takes it further, `name` what messages call it. `open` has the
    symbols of unspecified sizes, `optimum` the sizes to tune for of inputs that have such."""

    source: Any
    name: str
    found: Imported | ModelError
    opsets: Mapping[str, int]
    imported_nodes: Sequence[ImportedNode]
    problems: Sequence[str]
    warnings: Sequence[str]
    open: Mapping[str, str]
    optimum: Mapping[str, tuple[int, ...]]
