"""Compiled graphs: engines per set of parameters, run on torch's tensors without copies."""

from __future__ import annotations

import operator
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pelton.logs import Logger
from pelton import build
from pelton.compat.session.engine_cache import EngineCache, key_of
from pelton.errors import InputError
from pelton.options import Options
from pelton.runtime import Context, Engine
from pelton.system.cache import open_cache

from .agreement import check_agreement
from .frozen import Argument, Fixed, Frozen, Result, Size, Unsupported, digest, hints, module_of

log = Logger("pelton.torch")

MAX_REBUILDS = 4  # rebuilds of an engine whose parameters change; after these, the graph runs eagerly
MAX_MODULES = 256  # sets of parameters of a graph, each with its own engine
MAX_SHAPES = 256  # sets of shapes with known output shapes
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_version = operator.attrgetter("_version")
_warned: set[str] = set()


class Bound:
    """An engine for certain parameters, as they were at its build. Unsupported if its ports are not the graph's."""

    def __init__(self, engine: Engine, frozen: Frozen, constants: Sequence[torch.Tensor], versions: list[int]):
        self.engine, self.constants, self.versions = engine, tuple(constants), versions
        self._inputs, self._names = frozen.inputs, [p.name for p in engine.inputs]
        dtypes = {r.place: r.dtype for r in frozen.outputs if isinstance(r, Result)}
        self._dtypes = [dtypes[place] for place in range(len(dtypes))]
        self._is_script = engine.parts != (engine,)
        self._one_shape = not frozen.is_dynamic
        self._outputs: dict[tuple, list[tuple[int, ...]]] = {}  # shapes of inputs → those of outputs
        self._contexts: deque[Context] = deque()  # those free of runs
        wanted = [frozen.fakes[i].dtype for i in frozen.inputs], self._dtypes
        actual = tuple([DTYPES.get(p.dtype) for p in ports] for ports in (engine.inputs, engine.outputs))
        if wanted != actual:
            raise Unsupported(f"its engine has other inputs and outputs: {actual} instead of {wanted}")

    def run(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Returns the results for the arguments of a graph. Raises InputError for shapes that the engine rejects."""
        inputs = [args[i] if args[i].is_contiguous() else args[i].contiguous() for i in self._inputs]
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.engine.context()
        try:
            if self._is_script:
                return [torch.from_numpy(array) for array in context.run(self._named(inputs)).values()]
            shapes = () if self._one_shape else tuple([tuple(t.shape) for t in inputs])
            outputs = self._outputs.get(shapes)
            if outputs is None:
                outputs = self._outputs_for(context, inputs, shapes)
            results = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in zip(outputs, self._dtypes)]
            if not context.run_at(shapes, [t.data_ptr() for t in inputs] + [t.data_ptr() for t in results]):
                context.run(self._named(inputs), {p.name: t for p, t in zip(self.engine.outputs, results)})
            return results
        finally:
            self._contexts.append(context)

    def _named(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, [t.detach() for t in inputs]))

    def _outputs_for(self, context: Context, inputs: Sequence[torch.Tensor], shapes: tuple) -> list[tuple[int, ...]]:
        sizes = list(context.output_shapes({name: tuple(t.shape) for name, t in zip(self._names, inputs)}).values())
        if len(self._outputs) >= MAX_SHAPES:
            self._outputs.clear()
        self._outputs[shapes] = sizes
        return sizes


class CompiledGraph:
    """A graph of AOT autograd, called with its arguments in a list. It builds an engine for each new set of parameters.
    Thread-safe. Raises Unsupported and the errors of `pelton.build` if the first one cannot be built.

    example: arguments of the graph, with the parameters of the first engine.
    """

    _boxed_call = True  # it is called with its arguments in a list

    def __init__(self, graph_module: torch.fx.GraphModule, frozen: Frozen, options: Options, example: Sequence[Any]):
        self._graph, self._frozen, self._options = graph_module, frozen, options
        # by the ids of the parameters, which the engines keep; None: runs eagerly
        self._bound: dict[tuple[int, ...], Bound | None] = {}
        self._rebuilds: Counter[tuple[int, ...]] = Counter()
        self._is_plain = all(
            isinstance(o, Result) and o.place == i and o.order is None for i, o in enumerate(frozen.outputs)
        )
        self._constants_of = _getter(frozen.constants)
        self._lock = threading.Lock()
        self._latest: Bound | None = self._build(
            [value.node.hint if isinstance(value, torch.SymInt) else value for value in example]
        )

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        constants = self._constants_of(args)
        bound = self._latest
        if bound is None or not _same(bound.constants, constants) or list(map(_version, constants)) != bound.versions:
            bound = self._latest = self._bound_to(constants, args)
        if bound is not None:
            try:
                results = bound.run(args)
                return results if self._is_plain else self._outputs(args, results)
            except InputError as e:
                self._warn(f"for sizes that its engine does not take: {e}")
        return self._graph.forward(*args)

    def _bound_to(self, constants: Sequence[torch.Tensor], args: Sequence[Any]) -> Bound | None:
        """Returns the engine for these parameters, built if missing or outdated; None if they run eagerly."""
        key = tuple(map(id, constants))
        with self._lock:
            bound = self._bound.get(key)
            if key in self._bound and (bound is None or list(map(_version, constants)) == bound.versions):
                return bound
            self._rebuilds[key] += bound is not None
            self._bound[key] = None
            if self._rebuilds[key] > MAX_REBUILDS:
                self._warn("as its parameters change again and again")
            elif len(self._bound) > MAX_MODULES:
                self._warn("with the parameters of further modules")
            else:
                try:
                    return self._build(args)
                except RuntimeError as e:
                    self._warn(f"with other parameters: {e}")
            return None

    def _build(self, args: Sequence[Any]) -> Bound:
        """Builds the engine for the parameters among these arguments, or loads it from the cache. A new one is compared
        with torch on them: exporters make mistakes too."""
        frozen, constants = self._frozen, self._constants_of(args)
        versions = list(map(_version, constants))
        cache = EngineCache(open_cache(self._options))
        examples = {frozen.names[i]: tuple(hints(frozen.fakes[i].shape)) for i in frozen.inputs}
        key = key_of([digest(self._graph, frozen, args)], {}, self._options, examples)
        with cache.lock(key), torch.no_grad():
            engine = cache.engine(key)
            bound = None if engine is None else Bound(engine, frozen, constants, versions)
            if bound is None:
                engine = build(_exported(module_of(self._graph, frozen, args), frozen, args), options=self._options)
                bound = Bound(engine.start(), frozen, constants, versions)
                if self._options.precision != "int8":
                    check_agreement(self._outputs(args, bound.run(args)), self._graph.forward(*args))
                cache.put(key, engine)
        log.info("a graph of %d nodes is an engine of %d steps", len(self._graph.graph.nodes), len(bound.engine.steps))
        self._bound[tuple(map(id, constants))] = bound
        return bound

    def _outputs(self, args: Sequence[Any], results: Sequence[torch.Tensor]) -> list[Any]:
        """Computes all outputs of the graph."""
        outputs: list[Any] = []
        for output in self._frozen.outputs:
            match output:
                case Result(place, _, order) if order is not None:
                    outputs.append(results[place].permute([order.index(axis) for axis in range(len(order))]))
                case Result(place):
                    outputs.append(results[place])
                case Argument(place):
                    outputs.append(args[place])
                case Fixed(value):
                    outputs.append(value)
                case Size(expression):
                    sizes = {name: args[i].shape[axis] for name, (i, axis) in self._frozen.symbols.items()}
                    outputs.append(int(expression.subs({s: sizes[str(s)] for s in expression.free_symbols})))
        return outputs

    def _warn(self, why: str) -> None:
        text = f"a graph of {len(self._graph.graph.nodes)} nodes runs eagerly {why}"
        if text not in _warned:
            _warned.add(text)
            log.warning("%s", text)


def _getter(places: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a function that selects the elements at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda args: tuple(args[i] for i in places)


def _same(known: tuple[torch.Tensor, ...], given: tuple[torch.Tensor, ...]) -> bool:
    """True if these are the same tensors. Comparing tuples compares identities first, which is fast for hundreds; other
    tensors are equal only if each has one element of the same value, which is good enough."""
    try:
        return known == given
    except RuntimeError:  # tensors of several elements have no truth value
        return False


def _exported(module: torch.fx.GraphModule, frozen: Frozen, args: Sequence[Any]) -> Any:
    """Exports the program of a graph. Its examples, which `build` compares with torch, are these arguments; zeros for
    other sizes than at capture."""

    def example(given: torch.Tensor, fake: Any) -> torch.Tensor:
        shape = hints(fake.shape)
        return given.detach().contiguous() if list(given.shape) == shape else torch.zeros(shape, dtype=fake.dtype)

    fakes = [frozen.fakes[i] for i in frozen.inputs]
    examples = tuple(example(args[i], fake) for i, fake in zip(frozen.inputs, fakes))
    dynamic = tuple(
        {axis: torch.export.Dim.AUTO for axis, size in enumerate(fake.shape) if isinstance(size, torch.SymInt)}
        for fake in fakes
    )
    return torch.export.export(module, examples, dynamic_shapes=dynamic if any(dynamic) else None)
