"""Descriptions of pipelines: pipeline.yaml, and `ensemble_scheduling` of Triton's configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.engine.plan import Port
from pelton.errors import InputError, Needs

from . import datatypes

FILE = "pipeline.yaml"
SECONDS = 30.0  # of a call of a Python step, unless the file says otherwise
PipelineParts = tuple[list[Port], list[Port], list["PipelineStep"]]  # inputs, outputs, steps


@dataclass(frozen=True)
class PipelineStep:
    """A step: a model ("" for a Python step) with its version, or a file and a function. inputs, outputs: its own name
    of a tensor → the pipeline's."""

    model: str
    version: str
    python: str
    seconds: float
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __str__(self) -> str:
        return f"model {self.model!r}" if self.model else f"Python step {self.python!r}"


def read_config(config: Any) -> PipelineParts:
    """Reads `ensemble_scheduling` of a configuration."""
    types = (
        config.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type.values_by_number
    )

    def ports(tensors: Any) -> list[Port]:
        batch = [-1] if config.max_batch_size > 0 else []
        return [
            _port(t.name, types[t.data_type].name[5:].replace("STRING", "BYTES"), [*batch, *t.dims], config.name)
            for t in tensors
        ]

    steps = []
    for s in config.ensemble_scheduling.step:
        version = str(s.model_version) if s.model_version > 0 else ""
        steps.append(PipelineStep(s.model_name, version, "", 0.0, dict(s.input_map), dict(s.output_map)))
    return ports(config.input), ports(config.output), steps


def _port(name: Any, datatype: Any, shape: Any, where: object) -> Port:
    if not isinstance(name, str) or datatype not in datatypes.DATATYPES:
        raise InputError(
            f"{where}: tensor {name!r} has a datatype of {', '.join(datatypes.DATATYPES)}, got {datatype!r}"
        )
    if not isinstance(shape, list) or not all(type(d) is int and d >= -1 for d in shape):
        raise InputError(f"{where}: shape of tensor {name!r} is a list of sizes, -1 for any, got {shape!r}")
    return Port(
        name, datatypes.DATATYPES[datatype][0], tuple(d if d >= 0 else f"{name}_{i}" for i, d in enumerate(shape))
    )


def read_yaml(path: Path) -> PipelineParts:
    """Reads a pipeline.yaml. Raises InputError for anything that is not as this file's head says."""
    with Needs("pipeline.yaml", InputError, "serve"):
        import yaml
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise InputError(f"{path} cannot be read: {e}") from None
    _members(content, {"inputs": list, "outputs": list, "steps": list}, {}, path)
    tensor = {"name": str, "datatype": str, "shape": list}
    ports = []
    for kind in ("inputs", "outputs"):
        for t in content[kind]:
            _members(t, tensor, {}, f"{path}: {kind}")
        ports.append([_port(t["name"], t["datatype"], t["shape"], path) for t in content[kind]])
    steps = []
    for s in content["steps"]:
        where = f"{path}: steps"
        _members(
            s,
            {"inputs": dict, "outputs": dict},
            {"model": str, "version": int, "python": str, "seconds": object},
            where,
        )
        seconds = s.get("seconds", SECONDS)
        if ("model" in s) == ("python" in s):
            raise InputError(f"{where}: a step has either 'model' or 'python', got {sorted(s)}")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 86400:
            raise InputError(f"{where}: seconds is a number from 0 to 86400, got {seconds!r}")
        maps = [*s["inputs"].items(), *s["outputs"].items()]
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in maps):
            raise InputError(f"{where}: inputs and outputs map names to names, got {maps}")
        version = str(s["version"]) if "version" in s else ""
        steps.append(
            PipelineStep(s.get("model", ""), version, s.get("python", ""), float(seconds), s["inputs"], s["outputs"])
        )
    return ports[0], ports[1], steps


def _members(content: Any, needed: Mapping[str, type], optional: Mapping[str, type], where: object) -> None:
    """Raises InputError unless content is a mapping with these members, of these types, and no others."""
    if not isinstance(content, dict) or not needed.keys() <= content.keys() <= {**needed, **optional}.keys():
        expected = ", ".join([*needed, *(f"{name} (optional)" for name in optional)])
        raise InputError(f"{where}: expected a mapping with {expected}, got {str(content)[:200]}")
    for name, value in content.items():
        kind = {**needed, **optional}[name]
        if not isinstance(value, kind):
            raise InputError(f"{where}: {name} is a {kind.__name__}, got {value!r}")
