"""Runs one node by its reference: floats computed in float64 and rounded once, foreign nodes by the onnx package in
their own types.

References are code of other packages (numpy, onnx, Pillow), with their own exceptions for unsuitable data: each becomes
an InputError that describes the data. An EngineError means a damaged step or a missing package.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from pelton.errors import EngineError, InputError, ModelError, Needs
from pelton.ir.evaluate import evaluate_node
from pelton.ir.graph import Graph, Node, with_sizes
from pelton.ir.text import parse, parse_node
from pelton.ir.types import DType, TensorType
from pelton.plugins.plugin import compute  # steps may be plugin operators
from . import functions
from pelton.ops.foreign import evaluator, unpacked

MAX_SHOWN = 8  # elements of an array that messages list one by one
MAX_REASON = 200  # characters of an element, or of another package's message


def run_node(node: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Returns the outputs of a node, contiguous. Raises InputError if the arrays do not have its input types, or the
    reference cannot process their elements; EngineError if a plugin fails."""
    inputs = tuple(map(np.asarray, arrays))
    expected = tuple(v.type for v in node.inputs)
    if tuple(map(_type, inputs)) != expected:
        raise InputError(f"step {_where(node)} needs {_listed(expected)}, got {_listed(map(_type, inputs))}")
    try:
        outputs = node.op.evaluate(inputs, node.attrs) if node.op.kind == "foreign" else evaluate_node(node, inputs)
    except EngineError as e:
        raise EngineError(f"{e} (step {_where(node)})") from None
    except InputError:  # an index that a table lacks
        raise
    except Exception as e:
        if node.op.instance is not None or isinstance(e, (ImportError, MemoryError)):
            raise EngineError(f"step {_where(node)} failed on the host: {type(e).__name__}: {e}") from e
        if node.op.kind != "foreign":
            raise _refused(_where(node), e, inputs, [v.name for v in node.inputs]) from e
        outputs = tuple(_read(node.name, node.attrs["model"], inputs))
    if len(outputs) != len(node.outputs):
        raise EngineError(
            f"the engine is damaged: step {_where(node)} must return {len(node.outputs)} arrays, but returned"
            f" {len(outputs)}; build it again"
        )
    return tuple(_declared(node, a, v.type) for a, v in zip(outputs, node.outputs))


def _declared(node: Node, found: np.ndarray, type: TensorType) -> np.ndarray:
    """Converts a result to its declared type; raises EngineError if its shape differs."""
    if found.shape != type.shape:
        raise EngineError(
            f"step {_where(node)} must return {type}, as the model declares or onnx infers, but returned shape"
            f" {list(found.shape)} for this data; engines fix data-dependent sizes during the build: declare the"
            " shape of the data, and build again"
        )
    with np.errstate(all="ignore"):
        return np.asarray(found, type.dtype.numpy, order="C")


def run_text(text: str, sizes: Mapping[str, int] | None = None) -> Callable[..., tuple[np.ndarray, ...]]:
    """Returns the function of arrays described by the text of a node (`pelton.ir.text.node_text`) or of a whole graph,
    for these values of symbols; raises EngineError if the text cannot be parsed."""
    try:
        if text.startswith("graph "):
            return run_graph(with_sizes(parse(text), sizes or {})[0])
        node = parse_node(text, sizes)
    except (InputError, ValueError) as e:
        raise EngineError(
            f"a host step of this engine cannot be read: {e}; if that is no plugin, it is damaged or made by another"
            " version, build it again"
        ) from None
    if node.op.kind == "foreign":
        _prepare(_where(node), evaluator, node.attrs["model"])
    if node.op.instance is not None:
        return PluginStep(node)

    def run(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return run_node(node, arrays)

    return run


class PluginStep:
    """A plugin node with an object of its own, from its first run on."""

    def __init__(self, node: Node):
        self.node = node
        self._held: Node | None = None

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        if self._held is None:
            self._held = self._instance()
        return run_node(self._held, arrays)

    def own(self) -> PluginStep:
        """Returns the same step for another context, with another object."""
        return PluginStep(self.node)

    def _instance(self) -> Node:
        node = self.node
        assert node.op.instance is not None
        try:
            held = node.op.instance(**node.attrs)
            held.initialize()
        except EngineError as e:
            raise EngineError(f"{e} (step {_where(node)})") from None
        except Exception as e:
            raise EngineError(f"step {_where(node)} failed on the host: {type(e).__name__}: {e}") from e
        weakref.finalize(self, held.terminate)
        op = node.op
        if op.reference is not None:
            op = replace(op, reference=lambda *arrays, **_: compute(held, arrays))
        return Node(op, node.inputs, node.attrs, node.outputs, node.name)


def run_graph(graph: Graph) -> Callable[..., tuple[np.ndarray, ...]]:
    """Returns the function of arrays described by a graph of known sizes; floats are rounded once per value."""

    def run(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        env = dict(zip(graph.inputs, arrays))
        for node in graph.nodes:
            env.update(zip(node.outputs, run_node(node, [env[v] for v in node.inputs])))
        return tuple(env[v] for v in graph.outputs)

    return run


def function(name: str, call: str, text: str, native: Mapping[str, Callable[..., Any]]) -> Callable[..., Sequence[Any]]:
    """Returns the callable of a script's step, on arrays, lists and None: a function of `functions` with its
    attributes, or the backend's own; or a one-node model (as `ops.foreign`): "onnx" for the evaluator of the onnx
    package, "read" for our own importer and references; or "tflite", one operator of TFLite."""
    if call in _MODELS:
        return lambda *inputs: _MODELS[call](name, text, inputs)
    try:
        operation = functions.prepared(call, json.loads(text), native)
    except (ValueError, RecursionError) as e:
        raise EngineError(
            f"step {name!r} of this engine cannot be read: {e}; it is damaged or made by another version, build it"
            " again"
        ) from None

    def run(*inputs: Any) -> Sequence[Any]:
        with _step_errors(f"{call} {name!r}", inputs):
            return operation(*inputs)

    return run


def _evaluated(name: str, model: str, given: Sequence[Any]) -> Sequence[Any]:
    """Returns the outputs of a one-node model, of any type and shape.

    Data that the onnx package rejects may have a meaning all the same; if it has none, the importer's error says why.
    """
    try:
        run = evaluator(model)
        with np.errstate(all="ignore"):
            return list(run.run(None, dict(zip(run.input_names, given, strict=True))))
    except EngineError as e:
        raise EngineError(f"{e} (step {name!r})") from None
    except (ImportError, MemoryError) as e:
        raise EngineError(f"step {name!r} failed on the host: {e}") from e
    except Exception:
        return _read(name, model, given)


def _read(name: str, model: str, given: Sequence[Any]) -> Sequence[Any]:
    """Returns the same by our own importer: reads the model anew, with these arrays as constants."""
    from pelton.importers.onnx.host_steps import result

    (node,), names = unpacked(model).graph.node, [i.name for i in unpacked(model).graph.input]
    with _step_errors(f"{node.op_type} {name!r}", given, names):
        return result(unpacked(model), dict(zip(names, given, strict=True)))


def _tflite(name: str, operator: str, given: Sequence[Any]) -> Sequence[Any]:
    """Returns the outputs of a TFLite operator, read anew for these arrays."""
    with _step_errors(f"step {name!r}", given):
        from pelton.importers.tflite import single

        return single.run(operator, given)


_MODELS = {"onnx": _evaluated, "read": _read, "tflite": _tflite}


@contextmanager
def _step_errors(where: str, given: Sequence[Any], names: Sequence[str] = ()) -> Iterator[None]:
    """Context manager: turns errors on data into an InputError that names the step and describes its arrays."""
    try:
        yield
    except InputError as e:
        raise InputError(f"{e} (step {where})") from None
    except EngineError as e:
        raise EngineError(f"{e} (step {where})") from None
    except (ImportError, MemoryError) as e:
        raise EngineError(f"{where} failed on the host: {e}") from e
    except Exception as e:
        raise _refused(where, e, given, names) from e


def _refused(where: str, reason: Exception, given: Sequence[Any], names: Sequence[str] = ()) -> InputError:
    """Returns the error of a step whose data has no meaning. `where` begins with the operator, which errors of the
    importer usually name."""
    held = [f"{name} {_described(a)}".strip() for name, a in zip_longest(names, given, fillvalue="") if a is not None]
    why = str(reason)
    if not isinstance(reason, ModelError) or where.split()[0] not in why:
        why = f"{where} cannot take its data: {' '.join(why.split()).rstrip('.')[:MAX_REASON] or 'it has no meaning'}"
    return InputError(f"{why}; given {', '.join(held) or 'nothing'}")


def _described(value: Any) -> str:
    """Describes a value for messages: its type with its elements, or with their range if there are many."""
    if not isinstance(value, np.ndarray):
        return f"a sequence of {len(value)}" if isinstance(value, list) else str(value)[:MAX_REASON]
    kind = f"{_type(value) or value.dtype}"
    if value.size <= MAX_SHOWN:
        return f"{kind} = {value.tolist()}"[:MAX_REASON]
    if value.dtype.kind not in "iuf":
        return kind
    numbers = value[value == value]
    nan = " and NaN" if numbers.size < value.size else ""
    return f"{kind} from {numbers.min()} to {numbers.max()}{nan}" if numbers.size else f"{kind} of NaN"


def check_call(name: str, call: str, text: str) -> None:
    """Checks, before the first run, that the package needed by the result of `function` is installed."""
    if call == "tflite":
        with Needs(f"step {name!r} runs an operator of TFLite and", EngineError):
            import pelton.importers  # noqa: F401
    elif call in _MODELS:
        _prepare(repr(name), evaluator if call == "onnx" else unpacked, text)


def _prepare(where: str, needed: Callable[[str], object], model: str) -> None:
    """Checks, before the first run, that the onnx package is installed and supports a model."""
    try:
        needed(model)
    except EngineError as e:
        raise EngineError(f"{e} (step {where})") from None
    except Exception as e:
        raise EngineError(f"step {where} cannot run on the onnx package installed here: {type(e).__name__}: {e}") from e


def _type(array: np.ndarray) -> TensorType | None:
    try:
        return TensorType(DType.of(array), array.shape)
    except TypeError:
        return None


def _listed(types) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _where(node: Node) -> str:
    return f"{node.op.name} {node.name!r}" if node.name else node.op.name
