"""Graphs of AOT autograd with constant parameters, as modules for torch.export, and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class Unsupported(RuntimeError):
    """A graph that cannot become an engine, with the reason."""


@dataclass(frozen=True)
class Result:
    """An output of the engine, by its index there. `order` permutes its axes if memory has another order."""

    place: int
    dtype: torch.dtype
    order: tuple[int, ...] | None


@dataclass(frozen=True)
class Argument:
    """An output that is an argument of the graph itself."""

    place: int


@dataclass(frozen=True)
class Fixed:
    """An output that is the same in every run: None, a number, or a constant of the graph."""

    value: Any


@dataclass(frozen=True)
class Size:
    """An output that is a number: an expression of the sizes of inputs."""

    expression: Any


Output = Result | Argument | Fixed | Size


@dataclass(frozen=True)
class Frozen:
    """The plan for a graph whose arguments `constants` become part of the engine.

    fakes, names: fake tensor and name of each argument. inputs: indices of the engine's inputs. symbols: dynamic sizes
    by name, each with an argument and an axis of that size. outputs: source of each output. results: the nodes that the
    engine computes.
    """

    fakes: Sequence[Any]
    names: Sequence[str]
    constants: tuple[int, ...]
    inputs: tuple[int, ...]
    symbols: Mapping[str, tuple[int, int]]
    outputs: tuple[Output, ...]
    results: tuple[torch.fx.Node, ...]

    @property
    def is_dynamic(self) -> bool:
        """True if sizes of inputs may differ from run to run."""
        return bool(self.symbols)


def freeze(graph_module: torch.fx.GraphModule, fakes: Sequence[Any], constants: Sequence[int]) -> Frozen:
    """Plans a graph; Unsupported if it draws random numbers, computes with numbers other than sizes, or nothing."""
    nodes = graph_module.graph.nodes
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _keeps_all(node):
            raise Unsupported(f"{node.target} draws random numbers, which must come from torch's own generators")
    places = {node: i for i, node in enumerate(n for n in nodes if n.op == "placeholder")}
    tensors = [i for i, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    inputs = tuple(i for i in tensors if i not in set(constants))
    sizes: dict[str, tuple[int, int]] = {}
    for i in inputs:
        for axis, size in enumerate(fakes[i].shape):
            if isinstance(size, torch.SymInt):
                sizes.setdefault(str(size), (i, axis))
    for node, i in places.items():
        if not isinstance(fakes[i], torch.Tensor) and node.users and not isinstance(fakes[i], int):
            if not isinstance(fakes[i], torch.SymInt) or str(fakes[i]) not in sizes:
                raise Unsupported(f"it computes with the number {node.name}, which is no input's size")
    results: dict[torch.fx.Node, Result] = {}
    outputs = [_output(graph_module, value, places, results) for value in _returned(graph_module)]
    if not any(n.op == "call_function" for n in nodes) or not results:
        raise Unsupported("it computes nothing")
    return Frozen(fakes, [n.name for n in places], tuple(constants), inputs, sizes, tuple(outputs), tuple(results))


def _keeps_all(node: torch.fx.Node) -> bool:
    """True if an op that draws random dropouts, such as attention, drops nothing here."""
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            rate = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return rate == 0
    return False


def _returned(graph_module: torch.fx.GraphModule) -> Sequence[Any]:
    (output,) = (n for n in graph_module.graph.nodes if n.op == "output")
    return output.args[0]


def _output(
    graph_module: torch.fx.GraphModule,
    given: Any,
    places: Mapping[torch.fx.Node, int],
    results: dict[torch.fx.Node, Result],
) -> Output:
    if not isinstance(given, torch.fx.Node):
        return Fixed(given)
    if given in places:
        return Argument(places[given])
    if given.op == "get_attr":
        return Fixed(getattr(graph_module, str(given.target)))
    value = given.meta["val"]
    if isinstance(value, torch.Tensor):
        return results.setdefault(given, Result(len(results), value.dtype, _order(value)))
    if isinstance(value, torch.SymInt):
        return Size(value.node.expr)
    raise Unsupported(f"it returns a {type(value).__name__}, {given.name}")


def hints(sizes: Sequence[Any]) -> list[int]:
    """Returns sizes as numbers; dynamic ones as at capture."""
    return [size if isinstance(size, int) else size.node.hint for size in sizes]


def _order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the axes of a dense tensor from the outermost in memory to the innermost; None if they are in order, or
    if the tensor is not dense: a contiguous result is then good enough."""
    shape, strides = hints(fake.shape), hints(fake.stride())
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != expected:
            return None
        expected *= max(shape[axis], 1)
    varied = [axis for axis in order if shape[axis] != 1]
    return tuple(order) if varied != sorted(varied) else None


def module_of(graph_module: torch.fx.GraphModule, frozen: Frozen, args: Sequence[Any]) -> torch.fx.GraphModule:
    """Converts the graph to a module of the engine's inputs, with constants as buffers, sizes read from inputs, and
    results in their order in memory."""
    root, graph = torch.nn.Module(), torch.fx.Graph()
    made: dict[torch.fx.Node, Any] = {}
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for i in frozen.inputs:
        made[placeholders[i]] = graph.placeholder(placeholders[i].name)
    for i, node in enumerate(placeholders):
        if i in set(frozen.constants):
            root.register_buffer(node.name, args[i].detach())
            made[node] = graph.get_attr(node.name)
        elif not isinstance(frozen.fakes[i], torch.Tensor) and node.users:
            made[node] = frozen.fakes[i]
            if isinstance(frozen.fakes[i], torch.SymInt):
                source, axis = frozen.symbols[str(frozen.fakes[i])]
                made[node] = graph.call_function(torch.ops.aten.sym_size.int, (made[placeholders[source]], axis))
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            setattr(root, node.target, getattr(graph_module, node.target))
        if node.op not in ("placeholder", "output"):
            made[node] = graph.node_copy(node, made.__getitem__)
    orders = {r.place: r.order for r in frozen.outputs if isinstance(r, Result)}
    values = []
    for place, node in enumerate(frozen.results):
        value, order = made[node], orders[place]
        if order is not None:
            value = graph.call_function(torch.ops.aten.permute.default, (value, list(order)))
        values.append(value)
    graph.output(tuple(values))
    return torch.fx.GraphModule(root, graph)


def digest(graph_module: torch.fx.GraphModule, frozen: Frozen, args: Sequence[Any]) -> str:
    """Returns the SHA-256 of an engine's definition: the graph, its input types and the bytes of its constants."""
    hasher = hashlib.sha256(torch.__version__.encode())
    for node in graph_module.graph.nodes:
        hasher.update(f"{node.name} {node.op} {node.target} {node.args} {node.kwargs}\n".encode())
    for i, fake in enumerate(frozen.fakes):
        kind = (tuple(fake.shape), fake.dtype) if isinstance(fake, torch.Tensor) else ()
        hasher.update(f"{i} {kind} {i in frozen.constants}\n".encode())
    hasher.update(f"{[(o.place, o.order) for o in frozen.outputs if isinstance(o, Result)]}".encode())
    own = [getattr(graph_module, str(n.target)) for n in graph_module.graph.nodes if n.op == "get_attr"]
    for tensor in [*(args[i] for i in frozen.constants), *own]:
        if isinstance(tensor, torch.Tensor):
            hasher.update(f"{tuple(tensor.shape)} {tensor.dtype}\n".encode())
            hasher.update(memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))
        else:  # a graph within the graph
            hasher.update(str(tensor).encode())
    return hasher.hexdigest()
