"""Runs torch on a program's example inputs, for comparison with its ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from pelton.importers.conversions import NoReference, Reference

from .files import first_line

TORCH = f"torch {torch.__version__.partition('+')[0]}"
HIGHEST = (100, 2, 1)  # upper bounds of random integers, until one is valid
Arrays = list[np.ndarray]


def random(shape: Sequence[int]) -> torch.Tensor:
    """Draws normally distributed floats, equal in every call; leaves torch's own generator unchanged."""
    return torch.randn(list(shape), generator=torch.Generator().manual_seed(0))


def of_program(program: Any, converted: Any, outputs: Sequence[str]) -> Reference | NoReference:
    """Runs an ExportedProgram. converted: the program behind the ONNX model's nodes, with outputs of these names."""
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    kept = [isinstance(value, torch.Tensor) for value in _results(program)]

    def run(given: Sequence[Any]) -> Arrays:
        args, kwargs = _pytree.tree_unflatten(list(given), program.call_spec.in_spec)
        results = _pytree.tree_leaves(program.module()(*args, **kwargs), is_leaf=lambda value: value is None)
        return [_array(value) for value, is_kept in zip(results, kept, strict=True) if is_kept]

    def layers(given: Sequence[Any]) -> dict[str, tuple[str, np.ndarray]]:
        watch = _Watch(converted.module())
        watch.run(*given)
        made_by = [spec.arg.name for spec in _user_outputs(converted) if hasattr(spec.arg, "name")]
        return watch.seen | {name: watch.seen[of] for name, of in zip(outputs, made_by) if of in watch.seen}

    return _reference(names, _examples(program, names), run, layers)


def of_script(module: Any, arguments: Mapping[str, Any]) -> Reference | NoReference:
    """Runs TorchScript on its arguments by name."""

    def run(given: Sequence[Any]) -> Arrays:
        return [_array(value) for value in _pytree.tree_leaves(module(*given)) if isinstance(value, torch.Tensor)]

    return _reference(list(arguments), iter([list(arguments.values())]), run, lambda given: {})


def _reference(
    names: Sequence[str],
    examples: Iterator[Sequence[Any]],
    run: Callable[[Sequence[Any]], Arrays],
    layers: Callable[[Sequence[Any]], Mapping[str, tuple[str, np.ndarray]]],
) -> Reference | NoReference:
    """Returns a program's results for the first valid one of several examples."""
    reason = "it has no example inputs"
    for example in (variant for original in examples for variant in (_varied(original), original)):
        try:
            outputs = _isolated(run, example)
        except Exception as e:  # of many classes, some of them Python's own
            reason = f"its run fails: {first_line(e)}"
            continue

        arrays = {n: _array(value) for n, value in zip(names, example) if value is not None}
        return Reference(TORCH, arrays, outputs, partial(_isolated, run, example, 1), partial(layers, _copied(example)))
    return NoReference(TORCH, reason)


def _isolated(run: Callable[[Sequence[Any]], Arrays], example: Sequence[Any], seed: int = 0) -> Arrays:
    """Runs a program without a change to its example or to the state of torch's generators."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        return run(_copied(example))


def _examples(program: Any, names: Sequence[str]) -> Iterator[list[Any]]:
    """Yields a program's flat arguments: its own examples, else random ones of the sizes of its export."""
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        order = program.call_spec.in_spec.child(1).context  # names of keyword arguments
        yield _pytree.tree_leaves((args, {name: kwargs[name] for name in order}), is_leaf=lambda value: value is None)
        return
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for highest in HIGHEST:
        yield [_drawn(values.get(name), highest) for name in names]


def _drawn(fake: Any, highest: int) -> Any:
    """Returns a random tensor of a fake one's type and sizes; other values unchanged."""
    if not isinstance(fake, torch.Tensor):
        return fake
    shape = [size if isinstance(size, int) else size.node.hint for size in fake.shape]
    if fake.is_floating_point() or fake.is_complex():
        return random(shape).to(fake.dtype)
    return torch.randint(highest, shape, generator=torch.Generator().manual_seed(0)).to(fake.dtype)


def _varied(example: Sequence[Any]) -> list[Any]:
    """Replaces tensors of equal floats, such as zeros, by random numbers, which reveal more."""

    def varied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 2:
            return value
        return random(value.shape).to(value) if bool((value == value.reshape(-1)[0]).all()) else value

    return [varied(value) for value in example]


def _copied(example: Sequence[Any]) -> list[Any]:
    """Copies the values, which a program may change."""
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in example]


def _results(program: Any) -> list[Any]:
    """Returns a fake tensor, or another value, for each result of a program."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return [values.get(spec.arg.name) if hasattr(spec.arg, "name") else None for spec in _user_outputs(program)]


def _user_outputs(program: Any) -> list[Any]:
    return [spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]


def _array(value: Any) -> np.ndarray:
    """Converts a tensor or a number to an array, in float32 if numpy lacks its type; complex numbers become pairs, as
    in ONNX models."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy().copy()


class _Watch(torch.fx.Interpreter):
    """Runs a program and keeps all its values, by node name, with descriptions."""

    def __init__(self, module: Any):
        super().__init__(module)
        self.seen: dict[str, tuple[str, np.ndarray]] = {}

    def run_node(self, node: Any) -> Any:
        value = super().run_node(node)
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            self.seen[node.name] = (f"{node.name!r} ({node.target})", _array(value))
        return value
