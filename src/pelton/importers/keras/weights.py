"""The variables of layers, and their places in the two kinds of files.

Keras 3 (and late versions of Keras 2) keep those of a layer at `layers/<class>_<number>/vars/0`, `1`, …, which follows
from classes and the order of layers, not from names (keras/src/saving/saving_lib.py). Older .h5 files keep a list for
each layer of the outermost model, trained variables first (keras/src/legacy/saving/legacy_h5_format.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from .config import LayerConfig
from .hdf5 import Hdf5
from .model import ModelConfig, is_model, model_of

# Classes whose name in files differs from the exported one.
CLASSES = {"GroupQueryAttention": "GroupedQueryAttention"}
ALIASES = {"kernel": ("depthwise_kernel",), "scale": ("gamma",)}  # of names of variables

# layer type → its variables, as texts such as "cell/kernel"; untrained ones begin with "~"
Declared = Callable[[LayerConfig], list[str]]
VARIABLES: dict[str, Declared] = {}
# wrapper type → (attribute of an inner layer, that layer)
Within = Callable[[LayerConfig], list[tuple[str, LayerConfig]]]
WITHIN: dict[str, Within] = {}
Variable = tuple[LayerConfig, str, bool]  # owner, name, True if trained


class Variables(Protocol):
    """Variables of a file."""

    def array(self, layer: LayerConfig, name: str) -> np.ndarray:
        """Returns a declared variable of a layer; raises UnknownPart if the file has none."""
        ...

    def count(self, layer: LayerConfig) -> int:
        """Counts a layer's own variables in the file."""
        ...


def snake_case(name: str) -> str:
    """Returns the name of a class as Keras writes it in files (keras/src/utils/naming.py)."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def children(layer: LayerConfig) -> list[tuple[str, LayerConfig]]:
    """Returns the layers within a layer, cached, each with the path of its variables below the layer's."""
    if "children" not in layer.parts:
        layer.parts["children"] = list(_children(layer))
    layers: list[tuple[str, LayerConfig]] = layer.parts["children"]
    return layers


def _children(layer: LayerConfig) -> Iterator[tuple[str, LayerConfig]]:
    if is_model(layer):
        used: dict[str, int] = {}
        for child in model_of(layer).children:
            name = snake_case(CLASSES.get(child.type, child.type.rpartition(">")[2]))
            used[name] = used.get(name, -1) + 1
            yield f"layers/{name}_{used[name]}" if used[name] else f"layers/{name}", child
    elif layer.is_own and layer.type in WITHIN:
        yield from WITHIN[layer.type](layer)


class StoredVariables:
    """Variables of Keras 3 files."""

    def __init__(self, file: Hdf5):
        self.file = file

    def array(self, layer: LayerConfig, name: str) -> np.ndarray:
        folder, _, _ = name.rpartition("/")
        index = int(name) if name.isdigit() else self._index(layer, folder, name)
        group = self._variables(layer, folder)
        if group is None or str(index) not in group.links:
            raise layer.refuse(f"has no {name!r} at {layer.path}/{folder} in the file")
        written = self.file.attribute(group, "name")
        if not folder and written not in (None, layer.name):
            raise layer.refuse(f"has its variables at {layer.path}, where those of {written!r} are")
        return self.file.array(group, str(index))

    def _index(self, layer: LayerConfig, folder: str, name: str) -> int:
        every = [v.lstrip("~") for v in VARIABLES[layer.type](layer)]
        return [v for v in every if v.rpartition("/")[0] == folder].index(name)

    def count(self, layer: LayerConfig) -> int:
        group = self._variables(layer, "")
        return 0 if group is None else len(group.links)

    def _variables(self, layer: LayerConfig, folder: str) -> Any:
        """Returns the group of a layer's variables; attributes that hold inner layers may begin with an underscore."""
        for name in (folder, f"_{folder}") if folder else (folder,):
            for base in (layer.path, layer.path.replace("layers", "_layer_checkpoint_dependencies")):
                group = self.file.group("/".join(filter(None, (base, name, "vars"))))
                if group is not None:
                    return group
        return None


class ListedVariables:
    """Variables of older .h5 files."""

    def __init__(self, file: Hdf5, model: ModelConfig):
        self.file = file
        self.found: dict[tuple[int, str], tuple[Any, str]] = {}
        self.counts: dict[int, int] = {}
        root = file.group("model_weights")
        if root is None:
            raise model.config.refuse("has no group model_weights in the file")
        for layer in model.children:
            group = self.file.group(layer.name, root)
            names = [] if group is None else file.texts(group, "weight_names")
            self._assign(layer, group, names)

    def _assign(self, layer: LayerConfig, group: Any, names: list[str]) -> None:
        variables = sorted(_variables(layer, True), key=lambda v: not v[2])
        if not variables and names and not layer.is_own:
            # a plugin, which declares its needs later
            variables = [(layer, str(i), True) for i in range(len(names))]
        if len(variables) != len(names):
            raise layer.refuse(f"must have {len(variables)} variables, the file has {len(names)}")
        for (owner, name, _), written in zip(variables, names):
            last = re.sub(r"(_\d+)?(:\d+)?$", "", written.rpartition("/")[2])
            expected = name.rpartition("/")[2]
            if owner.is_own and last not in (expected, *ALIASES.get(expected, ())):
                raise layer.refuse(f"must have {name!r} where the file has {written!r}")
            self.found[id(owner), name] = group, written
            self.counts[id(owner)] = self.counts.get(id(owner), 0) + 1

    def array(self, layer: LayerConfig, name: str) -> np.ndarray:
        if (id(layer), name) not in self.found:
            raise layer.refuse(f"has no {name!r} in the file")
        return self.file.array(*self.found[id(layer), name])

    def count(self, layer: LayerConfig) -> int:
        return self.counts.get(id(layer), 0)


def _variables(layer: LayerConfig, trained: bool) -> Iterator[Variable]:
    """Returns the variables of a layer and of its inner layers, in Keras' order."""
    trained = trained and bool(layer.options.get("trainable", True))
    if layer.is_own and layer.type in VARIABLES:
        for name in VARIABLES[layer.type](layer):
            yield layer, name.lstrip("~"), trained and not name.startswith("~")
    for _, child in children(layer):
        yield from _variables(child, trained)
