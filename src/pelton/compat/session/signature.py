"""Inputs, outputs and metadata of a model under ONNX Runtime's names, and their JSON in the engine cache."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pelton.engine.plan import Port
from pelton.errors import InputError

from .limits import Limits

if TYPE_CHECKING:
    from pelton.runtime import Engine

# element type inside of tensor(…) → Pelton's name
TYPES = {
    "float": "f32",
    "double": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "bool",
    "string": "string",
    "complex64": "c64",
    "complex128": "c128",
    "float8e4m3fn": "f8e4m3fn",
    "float8e4m3fnuz": "f8e4m3fnuz",
    "float8e5m2": "f8e5m2",
    "float8e5m2fnuz": "f8e5m2fnuz",
    "float8e8m0": "f8e8m0fnu",
    "float4e2m1": "f4e2m1fn",
    "int4": "i4",
    "uint4": "u4",
    "int2": "i2",
    "uint2": "u2",
    "float6e2m3": "f6e2m3fn",
    "float6e3m2": "f6e3m2fn",
}
NAMES = {ours: f"tensor({theirs})" for theirs, ours in TYPES.items()}


_TENSOR = re.compile(r"tensor\((\w+)\)")
_MAP = re.compile(r"map\((\w+),tensor\((\w+)\)\)")


def is_onnx_type(type: str) -> bool:
    """True if a string is a type of ONNX Runtime: a tensor, or a sequence, optional or map of types."""
    outer = re.fullmatch(r"(?:seq|optional|map)\((?:(\w+),)?(.+)\)", type)
    return type in NAMES.values() or outer is not None and (outer[1] or "string") in TYPES and is_onnx_type(outer[2])


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model. A dimension is a number, or dynamic: the model's name for it, or None. Without
    `ranked`, any number of axes is allowed."""

    name: str
    type: str
    shape: list[int | str | None] = field(default_factory=list)
    ranked: bool = True

    @property
    def dtype(self) -> str:
        """Pelton's name of the element type; that of the content for a sequence or an optional."""
        return TYPES[_TENSOR.findall(self.type)[0]]

    @property
    def optional(self) -> bool:
        """True if the value may be missing."""
        return self.type.startswith("optional(")

    @property
    def sequence(self) -> bool:
        """True if the value is a list of arrays."""
        return self.type.removeprefix("optional(").startswith("seq(")

    @property
    def entries(self) -> dict[str, Any] | None:
        """Ports of a map, in the form of `runtime.forms`; None for other types."""
        match = _MAP.fullmatch(self.type)
        return (
            {"keys": f"{self.name}.keys", "values": f"{self.name}.values", "types": [TYPES[match[1]], TYPES[match[2]]]}
            if match
            else None
        )

    @property
    def parts(self) -> tuple[NodeArg, ...]:
        """The engine inputs that represent it: itself, or the keys and values of a map, of equal length."""
        form = self.entries
        if form is None:
            return (self,)
        return tuple(
            NodeArg(form[kind], NAMES[of], [f"{self.name}.entries"])
            for kind, of in zip(("keys", "values"), form["types"])
        )

    @property
    def is_dynamic(self) -> bool:
        """True if a dimension, the rank or the number of arrays is known only at run time."""
        return self.optional or self.sequence or not self.ranked or not all(isinstance(d, int) for d in self.shape)

    @property
    def fixed(self) -> tuple[int, ...]:
        """The shape, if it is not dynamic."""
        return tuple(d for d in self.shape if isinstance(d, int))

    def port(self, shape: tuple[int, ...]) -> Port:
        """Returns the port to feed: an array of the declared type and rank, its dynamic dimensions from `shape`."""
        if not self.ranked or self.sequence:
            return Port(self.name, self.dtype, shape)
        dims: Sequence[Any] = shape
        if len(shape) != len(self.shape):
            dims = ["?" if d is None else d for d in self.shape]
        names = tuple(d if isinstance(d, str) else None for d in self.shape)
        return Port(
            self.name, self.dtype, tuple(d if isinstance(d, int) else g for d, g in zip(self.shape, dims)), names
        )


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model file."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def metadata_from_json(data: Any) -> ModelMetadata:
    """Parses metadata from JSON of `ir.imported.Metadata`, or from the part of it in an engine file."""
    record = data if isinstance(data, Mapping) else {}
    version, custom = record.get("version"), record.get("custom")

    def text(key: str) -> str:
        return str(record.get(key) or "")

    return ModelMetadata(
        text("producer"),
        text("graph"),
        text("domain"),
        text("description"),
        text("graph_description"),
        version if isinstance(version, int) else 0,
        {k: str(v) for k, v in custom.items()} if isinstance(custom, Mapping) else {},
    )


@dataclass(frozen=True)
class Signature:
    """The interface of a model. plugins: those that define output types, with their fingerprints. limits: argument of
    `Limits`; None if nothing is known."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    overridable: tuple[NodeArg, ...]
    metadata: ModelMetadata
    plugins: Mapping[str, str | None] = field(default_factory=dict)
    limits: Mapping[str, Any] | None = None

    @functools.cached_property
    def ports(self) -> tuple[NodeArg, ...]:
        """Inputs of the model's engines."""
        return tuple(part for a in self.inputs for part in a.parts)

    @property
    def is_dynamic(self) -> bool:
        """True if an input is dynamic."""
        return any(a.is_dynamic for a in self.ports)

    def json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(data: Any) -> Signature:
    """Parses the output of `Signature.json`. Raises ValueError for anything else."""
    try:
        inputs, outputs, overridable = (
            tuple(NodeArg(str(a["name"]), str(a["type"]), [*a["shape"]], bool(a["ranked"])) for a in data[key])
            for key in ("inputs", "outputs", "overridable")
        )
        if not all(is_onnx_type(a.type) for a in (*inputs, *outputs)):
            raise ValueError("not an element type of ONNX")
        Limits(data["limits"])
        return Signature(
            inputs, outputs, overridable, ModelMetadata(**data["metadata"]), {**data["plugins"]}, data["limits"]
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"not a signature: {e}") from None


def of_engine(engine: Engine) -> Signature:
    """Derives a prebuilt engine's signature from its ports and the sequences, optionals and maps behind them."""
    forms = engine.meta.get("forms") or {}

    def args(ports: Sequence[Port], forms: Mapping[str, Any]) -> tuple[NodeArg, ...]:
        by_name, inside = {p.name: p for p in ports}, dict[str, NodeArg]()
        for name, form in forms.items():
            if isinstance(form, Mapping) and "rows" in form:
                key = "string" if all(isinstance(k, str) for k in form["keys"]) else "int64"
                inside[form["rows"]] = NodeArg(name, f"seq(map({key},{NAMES[by_name[form['rows']].dtype]}))")
            elif isinstance(form, Mapping):
                key, value = (NAMES[t] for t in form["types"])
                inside[form["keys"]] = NodeArg(name, f"map({key.removeprefix('tensor(').removesuffix(')')},{value})")
                del by_name[form["values"]]
            elif form:
                inside[form[0]] = NodeArg(name, f"seq({NAMES[by_name[form[0]].dtype]})")
                for port in form[1:]:
                    del by_name[port]
        return tuple(inside.get(p.name) or NodeArg(p.name, NAMES[p.dtype], list(p.shape)) for p in by_name.values())

    return Signature(
        args(engine.inputs, forms.get("inputs") or {}),
        args(engine.outputs, forms.get("outputs") or {}),
        (),
        _metadata(engine),
    )


def _metadata(engine: Engine) -> ModelMetadata:
    """Returns the metadata of an engine's model, with the texts that its build added."""
    record = engine.provenance
    model, own = record.get("model"), record.get("metadata")
    data = model.get("metadata") if isinstance(model, Mapping) else None
    metadata = metadata_from_json({"graph": engine.name} if data is None else data)
    texts = {k: str(v) for k, v in own.items()} if isinstance(own, Mapping) else {}
    return replace(metadata, custom_metadata_map={**metadata.custom_metadata_map, **texts})


def check_feed_names(args: tuple[NodeArg, ...], overridable: tuple[NodeArg, ...], fed: Mapping[str, Any]) -> None:
    """Raises InputError for unknown or missing inputs."""
    missing = [a.name for a in args if a.name not in fed and not a.optional]
    if missing:
        raise InputError(f"Required inputs ({missing}) are missing from input feed ({[*fed]}).")
    unknown = next((name for name in fed if name not in {a.name for a in args}), None)
    if unknown in {a.name for a in overridable}:
        raise InputError(
            f"input {unknown!r} has a value in the model, a constant of the engine; remove its initializer from"
            " the model to feed it"
        )
    if unknown is not None:
        raise InputError(
            f"Invalid input name: {unknown}; the inputs are {', '.join(repr(a.name) for a in args) or 'none'}"
        )
