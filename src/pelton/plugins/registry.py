"""The registry of plugins: those registered, and those of installed packages (`pelton.plugins`)."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pelton.logs import Logger
from pelton.errors import InputError
from pelton.ir.graph import Graph, Node, bodies
from pelton.ir.op import FAMILIES, REGISTRY, Op
from pelton import ops  # noqa: F401  (declares what is built in)

from .includes import with_included
from .plugin import Plugin, declare

GROUP = "pelton.plugins"
FORMATS = ("onnx", "caffe", "darknet", "keras", "tflite", "torch")
P = TypeVar("P", bound=type[Plugin])

log = Logger("pelton.plugins")

_BY_OP: dict[str, type[Plugin]] = {}
_BY_FORMAT: dict[tuple[str, Any], Op] = {}


def register(cls: P) -> P:
    """Registers a `Plugin` for networks, model readers and engines with host steps; a class decorator.

    A class of the same module and name replaces the one before, so that notebooks may run a cell again; one that reads
    the same layers as a built-in plugin takes precedence over it. InputError for an incomplete class, and for names of
    other operators.
    """
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        raise InputError(f"register needs a subclass of pelton.Plugin, got {cls!r}")
    op = declare(cls)
    name = op.name
    before = _BY_OP.get(name)
    if name in REGISTRY and (before is None or _home(before) != _home(cls)):
        owner = "built in" if before is None else f"the plugin {_home(before)}"
        raise InputError(f"plugin {cls.__name__}: the operator {name!r} is {owner}; set another `name`")
    for kernel in cls.kernels:
        kernel.text()
    places = [(f, getattr(cls, f)) for f in FORMATS if getattr(cls, f) is not None]
    for place in places:
        _check_place(cls, *place)
        held = _BY_FORMAT.get(place)
        if held not in (None, REGISTRY.get(name)) and not _home(_BY_OP[held.name]).startswith("pelton."):
            raise InputError(f"plugin {cls.__name__}: {place[0]} {place[1]!r} is read as {held.name}")
    REGISTRY[name] = op
    _BY_OP[name] = cls
    _BY_FORMAT.update(dict.fromkeys(places, op))
    return cls


def _check_place(cls: type, format: str, what: Any) -> None:
    """Raises InputError unless a plugin names its layers as that format does."""
    names = what if format == "onnx" and isinstance(what, tuple) and len(what) == 2 else (what,)
    if len(names) != 1 + (format == "onnx") or not all(isinstance(n, str) for n in names):
        expected = "a pair of texts, domain and type" if format == "onnx" else "a text"
        raise InputError(f"plugin {cls.__name__}: `{format}` must be {expected}, got {what!r:.99}")


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def registered() -> dict[str, type[Plugin]]:
    """Maps each plugin operator to its plugin, including those of installed packages."""
    load_entry_points()
    return dict(_BY_OP)


def types_of(format: str) -> list[Any]:
    """Returns the items that plugins read in a model format, such as types of layers."""
    load_entry_points()
    return [what for name, what in _BY_FORMAT if name == format]


def plugin_for(format: str, what: Any) -> Op | None:
    """Returns the plugin operator for a name in a model format: ("onnx", (domain, type)), ("caffe", "MyLayer")."""
    if (format, what) not in _BY_FORMAT:
        load_entry_points()
    return _BY_FORMAT.get((format, what))


def plugin_named(name: str) -> Op | None:
    """Returns the operator of the plugin of that name."""
    return REGISTRY[name] if name in registered() else None


def fingerprints(graph: Graph) -> dict[str, str | None]:
    """Maps operators to fingerprints, for all plugins in a graph but built-in ones."""
    names = {n.op.name for n in _nodes(graph) if n.op.instance is not None}
    return {name: fingerprint(name) for name in sorted(names) if not _home(_BY_OP[name]).startswith("pelton.")}


def fingerprint(name: str) -> str | None:
    """Returns the SHA-256 of a plugin's code: its file, the sources of its kernels and their includes. It changes with
    any of these. None if it is unknown."""
    cls = _BY_OP[name]
    try:
        file = inspect.getsourcefile(cls)
        text = Path(file).read_bytes() if file and Path(file).is_file() else inspect.getsource(cls).encode()
        digest = hashlib.sha256(text)
        for kernel in cls.kernels:
            digest.update(b"\0" + with_included(kernel.text()).encode())
    except (OSError, TypeError, InputError):
        return None
    return digest.hexdigest()


def _nodes(graph: Graph) -> Iterator[Node]:
    """Yields the nodes of a graph, and of those within it."""
    for node in graph.nodes:
        yield node
        for body in bodies(node):
            yield from _nodes(body.graph)


@functools.cache
def load_entry_points() -> None:
    """Imports the plugins that installed packages declare, once; logs and skips those that fail."""
    for point in metadata.entry_points(group=GROUP):
        try:
            plugin = point.load()
            if isinstance(plugin, type) and issubclass(plugin, Plugin) and plugin not in _BY_OP.values():
                register(plugin)
        except Exception as e:  # any error of the package
            log.warning("the plugin %s of %s cannot be loaded: %s: %s", point.name, point.value, type(e).__name__, e)


def _of_packages(name: str) -> Op | None:
    """Returns an op of an installed package that is not declared yet."""
    load_entry_points()
    return REGISTRY.get(name)


FAMILIES.append(_of_packages)
