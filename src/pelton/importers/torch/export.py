"""Exports modules, exported programs and TorchScript to ONNX with torch's own exporters: there is no second table of
operators."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from pelton.errors import InputError, ModelError, Needs, near
from pelton.importers.conversions import NoReference, Reference
from pelton.importers.imported import Range, Shape, parse_shape
from pelton.importers.onnx.file import Source
from pelton.importers.registry import Traceable

from . import custom_ops, files
from .files import first_line

# loggers of exporters that report nothing new to a caller: missing packages, omitted folds
FIXED_SIZE = re.compile(r"You marked \S+ as dynamic but your code specialized it to be a constant \([^()]*\)")
CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")


class Called(NamedTuple):
    """A model's name in messages, and its file, if any."""

    name: str
    path: Path | None

    def exported(
        self, model: onnx.ModelProto, examples: dict[str, tuple[int, ...]], of: Reference | NoReference
    ) -> Exported:
        model.graph.name = self.name  # the name of the engine
        return Exported(Source(model, self.path), examples, of)


class Exported(NamedTuple):
    """An ONNX model in memory, the shapes of the examples of its trace, by input name, and torch's results on these."""

    source: Source
    examples: dict[str, tuple[int, ...]]
    reference: Reference | NoReference


def export(source: Any, shapes: Mapping[str, Shape]) -> Exported:
    """Exports an equivalent ONNX model. `shapes`: as for `importers.load`; they stand in for examples.

    Raises ModelError if torch cannot export it, InputError for missing or unfit examples.
    """
    traceable = source if isinstance(source, Traceable) else Traceable(source)
    model, path = traceable.model, None
    if isinstance(model, (str, os.PathLike)):
        path = Path(os.fsdecode(model))
        model = files.read(path)
    with Needs("importing models of PyTorch", extra="torch"):
        import onnxscript  # noqa: F401  (torch.onnx needs it, and says so late)
        import torch
    sizes = {name: parse_shape(name, shape) for name, shape in shapes.items()}
    name = path.name if path else type(model).__name__
    with _quiet(), torch.no_grad():  # attention's form depends on gradients: all of it must see the same mode
        if isinstance(model, torch.jit.ScriptModule):
            with _in_evaluation(model):
                return _export_script(model, traceable, sizes, Called(name, path))
        if isinstance(model, torch.nn.Module):
            with _in_evaluation(model):
                model = _trace(model, traceable, sizes, name)
        elif traceable.example_inputs is not None or traceable.dynamic_shapes is not None:
            raise InputError(
                f"{name} is already exported, with examples and dynamic sizes; leave out example_inputs and"
                " dynamic_shapes, or pass the module"
            )
        return _export_program(model, Called(name, path))


def _trace(module: Any, given: Traceable, sizes: Mapping[str, tuple[int | Range, ...]], name: str) -> Any:
    """Traces a module to an ExportedProgram."""
    import torch

    dynamic = given.dynamic_shapes
    if given.example_inputs is None:
        parameters = inspect.signature(module.forward).parameters.values()
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        required = [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
        args, kwargs = (), _examples_of(sizes, required, [p.name for p in parameters], name)
        dynamic = dynamic or {
            parameter: {axis: torch.export.Dim.DYNAMIC for axis in _dynamic_axes(sizes[parameter])}
            for parameter in kwargs
        }
    else:
        args, kwargs = _arguments(given.example_inputs)
    try:
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
    except Exception as e:  # of many classes, some of them Python's own
        raise ModelError(f"torch.export cannot export {name}: {_said_of_export(e)}") from e


def _said_of_export(e: Exception) -> str:
    """Explains why torch.export rejects a module, and a remedy."""
    fixed = FIXED_SIZE.search(str(e))
    if fixed is not None:
        return (
            f"{fixed[0]}; fix this size: the module's code treats it as a number, like torch's recurrent layers"
            " (nn.LSTM), which export for one length only"
        )
    return (
        f"{first_line(e)}; example_inputs must be arguments that the module can be called with, and its control flow"
        " must not depend on their values (https://docs.pytorch.org/docs/stable/export.html)"
    )


def _export_program(program: Any, called: Called) -> Exported:
    """Exports an ExportedProgram to ONNX. Raises ModelError if it changes its own state, as engines have none."""
    import torch

    from . import eager

    name, outputs = called.name, _output_names(program)
    try:
        model = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            output_names=outputs,
            custom_translation_table=custom_ops.translations(program),
        )
        assert model is not None
    except Exception as e:
        while e.__cause__ is not None:  # the first cause names the operator
            e = e.__cause__  # type: ignore[assignment]
        raise ModelError(f"torch.onnx cannot export {name}: {first_line(e)}{custom_ops.advice(program)}") from e
    assert model.exported_program is not None
    signature = model.exported_program.graph_signature  # of a graph that declares its changes
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise ModelError(
            f"{name} changes {', '.join(map(repr, changed[:4]))} in place while it runs; an engine has no state:"
            " make it an argument and a result, or use torch.compile(module, backend='pelton')"
        )
    inputs = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    examples = {
        name: tuple(size if isinstance(size, int) else size.node.hint for size in value.shape)
        for name, value in inputs.items()
        if name in program.graph_signature.user_inputs and isinstance(value, torch.Tensor)
    }
    return called.exported(model.model_proto, examples, eager.of_program(program, model.exported_program, outputs))


def _output_names(program: Any) -> list[str]:
    """Returns a name for each output tensor of a program: its path in the module's result."""
    from torch.export.graph_signature import TensorArgument
    from torch.utils import _pytree

    spec, specs = program.call_spec.out_spec, program.graph_signature.output_specs
    try:
        paths = [path for path, _ in _pytree.tree_flatten_with_path(spec.unflatten(range(spec.num_leaves)))[0]]
    except ValueError:  # containers whose keys are unknown
        paths = [(i,) for i in range(spec.num_leaves)]
    taken = {node.name for node in program.graph.nodes if node.op == "placeholder"}
    names: list[str] = []
    for path, of in zip(paths, specs):
        keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
        name = "_".join(str(key) for key in keys)
        name = name if name and not name[0].isdigit() else "_".join(filter(None, ("output", name)))
        while name in taken:
            name += "_"
        taken.add(name)
        if isinstance(of.arg, TensorArgument):
            names.append(name)
    return names


def _export_script(
    module: Any, given: Traceable, sizes: Mapping[str, tuple[int | Range, ...]], called: Called
) -> Exported:
    """Exports TorchScript to ONNX, by the exporter made for it."""
    import torch

    from . import eager

    name, schema = called.name, module.forward.schema
    parameters = schema.arguments[1:]
    names = [p.name for p in parameters]
    args, kwargs = (), {}
    if given.example_inputs is None:
        kwargs = _examples_of(sizes, [p.name for p in parameters if not p.has_default_value()], names, name)
    else:
        args, kwargs = _arguments(given.example_inputs)
    named = {**dict(zip(names, args)), **kwargs}
    full = {p.name: named.get(p.name, p.default_value) for p in parameters}
    tensors = [n for n, value in full.items() if isinstance(value, torch.Tensor)]
    axes = given.dynamic_shapes or {n: _dynamic_axes(sizes.get(n, ())) for n in tensors}
    dynamic = {n: {axis: f"{n}_{axis}" for axis in axes[n]} for n in tensors if axes.get(n)}
    buffer = io.BytesIO()
    try:
        torch.onnx.export(
            module,
            tuple(full.values()),
            buffer,
            dynamo=False,
            input_names=tensors,
            output_names=_names_of_results(schema.returns[0].type),
            dynamic_axes=dynamic,
        )
    except Exception as e:
        raise ModelError(f"torch.onnx cannot export {name}: {first_line(e)}") from e
    model = onnx.ModelProto.FromString(buffer.getvalue())
    for port, value in zip(list(model.graph.input), [value for value in full.values() if value is not None]):
        if not isinstance(value, torch.Tensor):  # numbers and flags become inputs with constant values
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), port.name))
            model.graph.input.remove(port)
    shapes = {n: tuple(full[n].shape) for n in tensors if n in dynamic}
    return called.exported(model, shapes, eager.of_script(module, full))


def _names_of_results(type: Any) -> list[str] | None:
    """Returns names for the outputs of TorchScript; None if its type leaves their number open."""
    if type.kind() == "TensorType":
        return ["output"]
    parts = type.elements() if type.kind() == "TupleType" else []
    return [f"output_{i}" for i in range(len(parts))] if all(p.kind() == "TensorType" for p in parts) else None


def _arguments(examples: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits examples into positional and named arguments. Raises InputError for arrays in place of tensors."""
    args: tuple[Any, ...]
    if isinstance(examples, Mapping):
        args, kwargs = (), dict(examples)
    else:
        args, kwargs = (tuple(examples) if isinstance(examples, (tuple, list)) else (examples,)), {}
    array = next((a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)), None)
    if array is not None:
        raise InputError(
            f"example_inputs has a numpy array of {array.dtype}{list(array.shape)}, but the module needs tensors;"
            " pass torch.from_numpy(array)"
        )
    return args, kwargs


def _examples_of(
    sizes: Mapping[str, tuple[int | Range, ...]], required: Sequence[str], names: Sequence[str], model: str
) -> dict[str, Any]:
    """Returns f32 tensors of the given sizes, by parameter name; ranges become their optimum, at least 2: torch fixes
    sizes of 1."""
    unknown = [name for name in sizes if name not in names]
    if unknown:
        raise InputError(
            f"shapes names {unknown[0]!r}, but forward of {model} has no such parameter{near(unknown[0], names)};"
            f" it has {', '.join(map(repr, names))}"
        )
    missing = [name for name in required if name not in sizes]
    if missing:
        raise InputError(
            f"{model} is traced, which needs example arguments, but {', '.join(map(repr, missing))} are unknown;"
            f" for f32 tensors set shapes={{{missing[0]!r}: ...}}, for others, in Python,"
            f" example_inputs={{{missing[0]!r}: torch.randn(1, 3, 224, 224)}}"
        )
    from . import eager  # imports torch

    return {
        name: eager.random([size if isinstance(size, int) else max(size.optimum, 2) for size in shape])
        for name, shape in sizes.items()
    }


def _dynamic_axes(shape: Sequence[int | Range]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if not isinstance(size, int)]


@contextlib.contextmanager
def _in_evaluation(module: Any) -> Iterator[None]:
    """Puts a module and its parts into evaluation mode, then restores them."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences exporters except for errors."""
    before = [(log, log.level) for log in map(logging.getLogger, CHATTY)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for log, _ in before:
                log.setLevel(logging.ERROR)
            yield
    finally:
        for log, level in before:
            log.setLevel(level)
