"""Networks as programs: those written in Python, and those that importers of other formats write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.errors import FormatError, InputError, ModelAbsent, ModelError, near
from pelton.ir import dims
from pelton.ir.dims import Size, Symbol
from pelton.ir.dims_text import substituted
from pelton.ir.graph import Graph, Value, symbols, with_types_resized
from pelton.ir.imported import Examined, Imported, ImportedNode, Info, Metadata
from pelton.ir.unread import Unread
from pelton.network import Network

from .imported import Range, Shape, constant_of, log, parse_shape, split_dimensions
from .registry import UNTOLD, About, Format, register


def register_network_format(
    name: str,
    recognizes: Callable[[Any], bool],
    read: Callable[..., Network],
    *,
    unread: Callable[..., Unread] | None = None,
    with_values: bool = False,
    two_files: bool = False,
    files: Callable[[Any], Iterable[Any]] = lambda source: (),
    suffixes: tuple[str, ...] = (),
    about: About = UNTOLD,
) -> None:
    """Registers a format whose models become networks: read(source, shapes) → Network, with shapes as in `load`, so a
    model may be laid out for sizes other than its file's. two_files: sources may be `ModelFiles`; files: the paths of
    both. with_values: `read` also takes `values`, as they decide the program. unread, suffixes, about: as in `Format`.
    """

    def network(source: Any, shapes: Any, values: Any) -> Network:
        return read(source, shapes, values=values) if with_values else read(source, shapes)

    def loaded(
        source: Any, shapes: Any = None, outputs: Any = None, values: Any = None, optimum: Any = None
    ) -> Imported:
        paths = tuple(os.fsdecode(file) for file in files(source) if isinstance(file, (str, os.PathLike)))
        options = (shapes, outputs, values, optimum)
        return imported(network(source, shapes, values), *options, path=_path(source), producer=name, files=paths)

    def examined_(
        source: Any, shapes: Any = None, outputs: Any = None, values: Any = None, optimum: Any = None
    ) -> Examined:
        return examined(source, lambda: network(source, shapes, values), shapes, outputs, values, optimum)

    register(Format(name, recognizes, loaded, examined_, unread, two_files=two_files, suffixes=suffixes, about=about))


def imported(
    net: Network,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    *,
    path: str = "",
    producer: str = "",
    files: tuple[str, ...] = (),
) -> Imported:
    """Returns the program of a network, with dynamic dimensions sized, other outputs, and inputs made constants."""
    for text in net.warnings:
        log.warning("%s", text)
    graph = net.graph(None if outputs is None else {name: net.tensor(name) for name in outputs})
    graph, described = with_inputs(graph, shapes, values, optimum)
    names = {v.name for v in graph.outputs}
    info = replace(
        info_of(graph, path, producer, described, net.warnings),
        box_outputs=tuple(name for name in net.box_outputs if name in names),
        states={name: (output, _first_values(a)) for name, (output, a) in net.states.items()},
        files=files,
    )
    return Imported(graph, info)


def with_inputs(
    graph: Graph,
    shapes: Mapping[str, Shape] | None,
    values: Mapping[str, Any] | None,
    optimum: Mapping[str, Sequence[int]] | None,
) -> tuple[Graph, dict[str, str]]:
    """Returns the program with sizes and values for its inputs, and a description of these values."""
    graph = _resized(graph, {name: parse_shape(name, s) for name, s in (shapes or {}).items()}, optimum or {})
    return _with_values(graph, values or {})


def info_of(graph: Graph, path: str, producer: str, values: Mapping[str, str], warnings: Sequence[str]) -> Info:
    """Returns the facts about a network besides its program; values: descriptions of inputs that became constants."""
    sizes = {s.name: (s.minimum, s.optimum, s.maximum if s.maximum < dims.UNBOUNDED else None) for s in symbols(graph)}
    return Info(path, Metadata(producer, graph=graph.name), symbols=sizes, values=values, warnings=tuple(warnings))


def _first_values(array: np.ndarray) -> Any:
    """Returns a state's initial values for metadata: one number if all are equal."""
    first = array.flat[0] if array.size else array.dtype.type(0)
    alike = not any(array.strides) or bool((array == first).all())  # one broadcast element may be a large array
    return first.item() if alike else array.tolist()


def _resized(
    graph: Graph, shapes: Mapping[str, tuple[int | Range, ...]], optimum: Mapping[str, Sequence[int]]
) -> Graph:
    """Returns the program with these sizes in place of its dynamic dimensions."""
    by_symbol: dict[str, Size] = {}
    by_name = {v.name: v for v in graph.inputs}
    by_dimension = {s.name: s for s in symbols(graph) if s.name not in by_name}
    sized, shapes = split_dimensions(shapes, by_dimension)
    for option in (shapes, optimum):
        for name, sizes in option.items():
            if name not in by_name:
                raise InputError(f"there is no input {name!r}{near(name, by_name)}; there are {', '.join(by_name)}")
            _fit(by_name[name], sizes, by_symbol, tuning=option is optimum)

    for name, size in sized.items():
        by_symbol.setdefault(name, _bounded(by_dimension[name], size, f"the network has the dimension {name!r}"))
    return with_types_resized(graph, lambda d: substituted(d, by_symbol))[0] if by_symbol else graph


def _bounded(symbol: Symbol, size: int | Range, where: str) -> Size:
    """Returns a dynamic dimension with other bounds; InputError for bounds beyond its own."""
    low, best, high = size if isinstance(size, Range) else (size, size, size)
    if not symbol.minimum <= low <= high <= symbol.maximum and high < dims.UNBOUNDED:
        raise InputError(f"{where}, where {symbol.name} is from {symbol.minimum} to {symbol.maximum}, got {size}")
    return dims.symbol(symbol.name, low, best, min(high, symbol.maximum))


def _fit(v: Value, sizes: Sequence[int | Range], found: dict[str, Size], tuning: bool) -> None:
    if len(sizes) != v.type.rank:
        raise InputError(f"input {v.name!r} is {v.type}, got {len(sizes)} sizes: {list(sizes)}")
    for d, size in zip(v.type.shape, sizes):
        if dims.is_known(d):
            if size != d and not tuning:
                raise InputError(f"input {v.name!r} is {v.type}, where {d} cannot be {size}; declare it as a name")
            continue
        (symbol,) = dims.symbols(d) if len(dims.symbols(d)) == 1 else (None,)
        if symbol is None or str(d) != symbol.name:
            continue  # an expression of other sizes, which follows them
        if tuning:
            best = size.optimum if isinstance(size, Range) else size
            size = Range(symbol.minimum, min(max(best, symbol.minimum), symbol.maximum), symbol.maximum)
        found.setdefault(symbol.name, _bounded(symbol, size, f"input {v.name!r} is {v.type}"))


def _with_values(graph: Graph, values: Mapping[str, Any]) -> tuple[Graph, dict[str, str]]:
    """Returns the program with constants in place of inputs, and their descriptions."""
    by_name, constants, described = {v.name: v for v in graph.inputs}, dict(graph.constants), dict[str, str]()
    for name, value in values.items():
        if name not in by_name:
            raise InputError(f"values names {name!r}, there is no such input{near(name, by_name)}")
        v = by_name[name]
        constants[v] = array = constant_of(v, value)
        described[name] = f"{v.type} = {array.tolist() if array.size <= 8 else '...'}"
    kept = tuple(v for v in graph.inputs if v.name not in values)
    return (graph.replace(inputs=kept, constants=constants) if values else graph), described


def examined(
    source: Any, read: Callable[[], Network], shapes: Any, outputs: Any, values: Any, optimum: Any
) -> Examined:
    """Reports on each layer in terms common to all formats. Raises FormatError and ModelAbsent, as an unreadable file
    has no layers."""
    outcome: Imported | ModelError
    layers: list[ImportedNode] = []
    try:
        outcome = imported(read(), shapes, outputs, values, optimum)
        layers = [ImportedNode(n.name, "", n.op.name, n.inputs, (n,)) for n in outcome.graph.nodes]
    except (FormatError, ModelAbsent):
        raise
    except ModelError as e:
        outcome = e
    problems = [str(outcome)] if isinstance(outcome, ModelError) else []
    name = _path(source) or getattr(source, "name", "the network")
    return Examined(source, name, outcome, {}, layers, problems, [], {}, {})


def _path(source: Any) -> str:
    return str(getattr(source, "model", source)) if not isinstance(source, (Network, bytes)) else ""


register(
    Format(
        "network",
        lambda source: isinstance(source, Network),
        imported,
        lambda source, *options: examined(source, lambda: source, *options),
        about=About(
            files="pelton.Network",
            export="net = pelton.Network(), then a method for each layer",
            covers="every operator of docs/operators.md",
            checked="the operators' references in float64",
        ),
    )
)
