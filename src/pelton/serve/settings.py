"""Settings of a served model: Triton's config.pbtxt as far as it applies, completed from the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format, text_format

from pelton.errors import InputError

from . import datatypes
from .schema import message

if TYPE_CHECKING:
    from pelton.engine.plan import Port

LARGEST = 1 << 20  # bytes of a configuration
# what is read, top level and below; everything else is named as ignored
READ = {
    "": "name platform backend version_policy max_batch_size input output dynamic_batching sequence_batching"
    " instance_group default_model_filename parameters response_cache"
    " ensemble_scheduling",
    "input": "name data_type dims",
    "output": "name data_type dims label_filename",
    "dynamic_batching": "preferred_batch_size max_queue_delay_microseconds default_queue_policy priority_levels"
    " default_priority_level",
    "dynamic_batching.default_queue_policy": "timeout_action default_timeout_microseconds allow_timeout_override"
    " max_queue_size",
    "sequence_batching": "max_sequence_idle_microseconds control_input state direct oldest",
    "sequence_batching.state": "input_name output_name data_type dims",
    "instance_group": "name kind count gpus",
    "ensemble_scheduling": "step",
}
# parameters of config.pbtxt that Pelton defines
OF_TEXT = ("sequences", "context", "cache", "precision", "max_tokens", "waiting", "seconds")  # of language models
PARAMETERS = ("threads", "slo_ms", "batching", "labels", "level", *OF_TEXT)


@dataclass(frozen=True)
class ModelSettings:
    """Everything that a repository says of a model.

    config: the message ModelConfig. ignored: fields of it that have no effect. labels: of classes, by output.
    parameters: those of PARAMETERS. versions: label of a version → its number.
    """

    config: Any
    ignored: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def batching(self) -> Any:
        """The message ModelDynamicBatching, None if the file has none."""
        return self.config.dynamic_batching if self.config.HasField("dynamic_batching") else None

    @property
    def sequences(self) -> Any:
        """The message ModelSequenceBatching, None if the file has none."""
        return self.config.sequence_batching if self.config.HasField("sequence_batching") else None


def read(folder: Path | None, name: str) -> ModelSettings:
    """Reads the configuration in a model's folder; without one, everything comes from the engine.

    Raises InputError for a file that is no configuration, of another name, or with values out of range.
    """
    config = message("ModelConfig")()
    path = None if folder is None else folder / "config.pbtxt"
    if path is None or not path.is_file():
        return ModelSettings(config)
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path} has more than {LARGEST} bytes")
        text_format.Parse(path.read_text(), config, allow_unknown_field=True)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as e:
        raise InputError(f"{path} is no model configuration: {e}") from None
    if config.name not in ("", name):
        raise InputError(f"{path} configures {config.name!r}, but its folder is {name!r}: let the names agree")
    if config.max_batch_size < 0:
        raise InputError(f"{path}: max_batch_size is 0 or more, got {config.max_batch_size}")
    parameters = {k: v.string_value for k, v in config.parameters.items() if k in PARAMETERS}
    ignored = [*_ignored(config, ""), *(f"parameters[{k!r}]" for k in config.parameters if k not in PARAMETERS)]
    labels = {o.name: _labels(path.parent / o.label_filename, path) for o in config.output if o.label_filename}
    return ModelSettings(config, tuple(sorted(set(ignored))), labels, parameters, _versions(parameters, path))


def from_json(text: str, name: str) -> Any:
    """Reads a configuration that a client loads a model with. Raises InputError if it is none of this model."""
    try:
        config = json_format.Parse(text, message("ModelConfig")(), ignore_unknown_fields=True)
    except json_format.ParseError as e:
        raise InputError(f"the configuration of model {name!r} cannot be read: {e}") from None
    if config.name not in ("", name):
        raise InputError(f"the configuration of model {name!r} is of model {config.name!r}")
    return config


def _ignored(content: Any, path: str) -> Iterator[str]:
    """Yields the paths of set fields that Pelton does not read."""
    known = READ[path].split()
    for descriptor, value in content.ListFields():
        inner = f"{path}.{descriptor.name}" if path else descriptor.name
        if descriptor.name not in known:
            yield inner
        elif inner in READ:
            for part in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
                yield from _ignored(part, inner)


def _labels(path: Path, config: Path) -> tuple[str, ...]:
    if path.resolve().parent != config.parent.resolve():
        raise InputError(f"{config}: label_filename is a file beside it, got {path.name!r}")
    try:
        return tuple(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{config} names labels in {path.name}, which cannot be read: {e}") from None


def _versions(parameters: Mapping[str, str], path: Path) -> dict[str, str]:
    pairs = [p.partition("=") for p in parameters.get("labels", "").split(",") if p]
    for label, _, version in pairs:
        if not label or not version.isdigit():
            raise InputError(f"{path}: parameter labels is like 'stable=1,canary=2', got {parameters['labels']!r}")
    return {label: version for label, _, version in pairs}


def selected(config: Any, versions: list[str]) -> list[str]:
    """Returns the versions that the policy selects, in ascending order; without one, the latest alone."""
    ordered = sorted(versions, key=int)
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return ordered
    if choice == "specific":
        wanted = {str(v) for v in policy.specific.versions}
        return [v for v in ordered if v in wanted]
    return ordered[-max(1, policy.latest.num_versions) :]


def complete(settings: ModelSettings, name: str, inputs: list[Port], outputs: list[Port], most: int) -> Any:
    """Returns the configuration with what the engine knows: ports, types, the batch axis. Raises InputError where the
    file contradicts the engine. most: largest batch, 0 if the first axes are no batch."""
    config = message("ModelConfig")()
    config.CopyFrom(settings.config)
    config.name = name
    config.platform = config.platform or "pelton"
    config.backend = config.backend or "pelton"
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    if config.max_batch_size > most:
        raise InputError(
            f"max_batch_size of model {name!r} is {config.max_batch_size}, but its engine takes batches of"
            f" {most or 'one fixed size'}"
        )
    config.max_batch_size = config.max_batch_size or most
    for kind, ports in (("input", inputs), ("output", outputs)):
        _complete_ports(config, kind, ports, bool(most))
    return config


def _complete_ports(config: Any, kind: str, ports: list[Port], batched: bool) -> None:
    written = {tensor.name: tensor for tensor in getattr(config, kind)}
    known = {port.name for port in ports}
    for tensor in written:
        if tensor not in known:
            raise InputError(
                f"the configuration of {config.name!r} has {kind} {tensor!r}, its engine {', '.join(map(repr, known))}"
            )
    for port in ports:
        tensor = written.get(port.name)
        datatype = "TYPE_" + datatypes.NAMES[port.dtype].replace("BYTES", "STRING")
        dims = [d if isinstance(d, int) else -1 for d in port.shape][bool(batched and _leads(port)) :]
        if tensor is None:
            tensor = getattr(config, kind).add()
            tensor.name = port.name
            tensor.data_type = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name[datatype].number
            tensor.dims.extend(dims)
            continue
        names = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
        if names[tensor.data_type].name not in (datatype, "TYPE_INVALID"):
            raise InputError(
                f"{kind} {port.name!r} of model {config.name!r} is {names[tensor.data_type].name} in its"
                f" configuration, {datatype} in its engine"
            )
        if len(tensor.dims) != len(dims) or any(a != b and -1 not in (a, b) for a, b in zip(tensor.dims, dims)):
            raise InputError(
                f"{kind} {port.name!r} of model {config.name!r} has dims {list(tensor.dims)} in its configuration,"
                f" {dims} in its engine"
            )


def _leads(port: Port) -> bool:
    return bool(port.shape) and not isinstance(port.shape[0], int)
