"""Searches the candidate with the most layers in INT8 within the accuracy bound: refines programs, reverts layers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pelton.compiler.targets import progress_reporter
from pelton.logs import Logger
from pelton.passes.precision.calibrated import SWITCHES, mean_errors
from pelton.passes.precision.equalize import Equalized

from .accuracy_bound import AccuracyBound, Feed
from .candidate import Int8Candidate, Int8Compiler
from .refinement import Refined, forms, mean_outputs
from .switches import noises, together

log = Logger("pelton.build")


def refine(
    compiler: Int8Compiler,
    bound: AccuracyBound,
    candidate: Int8Candidate,
    equalized: Sequence[Equalized],
    feeds: Sequence[Feed],
) -> list[Int8Candidate]:
    """Returns the allowed forms of a candidate's program, each measured: equalized and corrected by the mean errors of
    its layers on these batches, as `forms` has it."""
    options = compiler.options
    pairs = forms(options.weight_equalization, options.bias_correction, len(feeds))
    refined: list[Int8Candidate] = []
    for i, (equalize, correct) in enumerate(pairs):
        progress_reporter(options)("accuracy", i, len(pairs) + 1)
        if equalize and not equalized and refined:
            continue
        program = Refined(compiler.graph, equalized if equalize else ())
        if correct:
            program = _corrected(compiler, program, candidate.quantized, feeds)
        refined.append(compiler.measure(replace(candidate, program=program), bound))
    return refined


def _corrected(compiler: Int8Compiler, program: Refined, numbers: Sequence[int], feeds: Sequence[Feed]) -> Refined:
    """Returns the program with the mean errors of these layers on these batches as corrections."""
    graph, chosen = program.with_layers(numbers)
    errors = mean_errors(graph, chosen, compiler.scales, compiler.weight_levels, compiler.lows)
    means = mean_outputs(errors, feeds, compiler.statistics)
    return replace(program, corrections={i: e for i, e in zip(numbers, means) if np.isfinite(e).all()})


def revert(
    compiler: Int8Compiler, bound: AccuracyBound, candidate: Int8Candidate, least: int = 1
) -> Int8Candidate | None:
    """Reverts as few layers as the bound requires, but at least `least`, the most harmful first. Returns the candidate
    that is left, measured, or None if no layer may revert.

    Layers that the caller wants in INT8 stay; in the precision "best", which accepts no broken bound, they revert last.
    """
    best = compiler.options.precision == "best"
    noise = _noise_alone(compiler, bound, candidate)
    order = [i for i in noise if best or not candidate.layers[i].fixed]
    order.sort(key=lambda i: (candidate.layers[i].fixed, -noise[i]))
    if not order:
        return None

    @functools.cache
    def without(count: int) -> Int8Candidate:
        """Returns the candidate without the first layers of the order, measured."""
        reason = "too much of the accuracy: alone, it makes noise of {:.1e} of the outputs"
        left = candidate.reverted({i: reason.format(noise[i]) for i in order[:count]})
        return compiler.measure(left, bound)

    fails, holds = least - 1, least  # numbers of reverted layers
    while holds < len(order) and not without(holds).is_within(bound):
        fails, holds = holds, min(2 * holds, len(order))
    while holds - fails > 1:
        middle = (fails + holds) // 2
        if without(middle).is_within(bound):
            holds = middle
        else:
            fails = middle
    left = without(holds)
    if not left.quantized:
        log.warning(
            "no layer is in INT8: the accuracy would drop by more than max_drop %g; the engine uses %s",
            bound.max_drop,
            compiler.rest,
        )
    return left


def _noise_alone(compiler: Int8Compiler, bound: AccuracyBound, candidate: Int8Candidate) -> dict[int, float]:
    """Returns, for each layer in INT8, the outputs' noise power by signal power with that layer alone in INT8."""
    numbers = candidate.quantized
    engine = compiler.compile(candidate, compiler.quick, switched=True).engine
    measured = noises(engine, SWITCHES, list(np.eye(len(numbers))), bound.feeds)
    return {i: together(of.values()) for i, of in zip(numbers, measured)}
