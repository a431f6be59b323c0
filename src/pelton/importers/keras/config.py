"""Layer descriptions of Keras: objects of classes with options, all of which must be understood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.errors import ModelError
from pelton.importers.reading import FileValues

MAX_NUMBER = 1 << 24  # of any count along an axis
OWN_PACKAGES = ("keras", "tf_keras", "tensorflow")
# Options of any layer without effect at inference.
OF_TRAINING = (
    *("name", "trainable", "seed", "batch_input_shape", "batch_shape", "input_shape", "activity_regularizer"),
    *("kernel_initializer", "bias_initializer", "recurrent_initializer", "depthwise_initializer"),
    *("pointwise_initializer", "embeddings_initializer", "alpha_initializer", "beta_initializer"),
    *("gamma_initializer", "moving_mean_initializer", "moving_variance_initializer", "unit_forget_bias"),
    *("kernel_regularizer", "bias_regularizer", "recurrent_regularizer", "depthwise_regularizer"),
    *("pointwise_regularizer", "embeddings_regularizer", "alpha_regularizer", "beta_regularizer"),
    *("gamma_regularizer", "kernel_constraint", "bias_constraint", "recurrent_constraint", "depthwise_constraint"),
    *("pointwise_constraint", "embeddings_constraint", "alpha_constraint", "beta_constraint", "gamma_constraint"),
)
NO_QUANTIZATION = {"quantization_config": None}
DTYPES = {
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "bool": "bool",
    **{f"{u}int{n}": f"{'u' if u else 'i'}{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}


class UnknownPart(ModelError):
    """A part that this reader does not know, or not for sure; Keras may."""


@dataclass(eq=False)
class LayerConfig(FileValues):
    """An object of a Keras class and its options. type: name of the class; module, registered: where it is defined and
    registered, optional in files of Keras 2; version: of the Keras that wrote it; nodes: its calls, as in the file;
    path: of its variables in files of Keras 3."""

    type: str
    module: str
    registered: str
    name: str
    options: dict[str, Any]
    version: int
    nodes: list[Any] = field(default_factory=list)
    path: str = ""
    seen: set[str] = field(default_factory=set)  # options read so far
    parts: dict[str, Any] = field(default_factory=dict)  # cached results of reading it

    @classmethod
    def of(cls, given: Any, version: int, where: str = "the file") -> LayerConfig:
        """Parses the object that a file describes; raises UnknownPart for anything else."""
        options = given.get("config") if isinstance(given, dict) else None
        if not isinstance(options, dict) or not isinstance(given.get("class_name"), str):
            raise UnknownPart(f"{where} has a layer that is described in an unknown way: {given!r:.80}")
        nodes = given.get("inbound_nodes") or []
        name = given.get("name") or options.get("name") or given["class_name"]
        if not isinstance(nodes, list) or not isinstance(name, str):
            raise UnknownPart(f"{where} has a layer with calls in an unknown form: {name!r:.80}")
        module, registered = (str(given.get(key) or "") for key in ("module", "registered_name"))
        return cls(given["class_name"], module, registered, name, options, version, nodes)

    @property
    def is_own(self) -> bool:
        """True if its class belongs to Keras itself."""
        package = self.module.partition(".")[0]
        return ">" not in self.type + self.registered and (not self.module or package in OWN_PACKAGES)

    @property
    def is_operation(self) -> bool:
        """True if it is an operation of Keras 3, such as `x + y` creates, and no layer."""
        return ".ops" in self.module or not self.module and not {"trainable", "dtype", "layers"} & self.options.keys()

    def refuse(self, reason: str) -> UnknownPart:
        """Builds the error to raise."""
        return UnknownPart(f"layer {self.name!r} ({self.type}) {reason}")

    error = refuse

    # --- options

    def option(self, name: str, *default: Any) -> Any:
        """Returns an option as written; raises UnknownPart if it is missing without a default."""
        self.seen.add(name)
        if name not in self.options and not default:
            raise self.refuse(f"lacks the option {name!r}")
        return plain(self.options.get(name, *default))

    def flag(self, name: str, *default: bool) -> bool:
        value = self.option(name, *default)
        if not isinstance(value, (bool, int)) or value not in (0, 1):
            raise self.refuse(f"needs {name} true or false, got {value!r:.60}")
        return bool(value)

    def number(self, name: str, *default: float) -> float:
        value = self.option(name, *default)
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        return self.real(value, name)

    def integer(self, name: str, *default: int, low: int = 1) -> int:
        value = self.option(name, *default)
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        return self.whole(value, name, low, MAX_NUMBER)

    def integers(self, name: str, count: int | None = None, low: int = 1, default: Any = None) -> tuple[int, ...]:
        """Returns `count` integers; one stands for all."""
        value = self.option(name, default) if default is not None else self.option(name)
        if isinstance(value, int) and count is not None:
            value = [value] * count
        return self.wholes(value, name, low, MAX_NUMBER, count)

    def choice(self, name: str, *of: Any, default: Any = None) -> Any:
        """Returns one of these values; the default if the file has none, or null."""
        value = self.option(name, default)
        value = default if value is None else value
        if value not in of:
            raise self.refuse(f"has the unknown {name} {value!r:.60}; known are {', '.join(map(str, of))}")
        return value

    def ignore(self, *names: str) -> None:
        """Ignores options without effect at inference."""
        self.seen.update(names)

    def expect(self, **values: Any) -> None:
        """Raises UnknownPart if these options have values other than the given ones, their defaults."""
        for name, value in values.items():
            if (setting := self.option(name, value)) != value:
                raise self.refuse(f"has the unknown {name}={setting!r:.60}")

    def check_rest(self) -> None:
        """Raises UnknownPart if the layer has an unread option."""
        rest = [name for name in self.options if name not in self.seen and name not in OF_TRAINING]
        if rest:
            raise self.refuse(f"has the unknown options {', '.join(map(repr, rest[:4]))}")

    def check_policy(self) -> None:
        """Raises UnknownPart unless it computes in float32."""
        policy = self.option("dtype", "float32")
        inner = policy.get("config") if isinstance(policy, dict) else {"name": policy}
        name = inner.get("name") if isinstance(inner, dict) else inner
        if name not in ("float32", None):
            raise self.refuse(f"computes in {name}")


def plain(given: Any) -> Any:
    """Converts a JSON value, with the tuples, arrays and numbers that Keras writes as objects."""
    if isinstance(given, list):
        return [plain(v) for v in given]
    if isinstance(given, dict):
        kind, config = given.get("class_name"), given.get("config")
        if kind == "__tuple__" and isinstance(config, dict):
            return plain(config.get("value", []))
        if kind in ("__numpy__", "__tensor__") and isinstance(config, dict):
            return array_of(config)
        if kind in ("TensorShape", "__tuple__") or given.get("class_name") == "TensorShape":
            return plain(given.get("items", []))
    return given


def array_of(config: dict[str, Any]) -> np.ndarray:
    """Returns an array written as numbers; raises UnknownPart for anything else."""
    dtype = config.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnknownPart(f"a constant is of type {dtype!r:.40}")
    try:
        return np.array(config.get("value"), dtype)
    except (TypeError, ValueError, OverflowError) as e:
        raise UnknownPart(f"a constant cannot be read: {e}") from None


def flattened(given: Any) -> list[Any]:
    """Returns the leaves of lists and dicts in Keras' order: dicts by their keys."""
    if isinstance(given, dict):
        return [leaf for key in sorted(given) for leaf in flattened(given[key])]
    if isinstance(given, (list, tuple)):
        return [leaf for part in given for leaf in flattened(part)]
    return [given]


def names_of(given: Sequence[Any]) -> str:
    return ", ".join(map(repr, given))
