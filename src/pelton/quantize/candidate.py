"""Candidates of the INT8 search, and their compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pelton.compiler.compile import BuildResult, compile_graph
from pelton.compiler.targets import target_kind
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported
from pelton.options import Options
from pelton.passes.precision.calibrated import quantize_layers

from .accuracy_bound import Accuracy, AccuracyBound
from .layer_precision import LayerPrecision
from .refinement import Refined


@dataclass(frozen=True)
class Int8Candidate:
    """A form of the program with some of its layers in INT8.

    layers: a decision for each layer of the program, in order. accuracy: that of its engine, or of a quick build of it;
    None if not measured.
    """

    program: Refined
    layers: tuple[LayerPrecision, ...]
    accuracy: Accuracy | None = None

    @property
    def quantized(self) -> list[int]:
        """The numbers of the layers in INT8."""
        return [i for i, layer in enumerate(self.layers) if layer.precision == "int8"]

    @property
    def noise(self) -> float:
        """The measured noise power of its outputs by their signal power."""
        assert self.accuracy is not None
        return self.accuracy.noise

    def reverted(self, reasons: Mapping[int, str]) -> Int8Candidate:
        """Returns the candidate without these layers in INT8: layer number → reason. Its accuracy is not measured."""
        layers = (layer.reverted(reasons[i]) if i in reasons else layer for i, layer in enumerate(self.layers))
        return replace(self, layers=tuple(layers), accuracy=None)

    def is_within(self, bound: AccuracyBound) -> bool:
        """True if no layer is in INT8, or the measured accuracy is within the bound."""
        return not self.quantized or (self.accuracy is not None and bound.holds(self.accuracy))


@dataclass(frozen=True)
class Int8Compiler:
    """Compiles candidates of a program.

    options: the caller's. graph: the optimized f32 program. plain: options of engines without INT8. quick: options of
    engines that only measure accuracy, on the CPU of this machine. weight_levels, scales, lows: as in
    `quantize_layers`.
    """

    options: Options
    imported: Imported
    graph: Graph
    plain: Options
    quick: Options
    weight_levels: int
    scales: Mapping[str, Any] = field(default_factory=dict)
    lows: Mapping[str, float] = field(default_factory=dict)

    @property
    def rest(self) -> str:
        """The precision of layers outside INT8, in capitals."""
        return self.plain.precision.upper()

    @property
    def runs_here(self) -> bool:
        """True if engines with the caller's options run on this machine."""
        return target_kind(self.options).runs_here(self.options)

    @property
    def statistics(self) -> Options:
        """Options of engines that run once over calibration data."""
        return self.quick.but(threads=self.options.threads)

    def quantize(self, candidate: Int8Candidate, switched: bool = False) -> Graph:
        """Returns the candidate's program with quantized layers; `switched` as in `quantize_layers`."""
        numbers, corrections = candidate.quantized, candidate.program.corrections
        graph, chosen = candidate.program.with_layers(numbers)
        of_nodes = {layer.node: corrections[i] for i, layer in zip(numbers, chosen) if i in corrections}
        return quantize_layers(graph, chosen, self.scales, self.weight_levels, switched, self.lows, of_nodes)

    def compile(self, candidate: Int8Candidate, options: Options, switched: bool = False) -> BuildResult:
        """Compiles a candidate."""
        return compile_graph(replace(self.imported, graph=self.quantize(candidate, switched)), options)

    def compile_plain(self, options: Options) -> BuildResult:
        """Compiles the program without INT8."""
        return compile_graph(replace(self.imported, graph=self.graph), options, done="optimize")

    def measure(self, candidate: Int8Candidate, bound: AccuracyBound) -> Int8Candidate:
        """Returns the candidate with the accuracy of a quick build."""
        if not candidate.quantized:
            return candidate
        return replace(candidate, accuracy=bound.measure(self.compile(candidate, self.quick).engine))
