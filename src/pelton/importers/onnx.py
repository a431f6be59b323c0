"""ONNX models of every opset: `load` checks the interface, has the graph read and hands back the program."""
from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

import onnx
import onnx.version_converter

from pelton.errors import InputError, ModelError
from pelton.ir.graph import Graph, Node, Value, live
from pelton.ir.types import TensorType
from pelton.ops import get
from pelton.ops.foreign import DTYPES

from . import onnx_ops_attention, onnx_ops_control, onnx_ops_conv, onnx_ops_image, onnx_ops_index, onnx_ops_linear  # noqa: F401  (readers)
from . import onnx_ops_math, onnx_ops_norm, onnx_ops_quant, onnx_ops_reduce, onnx_ops_rnn, onnx_ops_shape  # noqa: F401  (readers)
from .imported import Imported, Info, Shape, parse_shape
from .onnx_file import Source, read
from .onnx_program import BROKEN, Program, Scope, domain_of
from .onnx_reading import Items

OLDEST = 6                      # what is older is converted
SHOWN = 8                       # problems listed in one message


def load(source: str | os.PathLike | bytes | onnx.ModelProto, shapes: Mapping[str, Shape] | None = None,
         outputs: Iterable[str] | None = None) -> Imported:
    """A model as a program. `shapes` maps names of inputs to sizes (`"1x3x224x224"`, `"1..8..32x3"`, or integers); sizes that nobody gives become 1,
    with a warning. `outputs` may name inner tensors; only what they need is read. ModelError lists what is wrong with the model, InputError with the arguments.
    """
    found = _converted(read(source))
    program, graph = Program(found), found.model.graph
    if found.opset is not None:
        program.warn(f"{found.name} has opset {found.opset}, which the onnx package converted to {OLDEST}")
    scope = Scope(_opsets(program))
    program.constants_of(graph, scope)
    inputs, defaulted = _inputs(program, scope, {name: parse_shape(name, s) for name, s in (shapes or {}).items()})
    scope.declared = program.declared(graph)
    names = _outputs(program, scope, outputs)
    program.read(graph.node, scope, names)
    results = {}
    for name in names:
        thing = scope.find(name) if scope.sees(name) else None
        if isinstance(thing, Value):
            results[name] = thing
        elif thing is not BROKEN:
            what = "is a sequence; only tensors can be outputs" if isinstance(thing, Items) else "is made by no node"
            program.problems.append(f"output {name!r} {what} ({found.name})")
    if program.problems:
        raise ModelError(_listed(program.problems, found.name))
    info = Info(str(found.path or ""), f"{found.model.producer_name} {found.model.producer_version}".strip(), found.model.ir_version, dict(scope.opsets),
                tuple(defaulted), tuple(program.foreigners), tuple(program.warnings))
    return Imported(_program(program, inputs, results), info)


def _listed(problems: list[str], name: str) -> str:
    if len(problems) == 1:
        return problems[0]
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "\n  - ".join([f"{len(problems)} problems in {name}:", *problems[:SHOWN], *more])


def _converted(found: Source) -> Source:
    """The model, in the oldest opset that readers know if it is older."""
    version = min((o.version for o in found.model.opset_import if not domain_of(o.domain)), default=OLDEST)
    if version >= OLDEST:
        return found
    try:
        model = onnx.version_converter.convert_version(found.model, OLDEST)
    except (RuntimeError, ValueError, TypeError, onnx.version_converter.ConvertError) as e:
        raise ModelError(f"opsets {OLDEST} and up are supported, {found.name} has {version}, and the onnx package cannot convert it: {str(e).strip()}; "
                         "export it again") from None
    return replace(found, model=model, opset=version)


def _opsets(program: Program) -> dict[str, int]:
    opsets = {domain_of(o.domain): o.version for o in program.source.model.opset_import}
    version, newest = opsets.get("", OLDEST), onnx.defs.onnx_opset_version()
    if version > newest:
        program.warn(f"{program.source.name} has opset {version}, the installed onnx package knows {newest} and older: "
                     f"its operators are read as of {newest}; a newer onnx may do better")
    return opsets


# --- the interface

def _inputs(program: Program, scope: Scope, shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[Value], list[str]]:
    """Binds the inputs; gives them, and which sizes were made 1 because nobody gave any."""
    declared = [i for i in program.source.model.graph.input if i.name not in scope.bound]     # before IR 4 initializers are listed, too
    _check_names("shapes", shapes, [i.name for i in declared], "inputs")
    if len({i.name for i in declared}) < len(declared):
        raise ModelError(f"every input needs a name of its own, got {[i.name for i in declared]} ({program.source.name})")
    sizes = _named_sizes(declared, shapes)
    inputs: list[Value] = []
    defaulted: list[str] = []
    for i in declared:
        try:
            inputs.append(Value(_input_type(program, i, shapes.get(i.name), sizes, defaulted), i.name))
            program.bind(scope, i.name, inputs[-1])
        except ModelError as e:
            program.problems.append(str(e))
            program.bind(scope, i.name, BROKEN)
    if defaulted:
        program.warn(f"sizes that nobody gave were taken as 1: {', '.join(defaulted)}; give them with shapes= ({program.source.name})")
    return inputs, defaulted


def _check_names(what: str, given: Iterable[str], known: Iterable[str], kind: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3) or list(known)[:5]
            raise InputError(f"{what} names {name!r}, but the model has no such name among its {kind}; it has {', '.join(map(repr, near))}")


def _named_sizes(declared: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """dimension name → size, as far as the given shapes tell; InputError where they contradict each other or the ranks of the inputs."""
    sizes: dict[str, int] = {}
    for i in declared:
        tensor = i.type.tensor_type
        if i.name not in shapes or not tensor.HasField("shape"):
            continue
        given = shapes[i.name]
        if len(given) != len(tensor.shape.dim):
            raise InputError(f"input {i.name!r} has {len(tensor.shape.dim)} axes ({_spelled(tensor.shape)}), the shape given has {len(given)}: {list(given)}")
        for d, size in zip(tensor.shape.dim, given):
            if d.dim_param and sizes.setdefault(d.dim_param, size) != size:
                raise InputError(f"the shapes given say both {sizes[d.dim_param]} and {size} for the dimension {d.dim_param!r}")
    return sizes


def _spelled(shape: onnx.TensorShapeProto) -> str:
    return "x".join(d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in shape.dim) or "a scalar"


def _input_type(program: Program, i: onnx.ValueInfoProto, given: tuple[int, ...] | None, sizes: Mapping[str, int], defaulted: list[str]) -> TensorType:
    where = f"input {i.name!r}, {program.source.name}"
    declared, kind = i.type, i.type.WhichOneof("value") or "tensor of unknown element type"
    if kind == "optional_type" and declared.optional_type.elem_type.WhichOneof("value") == "tensor_type":
        declared, kind = declared.optional_type.elem_type, "tensor_type"
        program.warn(f"the model takes input {i.name!r} or does without, the engine always takes it ({program.source.name})")
    if kind != "tensor_type":
        raise ModelError(f"inputs have to be tensors, this one is declared as {kind.removesuffix('_type').replace('_', ' ')} ({where})")
    tensor = declared.tensor_type
    if tensor.elem_type not in DTYPES:
        raise ModelError(f"element type number {tensor.elem_type} of the ONNX format is not supported ({where})")
    if not tensor.HasField("shape") and given is None:
        raise ModelError(f"the model does not say how many axes this input has; give its sizes with shapes={{{i.name!r}: ...}} ({where})")
    shape = list(given or ())
    if given is None:
        for axis, d in enumerate(tensor.shape.dim):
            size = d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else sizes.get(d.dim_param)
            if size is None:
                defaulted.append(f"{i.name}[{axis}]" + (f" ({d.dim_param})" if d.dim_param else ""))
            shape.append(1 if size is None else size)
    for axis, d in enumerate(tensor.shape.dim):
        if d.dim_param:
            program.sizes.setdefault(d.dim_param, shape[axis])
        if d.HasField("dim_value") and 0 <= d.dim_value != shape[axis]:
            program.resized = True
            program.warn(f"the model says {d.dim_value} for axis {axis} of input {i.name!r}; {shape[axis]} is taken, as asked")
    return TensorType(DTYPES[tensor.elem_type], tuple(shape))


def _outputs(program: Program, scope: Scope, asked: Iterable[str] | None) -> list[str]:
    graph = program.source.model.graph
    if asked is not None:
        names = [asked] if isinstance(asked, str) else list(asked)
        _check_names("outputs", names, {*scope.bound, *(o for n in graph.node for o in n.output if o)}, "tensors")
    else:
        names = [o.name for o in graph.output]
    if not names or len(set(names)) < len(names):
        raise ModelError(f"a model needs outputs, each once; got {names} ({program.source.name})")
    return names


# --- the program

def _program(program: Program, inputs: list[Value], results: Mapping[str, Value]) -> Graph:
    """The graph with the model's names: those of inputs and outputs exactly, all others made unique."""
    to: dict[Value, Value] = {v: v for v in inputs}
    constants, copies, outputs = dict(program.constants), [], []
    for name, value in results.items():
        renamed = Value(value.type, name)
        if value in constants:
            constants[renamed] = constants[value]
            to[renamed] = renamed
        elif value not in to:
            to[value] = renamed
        elif to[value].name != name:                        # an input handed through, or one value under two names: a copy of its own
            copies.append(Node(get("copy"), (value,), {}, (renamed,), name))
            to[renamed] = renamed
        outputs.append(renamed if renamed in to else value)
    graph = live(Graph(tuple(inputs), constants, (*program.nodes, *copies), tuple(outputs)))
    taken = {v.name: 1 for v in to.values()}

    def rename(value: Value) -> Value:
        if value not in to:
            hint = name = program.names.get(value, value.name)
            while name in taken:
                taken[hint] = taken.get(hint, 1) + 1
                name = f"{hint}_{taken[hint]}"
            taken[name] = 1
            to[value] = Value(value.type, name)
        return to[value]

    kept = {rename(v): a for v, a in graph.constants.items()}
    nodes = tuple(Node(n.op, tuple(map(rename, n.inputs)), n.attrs, tuple(map(rename, n.outputs)), n.name) for n in graph.nodes)
    return Graph(graph.inputs, kept, nodes, tuple(map(rename, graph.outputs)), program.source.model.graph.name or "main")
