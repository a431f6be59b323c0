"""The results of importers: a model as a program with its metadata, and errors that other sizes or a script may
avoid."""

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
    """The import depends on the data: a straight line of steps cannot express this, a script may."""


class OnSizes(ModelError):
    """The problem may exist only for the sizes assumed for unspecified ones."""


@dataclass(frozen=True)
class Metadata:
    """The model's own metadata: "" and 0 where it has none."""

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
    """Information about a model besides its graph."""

    path: str = ""  # "" for a model that came as bytes or as an object
    metadata: Metadata = Metadata()
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)  # domain ("" is ai.onnx) → version
    # dynamic dimensions: minimum, optimum, maximum (None: any)
    symbols: Mapping[str, tuple[int, int, int | None]] = field(default_factory=dict)
    defaulted: tuple[str, ...] = ()  # unspecified sizes: "image[0] (batch)"
    # ops that will run on the onnx package: "onnx::Unique@11 (node 'u')"
    foreign: tuple[str, ...] = ()
    # inputs whose values, if known, would have avoided some of these ops
    wanted: tuple[str, ...] = ()
    # inputs that became constants: "i64[2] = [1, 2]", "nothing"
    values: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    # unspecified sizes fixed to numbers: "x[2] (height) = 128"
    assumed: tuple[str, ...] = ()
    # outputs f32[batch, boxes, 5 + classes]: relative center, width, height, objectness and scores of boxes
    box_outputs: tuple[str, ...] = ()
    # inputs that keep state between runs: the output with their next values, and the initial ones, or one for all
    states: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # the files and folders of the model; () for `path` alone
    files: tuple[str, ...] = ()
    # for models that another package converted to ONNX: a comparison of the result with the framework
    conversion: str = ""

    @property
    def label(self) -> str:
        """The name of the model's file, or ""."""
        return os.path.basename(self.path)

    @property
    def producer(self) -> str:
        """The producer of the model, with its version."""
        return f"{self.metadata.producer} {self.metadata.producer_version}".strip()

    def record(self) -> dict[str, Any]:
        """Returns the JSON data that engines record, besides their provenance."""
        kept = {k: v for k, v in asdict(self).items() if k not in ("path", "files", "metadata")}
        return {**kept, "producer": self.producer}


@dataclass(frozen=True)
class Imported:
    """A model as a program.

    `forms` lists the inputs and outputs of the model that are no single tensor, with their ports: {"inputs": {"x":
    ["x[0]", "x[1]"]}, "outputs": {"y": ["y[0]"], "z": None}}, a list for a sequence, None for an optional without a
    value, a dict for maps (`runtime.forms`). Names outside it are ports themselves."""

    graph: Graph
    info: Info
    forms: Forms = field(default_factory=lambda: {"inputs": {}, "outputs": {}})


@dataclass(frozen=True)
class ImportedNode:
    """A node of a model or of a graph nested in it, its reads, the nodes written for it, and its problems; or its
    execution as a step of a script.

    `label` is its name in messages, `domain` and `operator` are the format's names for it. `written` is in the script's
    program of that number, without the nodes written for its nested graphs."""

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
    """The result of importing each node of a model: the program, or the reason why there is none.

    `source` is the model as it was read, for further steps, `name` its name in messages. `open` has the symbols of
    unspecified sizes, `optimum` the sizes to tune for of inputs that have such."""

    source: Any
    name: str
    found: Imported | ModelError
    opsets: Mapping[str, int]
    imported_nodes: Sequence[ImportedNode]
    problems: Sequence[str]
    warnings: Sequence[str]
    open: Mapping[str, str]
    optimum: Mapping[str, tuple[int, ...]]
