"""Writes a program as a TFLite model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.importers.tflite.schema import IDENTIFIER, SCHEMA
from pelton.ir.dims import Undecided
from pelton.ir.expansion import expand_op
from pelton.ir.folding import compute
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import I8, U8
from pelton.ops import words
from pelton.passes.fold import drop_dead, fold_constants, merge_equal
from pelton.passes.pipeline import apply, stage
from pelton.passes.precision.halves import in_f32
from pelton.system import files

from .channels import with_channel_layers, with_means
from .flatbuffer import TableWriter
from .forms import Perm, channels_last, identity
from .fusion import MOVES, FusedOperator, fused, scaling_of
from . import ops  # noqa: F401  (the writers)
from .images import images
from .model import TFLiteDraft
from .quantizer import with_products
from .scalars import by_scalar
from .tensors import NoForm, Scaling, TFLiteOperator, TFLiteTensor, model_table, needed
from .writing import EXPANSIONS, WRITERS, NodeWriter, TFLiteWriting

LAYOUTS = ("nhwc", "nchw")
# One form instead of many; composites by their names; constants around layers inside of them.
PASSES = (
    ("dead", drop_dead),
    ("constant", fold_constants),
    ("equal", merge_equal),
    ("simplify", stage("simplify", "views", "recognize")),
    ("merge", stage("simplify", "views", "recognize", "merge")),
    ("rest constant", fold_constants),
    ("rest dead", drop_dead),
)


@dataclass(frozen=True)
class TFLiteFile:
    """A TFLite model: the bytes of its file, its operators, and its ports by name."""

    data: bytes
    operators: Sequence[TFLiteOperator]
    inputs: dict[str, TFLiteTensor]
    outputs: dict[str, TFLiteTensor]


def to_tflite(
    graph: Graph, path: str | os.PathLike[str] | None = None, *, layout: str = "nhwc", name: str = ""
) -> TFLiteFile:
    """Returns the program as a TFLite model, and writes it to a file, atomically, if a path is given.

    layout: "nhwc" for images [batch, height, width, channels] as inputs and outputs, "nchw" to keep the program's.

    Raises ModelError, which names each layer without a form in TFLite and the reason, InputError for other layouts, for
    models above 2 GB and for files that cannot be written.
    """
    if layout not in LAYOUTS:
        raise InputError(f"layouts are {' and '.join(LAYOUTS)}, got {layout!r}")
    graph = prepared(graph)
    ports = images(graph) if layout == "nhwc" else frozenset()
    forms = {v: channels_last(v.type.rank) if v in ports else identity(v.type.rank) for v in graph.inputs}
    model = _model(graph, forms)
    faults = _write_nodes(model)
    outputs = dict[str, TFLiteTensor]()
    if not faults and (empty := [v.name for v in (*graph.inputs, *graph.outputs) if 0 in v.type.shape]):
        raise ModelError(f"network {graph.name!r} cannot be written to TFLite: {empty[0]!r} has no elements")
    if not faults:
        outputs = {v.name: _output(model, v, v in ports, outputs) for v in graph.outputs}
    if faults:
        lines = "\n".join(f"  {_place(node)}: {reason}" for node, reason in faults)
        raise ModelError(f"network {graph.name!r} cannot be written to TFLite:\n{lines}")
    operators = needed(model.operators, outputs.values())
    inputs = {v.name: t for v, t in model.inputs.items()}
    table = model_table(name or graph.name, inputs, outputs, operators)
    data = bytes(TableWriter(SCHEMA, IDENTIFIER).finished("Model", table))
    if path is not None:
        _save(Path(path), data)
    return TFLiteFile(data, operators, inputs, outputs)


def prepared(graph: Graph, *, integers: bool = False) -> Graph:
    """Returns the program in the form that is written, or that is calibrated and quantized (`integers`)."""
    graph = apply(PASSES, in_f32(graph), False)[0]
    return with_products(with_channel_layers(with_means(graph))) if integers else graph


def _save(path: Path, data: bytes) -> None:
    if reason := files.rejection(path):
        raise InputError(f"{path} cannot be written: {reason}")
    try:
        files.write(path, [data])
    except OSError as e:
        raise InputError(f"{e.filename or path} cannot be written: {e.strerror}") from None


def _place(node: Node) -> str:
    return f"{node.op.name} (layer {node.name or node.outputs[0].name!r})"


def _model(graph: Graph, forms: dict[Value, Perm]) -> TFLiteDraft:
    """Returns the model with its inputs; inputs of bytes that are only dequantized have their scaling."""
    model = TFLiteDraft(graph, forms, write_body)
    for v in graph.inputs:
        users = graph.users.get(v, [])
        if v.type.dtype in (I8, U8) and users and all(n.op is words.dequantize for n in users):
            scalings = {scaling_of(model, n) for n in users}
            (scaling, *others) = scalings
            if not others and scaling is not None and len(scaling.scale) == 1:
                model.scale_input(v, scaling)
    return model


def _write_nodes(model: TFLiteDraft) -> list[tuple[Node, str]]:
    """Writes all nodes; returns those without a form and the reasons."""
    faults, done, lost = list[tuple[Node, str]](), set[Node](), set[Value]()
    for node in model.graph.nodes:
        if node in done:
            continue
        if not lost.isdisjoint(node.inputs):  # reported already
            lost.update(node.outputs)
            _check_alone(model, node, faults)
            continue
        try:
            done.update(write_node(model, node))
        except (NoForm, Undecided) as e:
            faults.append((node, str(e)))
            lost.update(node.outputs)
    return faults


def _check_alone(model: TFLiteDraft, node: Node, faults: list[tuple[Node, str]]) -> None:
    """Tries to write a node behind another one without a form, as a model of its own with its constants."""
    held = {v: model.known(v) for v in dict.fromkeys(node.inputs) if model.holds(v)}
    constants = {v: a for v, a in held.items() if a is not None}
    inputs = tuple(v for v in dict.fromkeys(node.inputs) if v not in constants)
    alone = Graph(inputs, constants, (node,), node.outputs)
    try:
        write_node(TFLiteDraft(alone, {v: identity(v.type.rank) for v in inputs}, write_body), node)
    except (NoForm, Undecided) as e:
        faults.append((node, str(e)))


def write_node(model: TFLiteDraft, node: Node) -> tuple[Node, ...]:
    """Writes a node by its writer, else by its expansion, else by its scalar expression; folds it if it is constant.

    Returns further nodes that its operator stands for.
    """
    outer, model.layer = model.layer, node.name or model.layer or node.outputs[0].name
    try:
        keeps = node.op is words.dequantize and scaling_of(model, node) is not None  # codes stay codes
        if not keeps and _fold(model, node):
            return ()
        if node.op not in MOVES and node.op not in (words.dequantize, words.max_pool):
            for v in node.inputs:
                if model.holds_integers(v):
                    raise NoForm(f"it reads the stored integers of %{v.name} as numbers")
        if any(d == 0 for v in (*node.inputs, *node.outputs) for d in v.type.shape):
            raise NoForm("TFLite has no tensors without elements")
        reasons = list[NoForm]()
        for write, end in _attempts(model, node):
            w = TFLiteWriting(node, model, end)
            try:
                write(w)
                if write not in (_expansion, by_scalar) and (attribute := w.attrs.ignored()):
                    raise NoForm(f"TFLite has nothing for its attribute {attribute}")
                return end.nodes
            except NoForm as e:
                reasons.append(e)
                model.forget((*node.outputs, end.value, *end.stored))
        raise reasons[0]
    finally:
        model.layer = outer


def _attempts(model: TFLiteDraft, node: Node) -> Iterator[tuple[NodeWriter, FusedOperator]]:
    """Yields the ways to write a node, the best one first: of integers, of floats, by other ops."""
    alone = FusedOperator(node.outputs[0])
    if (writer := WRITERS.get(node.op)) is not None:
        end = fused(model, node)
        yield writer, end
        if end.scaling is not None:
            yield writer, alone
    yield _expansion, alone
    yield by_scalar, alone


def _fold(model: TFLiteDraft, node: Node) -> bool:
    """Computes a node of constants; True if it did."""
    if node.op.kind in ("foreign", "nested") or not node.inputs or not all(v.type.known for v in node.outputs):
        return False
    arrays = [model.known(v) for v in node.inputs]
    if any(a is None for a in arrays):
        return False
    if node.op is words.transpose and model.is_stored(node.inputs[0]):  # weights stay integers
        stored, scaling = model.stored(node.inputs[0])
        codes, perm = model.known(stored), node.attrs["perm"]
        assert codes is not None
        held = Value(stored.type.with_shape(codes.transpose(perm).shape), stored.name)
        model.put_codes(held, np.asarray(codes.transpose(perm), order="C"), scaling.moved(perm))
        model.put_stored(node.output, held, scaling.moved(perm))
        return True
    for v, array in zip(node.outputs, compute(node, tuple(a for a in arrays if a is not None))):
        model.put_constant(v, array)
    return True


def _expansion(w: TFLiteWriting) -> None:
    """Writes the op's expansion to other ops."""
    node, model = w.node, w.model
    none = NoForm("TFLite has no operator for it")
    op = replace(node.op, expand=EXPANSIONS.get(node.op, node.op.expand))
    try:
        if op.expand is None or op.expand(*node.inputs, **node.attrs) is None:
            raise none
        body = expand_op(op, node.inputs, node.attrs)
    except Undecided as e:
        raise NoForm(f"{e}; fix the sizes of the inputs with --shapes") from None
    except (TypeError, ValueError) as e:  # of parts of other types than f32
        raise NoForm(f"its expansion fails: {e}") from None
    if body.nodes and body.nodes[0].op is node.op and body.nodes[0].inputs == node.inputs:
        raise none
    write_body(model, body, node.outputs)


def write_body(model: TFLiteDraft, body: Graph, outputs: Sequence[Value]) -> None:
    """Writes the nodes of an expansion, whose results become these values."""
    for v, array in body.constants.items():
        model.put_constant(v, array)
    whole, model.graph = model.graph, body
    try:
        done = set[Node]()
        for inner in body.nodes:
            if inner not in done:
                done.update(write_node(model, inner))
    finally:
        model.graph = whole
    for v, inner_value in zip(outputs, body.outputs):
        model.rename(inner_value, v)


def _output(model: TFLiteDraft, v: Value, is_image: bool, others: dict[str, TFLiteTensor]) -> TFLiteTensor:
    """Returns the tensor of an output of the model: a copy where it is an input, a constant or another output."""
    perm = channels_last(v.type.rank) if is_image else identity(v.type.rank)
    model.layer = v.name
    tensor = model.get(v, perm)
    if v.type.dtype is U8 and tensor.scaling is not None:
        scaling = tensor.scaling
        return model.rescaled(tensor, Scaling(scaling.scale, scaling.zero + 128), U8)
    if tensor.data is not None or tensor in others.values() or tensor in model.inputs.values():
        return model.copied(tensor)
    return tensor
