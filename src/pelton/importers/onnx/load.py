"""Loads ONNX models of every opset: checks their interface, imports their nodes, returns the graph."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import onnx

from pelton.errors import InputError, ModelError
from pelton.ir.dims import UNBOUNDED, Size
from pelton.importers.imported import Shape, log, parse_shape, split_dimensions
from pelton.ir.graph import Value, symbols
from pelton.ir.imported import Examined, Imported, Info, OnData, OnSizes
from pelton.ir.size_constraints import MAX_ATTEMPTS, SizeRequirement, SizeConstraint, constrain
from pelton.ir.bindings import BROKEN, ValueSequence, MapSequence

from . import microsoft, ops  # noqa: F401  (readers)
from .file import Source, metadata_of, read
from .old_opsets import OLDEST, modernized
from .inputs import Inputs, check_names, default_optimum
from .ports import Given, Sizes, split_inputs
from .program import Program
from .scope import Scope, domain_of
from .translate import Translator

MAX_SHOWN = 8  # problems listed in one message


@dataclass(frozen=True)
class Results:
    """The values of the outputs by port, and the ports of outputs that are not a single tensor."""

    ports: dict[str, Value]
    forms: dict[str, Any]


def load(
    source: str | os.PathLike | bytes | onnx.ModelProto | Source,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> Imported:
    """Imports an ONNX model as a graph.

    shapes: sizes by the names of inputs: `"1x3x224x224"`, `"1..8..32x3"` (minimum..optimum..maximum) for dynamic
        dimensions, or tuples of integers and ranges. Unspecified dimensions are dynamic as far as the model can be
        imported that way; a warning lists them.
    outputs: names of the tensors to compute, inner ones included; only the nodes that they need are imported.
    values: makes inputs constants if they determine the graph (axes, a shape, a condition, an initializer that may be
        replaced); a list of arrays for a sequence, None for an optional without a value.
    optimum: the sizes by the names of inputs that unspecified dimensions are tuned for, without a warning.

    Raises ModelError, which lists the problems of the model, and InputError for wrong arguments.
    """
    program, result = import_model(source, shapes, outputs, values, optimum)
    _log(program)
    if isinstance(result, ModelError):
        raise result
    return result


def import_model(
    source: str | os.PathLike | bytes | onnx.ModelProto | Source,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Program, Imported | ModelError]:
    """Does the work of `load`; returns the record of the import with the result, or with the error.

    Raises ModelError if not even the interface of the model can be read.
    """
    origin = modernized(read(source))
    arrays: dict[str, np.ndarray] = {}
    spec = given_inputs(
        origin.model.graph, {name: parse_shape(name, s) for name, s in (shapes or {}).items()}, values or {}, arrays
    )

    requirements: dict[tuple[str, str, str], SizeRequirement] = {}

    def read_with(settled: Mapping[str, SizeConstraint]) -> Outcome:
        program = Program(origin, arrays)
        outcome = Outcome(program, *_read(program, spec, settled, outputs, optimum), settled)
        for r in _requirements(outcome):
            requirements.setdefault((str(r.needed), r.relation, str(r.shapes)), r)
        return outcome

    best = _read_with_fewest_assumptions(read_with)
    program, inputs, results, settled = best
    program.requirements, program.shapes = [*requirements.values()], _shapes(inputs)
    if program.problems:
        error = _error(best, origin.name)
        error.requirements = tuple(program.requirements)
        return program, error
    for text in inputs.assumptions(settled, origin.name):
        program.warn(text)
    graph = program.builder.finish(inputs.values, results.ports)
    sizes = {s.name: (s.minimum, s.optimum, s.maximum if s.maximum < UNBOUNDED else None) for s in symbols(graph)}
    info = Info(
        str(origin.path or ""),
        metadata_of(origin.model),
        origin.model.ir_version,
        opsets_of(program),
        sizes,
        tuple(inputs.defaulted),
        tuple(program.foreign_steps),
        tuple(program.deciding_inputs),
        spec.describe(),
        tuple(program.warnings),
        tuple(inputs.assumed(settled)),
        files=tuple(origin.files),
        conversion=origin.conversion,
    )
    return program, Imported(graph, info, {"inputs": spec.forms(), "outputs": results.forms})


def examine(
    source: str | os.PathLike | bytes | onnx.ModelProto | Source,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> Examined:
    """Imports a model like `load` and reports on each node, in terms that all formats share."""
    source = read(source)
    program, result = import_model(source, shapes, outputs, values, optimum)
    graph = source.model.graph
    held = {t.name for t in graph.initializer}
    sizes = {
        i.name: tuple(
            d.dim_value if d.HasField("dim_value") else default_optimum(axis)
            for axis, d in enumerate(i.type.tensor_type.shape.dim)
        )
        for i in graph.input
        if i.name not in held and i.type.tensor_type.HasField("shape")
    }
    opsets = {domain_of(o.domain): o.version for o in source.model.opset_import}
    return Examined(
        source,
        source.name,
        result,
        opsets,
        program.imported_nodes(),
        program.problems,
        program.warnings,
        program.unspecified,
        sizes,
    )


class Outcome(NamedTuple):
    """The result of importing a model under constraints on unspecified sizes."""

    program: Program
    inputs: Inputs
    results: Results
    settled: Mapping[str, SizeConstraint]

    @property
    def rank(self) -> tuple[int, int]:
        """Orders outcomes, best first: without problems, with few steps that the onnx package runs."""
        if not self.program.problems:
            severity = 0
        else:
            severity = 1 if self.program.has_only_data_problems() else 2
        return severity, len(self.program.foreign_steps)


def _read_with_fewest_assumptions(read_with: Callable[[Mapping[str, SizeConstraint]], Outcome]) -> Outcome:
    """Imports a model with as few constraints on unspecified sizes as possible.

    Sizes with a given optimum also become that number if this avoids steps of the onnx package, or a script.
    """
    first = read_with({})
    best = _settle(first, read_with)
    known = {
        name: SizeConstraint(x.optimum, "a fixed size makes the program shorter", given_up=True)
        for name, x in first.inputs.free.items()
        if name in first.inputs.observed
    }
    if known and (best.program.problems or best.program.foreign_steps):
        fixed = _settle(read_with(known), read_with)
        if fixed.rank < best.rank or best.program.problems and not best.program.has_only_data_problems():
            best = fixed
    # retry without each fixed size: later constraints may have made it superfluous
    for name in reversed([name for name, s in best.settled.items() if s.given_up]):
        again = _settle(read_with({k: s for k, s in best.settled.items() if k != name}), read_with, numbers=False)
        best = again if not again.program.problems and again.rank <= best.rank else best
    return best


def _settle(
    found: Outcome, read_with: Callable[[Mapping[str, SizeConstraint]], Outcome], numbers: bool = True
) -> Outcome:
    """Constrains sizes while that resolves further nodes.

    numbers: True if sizes that could have several values may be fixed to one.
    """
    tries = Counter[str]()  # by the first undecided node
    while found.program.problems and found.program.undecided and not found.program.has_certain_problems:
        program, inputs = found.program, found.inputs
        if program.has_only_data_problems() and not any(s.question for s in program.undecided):
            break
        place = program.undecided[0].where
        tries[place] += 1
        further = constrain(program.undecided, inputs.free, inputs.observed, numbers=tries[place] > MAX_ATTEMPTS)
        if not further or not numbers and any(s.given_up for s in further.values()):
            break
        found = read_with({**found.settled, **further})
    return found


def _requirements(found: Outcome) -> Iterator[SizeRequirement]:
    """Yields the size requirements of undecided nodes that are part of all runs."""
    shapes = _shapes(found.inputs)
    for node in found.program.undecided:
        q = node.question
        if q is not None and q.needed and not node.conditional:
            # a question for the importer is an answer for the runner
            text = str(q).replace("whether ", "").replace(" depends on dynamic dimensions", " has to hold")
            yield SizeRequirement(shapes, q.needed, q.relation, f"{text} ({node.where})")


def _shapes(inputs: Inputs) -> dict[str, tuple[Size, ...]]:
    return {v.name: v.type.shape for v in inputs.values}


def _error(found: Outcome, name: str) -> ModelError:
    """Builds the error to raise; its class shows if a script or other sizes may help."""
    program = found.program
    text, lacking = _format_problems(program.problems, name), tuple(program.deciding_inputs)
    if program.has_only_data_problems():
        return OnData(text, lacking)
    assumed = found.inputs.assumed(found.settled)
    if assumed and not program.has_certain_problems:
        return OnSizes(
            f"{text}; the unspecified size{'s' * (len(assumed) > 1)} {', '.join(assumed)} had to be assumed: set"
            " others with shapes=",
            lacking,
        )
    return ModelError(text, lacking)


def given_inputs(
    graph: onnx.GraphProto, shapes: Mapping[str, Sizes], values: Mapping[str, Any], arrays: dict[str, np.ndarray]
) -> Given:
    """Combines the declared inputs with the caller's shapes and values.

    Keys of `shapes` that are names of dimensions, not of inputs, set these wherever they occur. Values for inputs that
    have an initializer replace it in `arrays`.
    """
    stored = {t.name: list(t.dims) for t in graph.initializer} | {
        t.values.name: list(t.dims) for t in graph.sparse_initializer
    }
    declared = [i for i in graph.input if i.name not in stored]  # before IR 4, initializers are also listed
    check_names("values", values, [i.name for i in graph.input], "inputs")
    replaced = split_inputs([i for i in graph.input if i.name in stored and i.name in values], {}, values)
    for name, array in replaced.values.items():
        if list(array.shape) != stored[name]:
            raise InputError(
                f"the value of input {name!r} has shape {list(array.shape)}, the initializer in its place has"
                f" {stored[name]}"
            )
    arrays.update(replaced.values)
    axes = {d.dim_param for i in declared for d in i.type.tensor_type.shape.dim} - {i.name for i in declared}
    sizes, shapes = split_dimensions(shapes, axes)
    spec = split_inputs(declared, shapes, values)
    names = [*(i.name for i in declared), *(t.name for p in spec.parts for t in p.tensors), *sorted(axes - {""})]
    check_names("shapes", shapes, names, "inputs and dimensions" if axes - {""} else "inputs")
    return replace(spec, replaced=replaced.values, dimensions=sizes)


def _read(
    program: Program,
    given: Given,
    settled: Mapping[str, SizeConstraint],
    outputs: Iterable[str] | None,
    optimum: Mapping[str, Sequence[int]] | None,
) -> tuple[Inputs, Results]:
    """Imports the graph and returns its inputs and results; problems are recorded in `program`."""
    source, graph = program.source, program.source.model.graph
    if source.opset is not None:
        program.warn(f"{source.name} has opset {source.opset}; it is read as one of opset {OLDEST}")
    scope = Scope(opsets_of(program))
    program.bind_initializers(graph, scope)
    names = [p.name for p in given.parts]
    if len(set(names)) < len(names):
        raise ModelError(f"names of inputs must be unique, got {names} ({source.name})")
    # those of a sequence or a map derive from its name: x[0], x.keys
    tuned = {re.sub(r"\[\d+\]$|\.(keys|values)$", "", name) if name not in names else name for name in optimum or ()}
    check_names("optimum", tuned, [i.name for i in graph.input], "inputs")
    inputs = Inputs(program, scope, given, settled, optimum)
    scope.declared = program.declared(graph)
    names = check_outputs(program, scope, outputs)
    Translator(program).read(graph.node, scope, names)
    results = Results({}, {})
    optional = {o.name for o in graph.output if o.type.WhichOneof("value") == "optional_type"}
    for name in names:
        binding = scope.find(name) if scope.sees(name) else None
        if isinstance(binding, ValueSequence) and None not in binding.values:
            ports = {f"{name}[{k}]": v for k, v in enumerate(binding.values) if v is not None}
            results.ports.update(ports)
            results.forms[name] = list(ports)
        elif isinstance(binding, MapSequence):
            results.ports[name] = binding.matrix
            results.forms[name] = {"rows": name, "keys": list(binding.keys)}
        elif isinstance(binding, Value):
            results.ports[name] = binding
        elif binding is None and scope.sees(name) and name in optional:
            results.forms[name] = None
        elif binding is not BROKEN and not program.undecided:  # reading stops at the first undecided node
            reason = "is not produced by any node"
            if isinstance(binding, ValueSequence):
                reason = "is a sequence of tensors whose sizes depend on the data"
            program.problems.append(f"output {name!r} {reason} ({source.name})")
    return inputs, results


def _log(program: Program) -> None:
    for text in program.warnings:
        log.warning("%s", text)


def _format_problems(problems: list[str], name: str) -> str:
    if len(problems) == 1:
        return problems[0]
    more = [f"and {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else []
    return "\n  - ".join([f"{len(problems)} problems in {name}:", *problems[:MAX_SHOWN], *more])


def opsets_of(program: Program) -> dict[str, int]:
    opsets = {domain_of(o.domain): o.version for o in program.source.model.opset_import}
    for domain, (_, newest) in onnx.defs.C.schema_version_map().items():
        if opsets.get(domain, 0) > newest:
            raise ModelError(
                f"{program.source.name} has opset {opsets[domain]} of {domain or 'ai.onnx'}, the installed onnx package"
                f" knows {newest} and older; install a newer onnx, or export the model for opset {newest}"
            )
    return opsets


def check_outputs(program: Program, scope: Scope, asked: Iterable[str] | None) -> list[str]:
    """Returns the names of the tensors to compute, the requested ones or all outputs, each once."""
    graph = program.source.model.graph
    if asked is not None:
        names = [asked] if isinstance(asked, str) else list(asked)
        check_names("outputs", names, [*scope.bound, *(o for n in graph.node for o in n.output if o)], "tensors")
    else:
        names = [*dict.fromkeys(o.name for o in graph.output)]
    if not names or len(set(names)) < len(names):
        raise ModelError(f"a model needs at least one output, and no output twice; got {names} ({program.source.name})")
    return names
