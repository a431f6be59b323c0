"""`pelton.build`: imports a model, runs it through the stages of the compiler and returns an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pelton import progress
from pelton.compiler.compilation import Compilation
from pelton.compiler.compile import BuildResult, compile_graph
from pelton.compiler.refit_build import compile_refittable
from pelton.compiler.stages import read_script, run_stages
from pelton.compiler.targets import check_requirements, describe_target, progress_reporter
from pelton.engine.plan import EnginePlan
from pelton.errors import BuildError, InputError, ModelError
from pelton.importers import Traceable
from pelton.ir import lineage
from pelton.ir.dims import Undecided
from pelton.ir.imported import Imported, Info, OnData
from pelton.logs import Logger
from pelton.options import Options
from pelton.quantize.best import compile_best
from pelton.quantize.int8 import compile_int8
from pelton.runtime import Engine
from pelton.runtime.profiled import engine_of_script
from pelton.tuning import replay
from pelton.variables import warn_of_unknown

from . import provenance, streams
from .assemble import assemble
from .profiles import assemble_profiles

if TYPE_CHECKING:
    from pelton.build_options import BuildOptions
    from typing_extensions import Unpack

log = Logger("pelton.build")

# Options that a program no longer has: those of the import, and of weights in the model's file.
OF_MODELS = (
    *("shapes", "optimum", "values", "weights", "outputs", "detections", "accept_conversion", "profiles", "kv_cache"),
    *("refit", "strip_weights", "cache_capacity"),
)


def build(
    model: Any,
    shapes: Mapping[str, str | Sequence[int]] | None = None,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    options: Options | None = None,
    **overrides: Unpack[BuildOptions],
) -> Engine:
    """The implementation of `pelton.build`, which documents its parameters and errors."""
    if example_inputs is not None or dynamic_shapes is not None:
        model = Traceable(model, example_inputs, dynamic_shapes)
    options = with_recorded_threads(
        (options or Options()).but(**overrides, **({} if shapes is None else {"shapes": shapes}))
    )
    if options.hint == "throughput" and options.threads is None:
        options = options.but(threads=streams.THREADS)
    warn_of_unknown()
    with _progress(options) as options, lineage.following(lineage.Lineage() if options.refittable else None):
        return _build(model, options)


@contextmanager
def _progress(options: Options) -> Iterator[Options]:
    """Yields the options with a progress callback: their own, else one that shows progress to an interactive user."""
    if options.progress is not None or not progress.is_wanted():
        yield options
        return
    stages = progress.course(options.level, options.calibration is not None)
    with progress.show_progress(of=stages) as tell:
        yield options.but(progress=tell)


def with_recorded_threads(options: Options) -> Options:
    """Returns the options with the number of threads of their recorded tactics, unless they set one; a different one
    causes a warning. BuildError for unreadable tactics."""
    if options.load_tactics is None:
        return options
    recorded = replay.read(options.load_tactics, describe_target(options)[0].isa).threads
    if options.threads is None:
        return options.but(threads=recorded)
    if recorded not in (None, options.threads):
        log.warning(
            "the number of threads is %d, but the tactics in %s were recorded for %d, and others may be faster; leave"
            " out threads=, or record the tactics again with save_tactics=",
            options.threads,
            options.load_tactics,
            recorded,
        )
    return options


def _build(model: Any, options: Options) -> Engine:
    if options.profiles:
        return _build_profiles(model, options)
    try:
        imported = _import_model(model, options)
    except OnData as e:
        return build_script(model, options, e)
    return _with_provenance(_build_imported(imported, options).engine, model, imported.info, options)


def build_imported(model: Any, imported: Imported, options: Options) -> Engine:
    """Builds the engine of a program that was imported from a model and changed since. Raises as `pelton.build` does,
    and InputError for options of an import (`OF_MODELS`)."""
    for name in OF_MODELS:
        if getattr(options, name) not in (None, False):
            raise InputError(f"{name} is for models as they are imported, not for a changed program; leave it out")
    check_requirements(options)
    with _progress(options) as options:
        return _with_provenance(_build_imported(imported, options).engine, model, imported.info, options)


def _build_profiles(model: Any, options: Options) -> Engine:
    """Builds an engine for each profile, and assembles them."""
    profiles = options.profiles or {}
    plans, decisions, infos = dict[str, EnginePlan](), list[replay.Decisions | None](), list[Info]()
    recorded_decisions = _read_decisions(options, len(profiles))
    for i, ((name, shapes), recorded) in enumerate(zip(profiles.items(), recorded_decisions)):
        progress_reporter(options)("program", i, len(profiles))
        own = options.but(profiles=None, shapes={**(options.shapes or {}), **shapes})
        log.info("profile %s", name)
        try:
            imported = _import_model(model, own)
            _check_labels([(v.name, str(v.type), v.type.shape) for v in imported.graph.outputs], own)
            result = _compile(imported, own, recorded)
        except OnData as e:
            raise BuildError(
                f"{e}: it becomes a script over several engines, which can have no profiles; leave out profiles="
            ) from None
        except Undecided as e:
            raise BuildError(explain_undecided(imported, e)) from e
        plans[name] = result.engine.plain
        decisions.append(result.decisions)
        infos.append(imported.info)
    script = assemble_profiles(plans, infos[0], options, describe_target(options)[1])
    _write_decisions(options, decisions)
    return _with_provenance(engine_of_script(script), model, infos[0], options)


def _with_provenance(engine: Engine, model: Any, info: Info, options: Options) -> Engine:
    """Adds the provenance record to the engine's metadata, and its streams if the options ask for them."""
    engine.plain.meta["provenance"] = provenance.describe(model, info, options)  # type: ignore[index]
    if options.hint == "throughput":
        engine.plain.meta["streams"] = streams.choose_streams(engine, options)  # type: ignore[index]
    return engine


def build_detailed(model: Any, options: Options) -> BuildResult:
    """Builds like `build` and also returns the tasks of the engine; ModelError for a model that becomes a script."""
    options = with_recorded_threads(options)
    try:
        imported = _import_model(model, options)
    except OnData as e:
        raise ModelError(
            f"{e}: it becomes a script over several engines, which cannot be checked step by step"
        ) from None
    return _build_imported(imported, options)


def build_script(model: Any, options: Options, reason: OnData) -> Engine:
    """Builds a script over several engines, for a model that cannot be one engine for the given reason."""
    if options.calibration is not None:
        raise InputError(
            f"{reason}: it is a script over several engines, for whose inner inputs there is no calibration data; build"
            " it with another precision, or 'best' without calibration"
        )
    if options.refittable:
        raise InputError(
            f"{reason}: it is a script over several engines, which cannot be refitted; leave out refit= and"
            " strip_weights="
        )
    scripted = read_script(model, options, reason)
    _check_labels([(o.name, str(o), o.shape) for o in scripted.outputs], options)
    log.info("%s; it is built as a script over %d engines", reason, len(scripted.programs))
    for text in scripted.info.warnings:
        log.warning("%s", text)
    engines: list[EnginePlan | Undecided] = []
    decisions: list[replay.Decisions | None] = []
    recorded_decisions = _read_decisions(options, len(scripted.programs))
    for i, (program, recorded) in enumerate(zip(scripted.programs, recorded_decisions)):
        progress_reporter(options)("program", i, len(scripted.programs))
        try:
            result = _compile(program, options, recorded)
            engines.append(result.engine.plain)
            decisions.append(result.decisions)
        except Undecided as e:  # these nodes run by reference
            engines.append(e)
            decisions.append(None)
    script = assemble(scripted, engines, options, describe_target(options)[1])
    _write_decisions(options, decisions)
    return _with_provenance(engine_of_script(script), model, scripted.info, options)


def build_program(imported: Imported, options: Options) -> BuildResult:
    """Builds the engine of a single program; Undecided if it depends on a size known only at run time."""
    (recorded,) = _read_decisions(options, 1)
    result = _compile(imported, options, recorded)
    _write_decisions(options, [result.decisions])
    return result


def explain_undecided(imported: Imported, e: Undecided) -> str:
    """Returns the message for a program that depends on a size known only at run time."""
    name = imported.info.label or imported.graph.name
    return f"{name}: {e}; fix these sizes with shapes="


def _import_model(model: Any, options: Options) -> Imported:
    """Checks the build's requirements, then imports; OnData if the model has to become a script."""
    check_requirements(options)
    progress_reporter(options)("import", 0, 1)
    return run_stages(Compilation(options, model), "import").imported


def _build_imported(imported: Imported, options: Options) -> BuildResult:
    """Builds like `build_program`, with a BuildError instead of Undecided."""
    _check_labels([(v.name, str(v.type), v.type.shape) for v in imported.graph.outputs], options)
    try:
        return build_program(imported, options)
    except Undecided as e:
        raise BuildError(explain_undecided(imported, e)) from e


def _compile(imported: Imported, options: Options, recorded: replay.Decisions | None) -> BuildResult:
    """Compiles like `compile_graph`; BuildError if the tactics file records that this program became no engine."""
    if options.precision == "int8":
        return compile_int8(imported, options)
    if options.precision == "best":
        return compile_best(imported, options)
    compiled = compile_refittable if options.refittable else compile_graph
    result = compiled(imported, options, recorded)
    if recorded is None and options.load_tactics is not None:
        raise BuildError(
            f"{options.load_tactics} records no engine for {imported.graph.name}, but this build has one;"
            f" {replay.AGAIN}"
        )
    return result


def _read_decisions(options: Options, count: int) -> Sequence[replay.Decisions | None]:
    """Reads the recorded decisions of each of `count` programs; None for each without load_tactics."""
    if options.load_tactics is None:
        return [None] * count
    return replay.read(options.load_tactics, describe_target(options)[0].isa, count).programs


def _write_decisions(options: Options, decisions: Sequence[replay.Decisions | None]) -> None:
    if options.save_tactics is not None:
        target, _ = describe_target(options)
        replay.write(options.save_tactics, target.isa, replay.Recorded(target.threads, decisions))


def _check_labels(outputs: Sequence[tuple[str, str, Sequence[Any]]], options: Options) -> None:
    """InputError unless there is one label per class: along the last axis of the first output that is not of size 1.

    outputs: the name, type and shape of each."""
    if options.labels is None or not outputs:
        return
    name, described, sizes = outputs[0]
    shape = list(sizes)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    if shape and isinstance(shape[-1], int) and shape[-1] != len(options.labels):
        raise InputError(
            f"labels= has {len(options.labels)} names, but output {name!r} {described} has {shape[-1]} classes"
            " along its last axis; pass one name per class, in order"
        )
