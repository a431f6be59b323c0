"""The flags of trtexec 10 (and those of 8 that scripts still use), each with its effect here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .. import parsers

DOES: Literal["does"] = "does"  # as trtexec does it, or by the text
IGNORED: Literal["ignored"] = "ignored"  # accepted with a warning: it changes no result
REFUSED: Literal["refused"] = "refused"  # an error: results would be others
PERCENTILES = (90.0, 95.0, 99.0)
ENDLESS = 1e9  # seconds, 30 years: the meaning of --duration=-1


@dataclass(frozen=True)
class Flag:
    """A flag. value: the text after =, "" for a switch. here: its effect, or the reason why it has none. parse: of the
    value. default: trtexec's. fine: harmless values of an ignored or rejected flag, which already hold. until: the last
    major version that had it, if that is not 10."""

    name: str
    value: str
    becomes: Literal["does", "ignored", "refused"]
    here: str
    parse: Callable[[str], Any] = str
    default: Any = None
    fine: tuple[str, ...] = ()
    until: int = 0

    @property
    def dest(self) -> str:
        return self.name.lstrip("-")

    @property
    def nargs(self) -> int | str | None:
        """Number of its values, in argparse's form."""
        if not self.value:
            return 0
        return "?" if self.becomes != DOES or self.value.startswith("[") else None

    @property
    def form(self) -> str:
        """Its form in help texts: --fp16, --onnx=FILE, --threads[=N]."""
        if self.value.startswith("["):
            return f"{self.name}[={self.value[1:]}"
        return self.name + (f"={self.value}" if self.value else "")


def whole(minimum: int, maximum: int = 1 << 30) -> Callable[[str], int]:
    return parsers.int_in_range(minimum, maximum)


def positive(text: str) -> float:
    """Parses a number from 0 on."""
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError
    return number


def duration(text: str) -> float:
    """Parses seconds; -1 means endless."""
    return ENDLESS if text == "-1" else positive(text)


def percentiles(text: str) -> tuple[float, ...]:
    numbers = tuple(map(float, text.split(",")))
    if not all(0 <= p <= 100 for p in numbers):
        raise ValueError
    return numbers


def _does(name: str, value: str, here: str, parse: Callable[[str], Any] = str, default: Any = None, until: int = 0):
    return Flag(name, value, DOES, here, parse, default, until=until)


def _ignored(name: str, value: str, why: str, *fine: str, until: int = 0) -> Flag:
    return Flag(name, value, IGNORED, why, fine=fine, until=until)


def _refused(name: str, value: str, why: str, *fine: str, until: int = 0) -> Flag:
    return Flag(name, value, REFUSED, why, fine=fine, until=until)


SPEC = "SPEC"
_PLUGINS = "TensorRT's plugin libraries cannot be loaded; Pelton's plugins are Python packages (docs/plugins.md)"
_CAFFE = "for Caffe models, set --onnx to the .prototxt; the weights next to it are found"
_DLA = "there are no DLA cores"
_SAFE = "there is no safety runtime"
_STREAMING = "weights are not streamed, but entirely in memory"
_REFIT = "`pelton refit` replaces the weights of engines built with --refit"
_NO_EFFECT_ON_TIME = "the number of timings depends on the differences between kernels"
_TRANSFERS = "CPUs have no transfers; on GPUs they are part of GPU Compute Time"
_DEBUG = "inner tensors become outputs by `pelton build --outputs NAME`; see also `pelton compare`"

MODEL = (
    _does("--onnx", "FILE", "the model: ONNX, or any other format of `pelton build`"),
    _does("--saveEngine", "FILE", "writes the engine, in Pelton's format"),
    _does("--loadEngine", "FILE", "an engine of Pelton to run, instead of building a model"),
)
BUILD = (
    _does("--minShapes", SPEC, "smallest sizes of dynamic inputs, `x:1x3x224x224,y:1x8`"),
    _does("--optShapes", SPEC, "tuned sizes"),
    _does("--maxShapes", SPEC, "largest sizes; missing ones equal the others"),
    _does("--fp16", "", "precision fp16; several precisions: best"),
    _does("--bf16", "", "precision bf16; several precisions: best"),
    _does("--int8", "", "precision int8, needs --calib (trtexec invents scales); not for quantized models"),
    _does("--best", "", "precision best: the fastest, int8 only with --calib"),
    _does("--noTF32", "", "for GPUs: fp32 instead of tf32; CPUs have no TF32"),
    _does("--stronglyTyped", "", "ignores precision flags: types are those of the model"),
    _does("--calib", "FILE", "calibration table, of TensorRT or Pelton, or samples (.npz, or pictures with --image)"),
    _does(
        "--precisionConstraints",
        "none|prefer|obey",
        "effect of impossible --layerPrecisions: none, a warning, an error",
    ),
    _does("--layerPrecisions", SPEC, "layers to keep in fp32 (`head*:fp32`) or in the build's precision"),
    _does("--inputIOFormats", SPEC, "checked: types of inputs are the model's, the layout is chw"),
    _does("--outputIOFormats", SPEC, "checked likewise"),
    _does(
        "--builderOptimizationLevel", "N", "tuning level, 0 to 5; -1: the default of `pelton build`", whole(-1, 5), -1
    ),
    _does("--timingCacheFile", "FILE", "kernel times, in Pelton's own format"),
    _does("--noBuilderCache", "", "neither reads nor stores kernel times"),
    _does("--refit", "", "an engine for `pelton refit`"),
    _does("--stripWeights", "", "an engine without weights, for `pelton refit`; needs --skipInference"),
    _does("--weightless", "", "the same as --stripWeights"),
    _refused("--stripAllWeights", "", "weights that determine the program must stay; see --stripWeights"),
    _does("--skipInference", "", "builds or loads, and stops"),
    _does("--buildOnly", "", "the same as --skipInference", until=8),
)
INFERENCE = (
    _does("--shapes", SPEC, "sizes of runs; without --optShapes, also those of the build"),
    _does("--loadInputs", SPEC, "`x:file,…`: raw bytes or an .npy file, whose sizes count without --shapes"),
    _does("--iterations", "N", "minimum number of runs", whole(0), 10),
    _does("--warmUp", "MS", "milliseconds of warm-up", positive, 200.0),
    _does("--duration", "S", "minimum seconds of runs; -1: until Ctrl-C", duration, 3.0),
    _does("--idleTime", "MS", "milliseconds between runs", positive, 0.0),
    _does("--infStreams", "N", "number of parallel contexts (`pelton.AsyncQueue`)", whole(1, 256), 1),
    _does("--streams", "N", "the same as --infStreams", whole(1, 256)),
    _does("--separateProfileRun", "", "always on: profiling never disturbs timed runs"),
    _does("--timeDeserialize", "", "times loading the engine, and stops"),
)
REPORTING = (
    _does("--avgRuns", "N", "runs per average in the trace", whole(1), 10),
    _does("--percentile", "P1,P2,…", "percentiles of the summary, 0 to 100", percentiles, PERCENTILES),
    _does("--dumpOutput", "", "prints the outputs of the last run"),
    _does("--dumpRawBindingsToFile", "", "writes inputs and outputs of the last run to .raw files in this folder"),
    _does("--dumpProfile", "", "prints the time of each step"),
    _does("--dumpLayerInfo", "", "prints the steps of the engine"),
    _does("--dumpOptimizationProfile", "", "prints the smallest, best and largest sizes of inputs"),
    _does(
        "--profilingVerbosity", "MODE", "layer_names_only, detailed or none: information about steps, for any engine"
    ),
    _does("--exportTimes", "FILE", "JSON: begin and end of each run"),
    _does("--exportOutput", "FILE", "JSON: outputs of the last run"),
    _does("--exportProfile", "FILE", "JSON: time of each step"),
    _does("--exportLayerInfo", "FILE", "JSON: the steps of the engine"),
)
SYSTEM = (
    _does("--device", "N", "number of the GPU; ignored on CPUs", whole(0)),
    _does("--threads", "[N]", "CPU threads of a run; each context always has its own thread", whole(1, 256)),
)
OTHERS = (
    _ignored("--memPoolSize", SPEC, "there is no memory limit for kernels; `pelton inspect` shows the memory of a run"),
    _ignored(
        "--workspace", "N", "there is no memory limit for kernels; `pelton inspect` shows the memory of a run", until=8
    ),
    _ignored("--avgTiming", "N", _NO_EFFECT_ON_TIME),
    _ignored("--minTiming", "N", _NO_EFFECT_ON_TIME, until=8),
    _ignored("--maxTactics", "N", "--builderOptimizationLevel sets the number of timed tactics", "-1"),
    _ignored("--heuristic", "", "--builderOptimizationLevel=0 times nothing", until=8),
    _ignored("--noCompilationCache", "", "compiled kernels are cached by a hash of their source"),
    _ignored("--tacticSources", SPEC, "kernels and libraries are chosen by time"),
    _ignored("--preview", SPEC, "there are no such features"),
    _ignored("--maxAuxStreams", "N", "independent steps always run in parallel"),
    _ignored("--tilingOptimizationLevel", "N", "tiles are part of timed tactics"),
    _ignored("--l2LimitForTiling", "N", "tiles are part of timed tactics"),
    _ignored("--decomposableAttentions", SPEC, "kernels for attention are chosen by time"),
    _ignored("--pluginInstanceNorm", "", "there is one implementation of InstanceNormalization"),
    _ignored("--pi", "", "there is one implementation of InstanceNormalization"),
    _ignored("--enablePluginOverride", "", "a plugin always overrides its operator"),
    _ignored("--tempdir", "DIR", "temporary files are in TMPDIR"),
    _ignored("--monitorMemory", "", "`pelton inspect` shows the memory of a run"),
    _ignored("--directIO", "", "inputs and outputs are dense arrays"),
    _ignored("--explicitBatch", "", "batches are always explicit", until=8),
    _ignored("--nvtxMode", "MODE", "there are no NVTX ranges; see --profilingVerbosity", until=8),
    _ignored("--useRuntime", "full|lean|dispatch", "there is one runtime, a lean one", "full"),
    _ignored("--leanDLLPath", "FILE", "engines contain no runtime"),
    _ignored("--excludeLeanRuntime", "", "engines contain no runtime"),
    _ignored("--asyncFileReader", "", "engine files are mapped, not read"),
    _ignored("--dumpRefit", "", _REFIT),
    _ignored("--allowGPUFallback", "", _DLA),
    _ignored("--adjustForDLA", "", _DLA),
    _ignored("--sleepTime", "MS", "runs begin at once; see --idleTime", "0"),
    _ignored("--exposeDMA", "", _TRANSFERS),
    _ignored("--noDataTransfers", "", _TRANSFERS),
    _ignored("--useManagedMemory", "", _TRANSFERS),
    _ignored("--useSpinWait", "", "threads spin for some microseconds before they sleep"),
    _ignored("--useCudaGraph", "", "runs on GPUs are always CUDA graphs; CPUs have none"),
    _ignored("--persistentCacheRatio", "R", "caches are not partitioned", "0"),
    _ignored("--allocationStrategy", "STRATEGY", "memory depends on the shapes of a run", "runtime"),
    _ignored("--minShapesCalib", SPEC, "calibration data has its own sizes"),
    _ignored("--optShapesCalib", SPEC, "calibration data has its own sizes"),
    _ignored("--maxShapesCalib", SPEC, "calibration data has its own sizes"),
    _ignored("--ignoreParsedPluginLibs", "", "models contain no names of plugin libraries"),
    _refused("--getPlanVersionOnly", "", "see `pelton inspect`"),
    _refused("--fp8", "", "builds do not choose this type; see --best"),
    _refused("--int4", "", "builds do not choose this type; see --best"),
    _refused("--layerOutputTypes", SPEC, "the compiler chooses types between layers; see --layerPrecisions"),
    _refused("--layerDeviceTypes", SPEC, "an engine runs on one device"),
    _refused(
        "--sparsity", "MODE", "weights are never changed; without `force`, results are equal", "disable", "enable"
    ),
    _refused("--distributiveIndependence", "", "the fastest kernel may depend on the batch"),
    _refused("--errorOnTimingCacheMiss", "", "see `pelton build --load-tactics`"),
    _refused("--batch", "N", "batches are explicit: set --shapes", until=8),
    _refused("--maxBatch", "N", "batches are explicit: set --maxShapes", until=8),
    _refused("--output", "NAME", "see `pelton build --outputs`", until=8),
    _refused("--deploy", "FILE", _CAFFE, until=8),
    _refused("--model", "FILE", _CAFFE, until=8),
    _refused("--uff", "FILE", "UFF is not supported; convert the model to ONNX", until=8),
    _refused("--profile", "N", "an engine has one optimization profile, number 0", "0"),
    _refused("--useProfile", "N", "an engine has one optimization profile, number 0", "0"),
    _refused("--calibProfile", "N", "an engine has one optimization profile, number 0", "0"),
    _refused("--refitFromOnnx", "FILE", _REFIT),
    _refused("--timeRefit", "", _REFIT),
    _refused("--versionCompatible", "", "an engine needs the version that built it; keep the model"),
    _refused("--vc", "", "an engine needs the version that built it; keep the model"),
    _refused("--hardwareCompatibilityLevel", "MODE", "list the architectures: --target=cuda:sm_80,sm_90", "none"),
    _refused("--runtimePlatform", "PLATFORM", "engines run on the operating system of the build", "SameAsBuild"),
    _refused("--tempfileControls", SPEC, "not possible: compilers write temporary files"),
    _refused("--allowWeightStreaming", "", _STREAMING),
    _refused("--weightStreamingBudget", "B", _STREAMING, "-2"),
    _refused("--markDebug", SPEC, _DEBUG),
    _refused("--markUnfusedTensorsAsDebugTensors", "", _DEBUG),
    _refused("--saveDebugTensors", SPEC, _DEBUG),
    _refused("--saveAllDebugTensors", SPEC, _DEBUG),
    _refused("--cpuOnly", "", "`--target=cuda:sm_90` builds without a GPU"),
    _refused(
        "--remoteAutoTuningConfig", "URL", "kernels are timed on this machine; `pelton tune` times them on another one"
    ),
    *(_refused(name, "", _SAFE) for name in ("--safe", "--consistency", "--restricted", "--dumpKernelText")),
    *(_refused(name, "", _DLA) for name in ("--buildDLAStandalone", "--uint8AsymmetricQuantizationDLA")),
    *(_refused(name, value, _DLA) for name, value in (("--reportCapabilityDLA", ""), ("--useDLACore", "N"))),
    *(_refused(name, "FILE", _PLUGINS) for name in ("--plugins", "--staticPlugins", "--dynamicPlugins")),
    *(_refused(name, "FILE", _PLUGINS) for name in ("--setPluginsToSerialize", "--safetyPlugins")),
)
GROUPS = {"model": MODEL, "build": BUILD, "inference": INFERENCE, "reporting": REPORTING, "system": SYSTEM}
FLAGS: dict[str, Flag] = {flag.dest: flag for group in (*GROUPS.values(), OTHERS) for flag in group}


class GivenFlag(argparse.Action):
    """Keeps the flags in the order in which they were given, each once."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        flags = getattr(namespace, "given", None) or []
        if any(flag is FLAGS[self.dest] for flag, _ in flags):
            parser.error(f"{option_string} is set twice")
        namespace.given = [*flags, (FLAGS[self.dest], values if isinstance(values, str) else "")]
        setattr(namespace, self.dest, self._value(parser, values))

    def _value(self, parser: argparse.ArgumentParser, text: Any) -> Any:
        flag = FLAGS[self.dest]
        if not isinstance(text, str):
            return True
        if not text:
            parser.error(f"{flag.name} needs a value: {flag.name}={flag.value}")
        try:
            return flag.parse(text)
        except (ValueError, argparse.ArgumentTypeError) as e:
            why = e if isinstance(e, argparse.ArgumentTypeError) else f"expected {flag.value} ({flag.here})"
            parser.error(f"{flag.name}={text}: {why}")


def add(command: argparse.ArgumentParser) -> None:
    """Adds all flags. The help lists those with an effect."""
    for title, flags in (*GROUPS.items(), ("others", OTHERS)):
        group = command.add_argument_group(title)
        for flag in flags:
            group.add_argument(
                flag.name,
                dest=flag.dest,
                action=GivenFlag,
                nargs=flag.nargs,
                metavar=flag.value.strip("[]") or None,
                default=flag.default,
                help=flag.here.replace("%", "%%") if flag.becomes == DOES and not flag.until else argparse.SUPPRESS,
            )


def table() -> str:
    """Formats all flags with their effects, as the table of docs/trtexec.md."""
    bar = "\\|"  # within a cell
    lines = ["| flag | status | effect, or reason |", "| --- | --- | --- |"]
    for flag in FLAGS.values():
        notes = [flag.here]
        if flag.default is not None:
            notes.append(f"default {written(flag.default)}")
        if flag.fine:
            notes.append(f"no warning for {' and '.join(f'`{f}`' for f in flag.fine)}")
        if flag.until:
            notes.append(f"of trtexec {flag.until}")
        cells = (f"`{flag.form}`", flag.becomes, "; ".join(notes))
        lines.append(f"| {' | '.join(cell.replace('|', bar) for cell in cells)} |")
    return "\n".join(lines)


def written(value: Any) -> str:
    return ",".join(f"{v:g}" for v in value) if isinstance(value, Sequence) else f"{value:g}"
