"""`pelton explain`: the effect of every stage on a model, rejections with reasons, and the accuracy of the engine."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton import progress
from pelton.engine.script import Block, HostAction, IfAction, LoopAction, RunAction, ScanAction
from pelton.errors import InputError, Needs
from pelton.options import Options

from . import arguments, arrays, flags, output, parsers, text

if TYPE_CHECKING:
    from pelton.diagnose.explain import Errors, Explanation, ScriptExplanation
    from pelton.diagnose.sensitivity import Sensitivity
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton explain resnet50.onnx                              every stage, what it did and what it rejected
  pelton explain resnet50.onnx --why-not conv_batch_norm    one rule: where it applied, where it did not and why
  pelton explain resnet50.onnx --why-not winograd           the same for a kernel template
  pelton explain resnet50.onnx --graph merge                the program after a stage or pass (import, …, decompose)
  pelton explain resnet50.onnx --tactics                    all candidates of every region
  pelton explain resnet50.onnx --error --top 10             builds, runs once, and shows the least exact steps
  pelton explain resnet50.onnx --error --strict --input x=cat.npy
  pelton explain resnet50.qdq.onnx --error --data pictures.npz --level 0    which tensors suffer from quantization

For quantized models, --error also ranks tensors by their effect on the outputs: rounds one tensor at a time, while all
others only saturate, and computes the outputs' SQNR against the network without rounding (sensitivity analysis, Wu et
al. 2020). Weights stay as in the file. This needs a run for each tensor and sample (2 cores: mobilenet_v2 7 s for 2
samples, resnet50 17 s, bert_base 5 minutes for one). Typical samples in --data are better than random inputs.

Without --error, nothing is compiled or timed. `pelton inspect` shows an engine's kernels."""
SHOWN = 6  # names in one line


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "explain",
        help="show each stage of a build, and rejected optimizations",
        description="Shows the stages of a model's build: applied and rejected rules, fusions and kernels.",
        epilog=EXAMPLES,
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument(
        "--why-not",
        metavar="RULE",
        help="one rule or kernel template: where it applied, and why it was rejected elsewhere",
    )
    command.add_argument("--graph", metavar="STAGE", help="the program after this stage, as text")
    command.add_argument("--tactics", action="store_true", help="list every candidate instead of their number")
    error = command.add_argument_group("accuracy of the engine")
    error.add_argument(
        "--error", action="store_true", help="build and run the engine once, and compare each step with float64"
    )
    arguments.add_inputs(error)
    error.add_argument(
        "--data",
        metavar="FILE",
        help="an .npz file with an array per input, samples along the first axis: the first sample for steps, all for"
        " quantized tensors",
    )
    error.add_argument(
        "--top",
        type=parsers.int_in_range(1, 1 << 20, "steps"),
        metavar="N",
        help="the N steps with the largest errors (default: all, in execution order), and the N most harmful quantized"
        " tensors",
    )
    arguments.add_threads(command)
    arguments.add_build(command)
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    with Needs("explaining models"):
        from pelton.diagnose.explain import ScriptExplanation, explain
    if args.error:
        show_errors(args)
        return
    if args.input or args.top or args.data:
        raise InputError("--input, --data and --top are options of --error; add --error")
    for option in ("load_tactics", "save_tactics"):
        if getattr(args, option) is not None:
            raise InputError(
                f"{option}= decides builds, and explain builds only with --error; leave it out, or add --error"
            )
    explanation = explain(args.model, **arguments.build_options(args))
    if args.json:
        reason = explanation.reason if isinstance(explanation, ScriptExplanation) else None
        parts = explanation.parts if isinstance(explanation, ScriptExplanation) else (explanation,)
        output.emit(args, {"model": args.model, "reason": reason, "programs": [facts(part, args) for part in parts]})
        return
    if not isinstance(explanation, ScriptExplanation):
        print("\n".join(format_program(explanation, args)))
        return
    if args.graph is None and args.why_not is None:
        print("\n".join(script(explanation)))
    for i, part in enumerate(explanation.parts):
        print(f"\nengine {i}\n" + "\n".join(format_program(part, args)))


def show_errors(args: argparse.Namespace) -> None:
    """Builds, measures and prints the errors that --error requests."""
    from pelton.diagnose.explain import errors
    from pelton.diagnose.sensitivity import rank

    if args.input and args.data:
        raise InputError("--input is one set of inputs, --data several; use only one of them")
    options = arguments.build_options(args)
    samples: list[Mapping[str, np.ndarray]] = []

    def load(engine: Engine) -> Mapping[str, np.ndarray]:
        """Returns the first sample; keeps all."""
        samples.extend(arrays.load_data(engine, args.data) if args.data else [arrays.load_inputs(engine, args.input)])
        return samples[0]

    stages = progress.course(options.get("level", Options.level))
    with progress.show_progress(not args.quiet, (*stages, ("check", 0.1))) as tell:
        exact = errors(args.model, load if args.data or args.input else None, **options, progress=tell)
        sensitivity = rank(args.model, samples or [exact.inputs], Options(**options, progress=tell))
    if args.json:
        output.emit(args, {**exact.json(), "quantized": sensitivity and sensitivity.json()})
        return
    print("\n".join([*error_header(args.model, exact), "", error_table(exact, args.top), "", *outputs(exact)]))
    if sensitivity is not None:
        print("\n".join(["", *ranking(sensitivity, args.top)]))


def ranking(found: Sensitivity, top: int | None) -> list[str]:
    """Lists quantized tensors, the most harmful first, or the first `top` of them."""
    head = (
        f"{text.count(len(found.tensors), 'quantized tensor')}, the most harmful first, on"
        f" {text.count(found.samples, 'sample')}: SQNR of the outputs with this one alone rounded, and its share of the"
        " noise of all"
    )
    names = list(found.together)
    rows = [("share", *(f"{text.shortened(name, 24)} dB" for name in names), "tensor", "read by")]
    for t in found.tensors[:top]:
        decibels = (f"{t.sqnr[name]:.1f}" for name in names)
        rows.append((f"{100 * t.share:.1f} %", *decibels, text.shortened(t.tensor, 48), shorten_list(list(t.readers))))
    together = ", ".join(f"{name} {db:.1f} dB" for name, db in found.together.items())
    lines = [head, text.table(rows, "r" * (1 + len(names)) + "ll"), f"all of them rounded: {together}"]
    if found.whole:
        lines.append(f"always rounded, as they are computed with in integers: {shorten_list(list(found.whole))}")
    return lines


def facts(found: Explanation, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the content of `format_program` as plain data."""
    if args.graph is not None:
        from pelton.ir.text import to_text

        return {"graph": to_text(found.stage(args.graph), data=True)}
    return dataclasses.asdict(found.why_not(args.why_not)) if args.why_not is not None else found.json()


def format_program(found: Explanation, args: argparse.Namespace) -> list[str]:
    """Returns the lines about one program that the arguments request."""
    if args.graph is not None:
        from pelton.ir.text import to_text

        return to_text(found.stage(args.graph), data=True).splitlines()
    if args.why_not is not None:
        return why_not(found, args.why_not)
    return [*imported(found), "", *passes(found), "", *regions(found, args.tactics), "", *refusals(found)]


def script(found: ScriptExplanation) -> list[str]:
    """Describes the reason for a script, and its steps; those of inner blocks are indented."""
    lines = [f"{found.reason}: it is a script over {text.count(len(found.parts), 'engine')}"]
    lines += [f"  warning: {flags.translate_options(w)}" for w in found.scripted.info.warnings]
    return lines + ["steps:", *steps(found.scripted.main, "  ")]


def steps(block: Block, margin: str) -> list[str]:
    lines: list[str] = []
    for a in block.steps:
        results = ", ".join(filter(None, a.outputs))
        match a:
            case RunAction():
                inputs = [f.name if f.source == "array" else f"{f.source} {f.at} of {f.name}" for f in a.feeds]
                lines.append(
                    f"{margin}engine {a.engine}: {shorten_list(inputs)} → {shorten_list(list(a.outputs))}"
                    + ("; by reference where its sizes do not fit" if a.otherwise else "")
                )
            case HostAction():
                lines.append(f"{margin}{a.call} {a.name!r}: {shorten_list(list(filter(None, a.inputs)))} → {results}")
            case IfAction():
                lines += [
                    f"{margin}if {a.condition} → {results}",
                    *steps(a.then, margin + "  "),
                    f"{margin}else",
                    *steps(a.other, margin + "  "),
                ]
            case LoopAction():
                ends = [*([f"{a.trips} times"] if a.trips else []), *([f"while {a.condition}"] if a.condition else [])]
                lines += [f"{margin}loop {' and '.join(ends)} → {results}", *steps(a.body, margin + "  ")]
            case ScanAction():
                lines += [f"{margin}scan {', '.join(a.scanned)} → {results}", *steps(a.body, margin + "  ")]
    return lines


def imported(found: Explanation) -> list[str]:
    graph, info = found.imported.graph, found.imported.info
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in info.opsets.items())
    weights = sum(v.type.bytes for v in graph.constants)
    opset = f"; opset {opsets}" if opsets else ""
    made_by = f"; made by {info.producer}" if info.producer else ""
    return [
        f"import: {text.count(len(graph.nodes), 'node')}, {text.size(weights)} of constants{opset}{made_by}",
        *(f"  input  {v.name}: {v.type}" for v in graph.inputs),
        *(f"  output {v.name}: {v.type}" for v in graph.outputs),
        *(f"  warning: {flags.translate_options(w)}" for w in info.warnings),
        *(f"  without an op of Pelton, run by the onnx package: {f}" for f in info.foreign),
    ]


def passes(found: Explanation) -> list[str]:
    lines = ["passes:"]
    width = max(len(p.name) for p in found.report.passes)
    for p in found.report.passes:
        if p.fired or p.before != p.after:
            lines.append(
                f"  {p.name:<{width}}  {p.before} → {text.count(p.after, 'node')}" + (f": {p.says}" if p.says else "")
            )
            lines += [f"    {rule} {len(nodes)}×: {shorten_list(nodes)}" for rule, nodes in p.fired.items()]
    idle = [p.name for p in found.report.passes if not p.fired and p.before == p.after]
    if idle:
        lines.append(f"  nothing to do for: {', '.join(idle)}")
    refused = found.report.rejected()
    if refused:
        lines.append("  rejected in the end:")
        lines += [
            f"    {rule} at {node}: {reason}" for rule, nodes in refused.items() for node, reason in nodes.items()
        ]
    return lines


def regions(found: Explanation, every: bool) -> list[str]:
    from pelton.diagnose.explain import region_name
    from pelton.plan.region import Region

    tasks = found.placed.tasks
    lines = [
        f"{text.count(len(tasks), 'step')} (each a region of layers that one kernel computes, a copy, or a host step):"
    ]
    for i, (task, tactics) in enumerate(zip(tasks, found.tactics)):
        what = task.what
        if not isinstance(what, Region):
            lines.append(f"  {i:3} host step {what.op.name} {what.name!r}: it has no kernel")
            continue
        lines.append(
            f"  {i:3} {what.title()} → {', '.join(str(v.type) for v in what.body.outputs)}"
            + (f"  [{region_name(what)}]" if what.layers else "")
        )
        if every:
            lines += [f"        {name}" for names in tactics.values() for name in names]
        else:
            lines.append(
                "        "
                + ", ".join(f"{template} ({text.count(len(names), 'tactic')})" for template, names in tactics.items())
            )
    return lines


def refusals(found: Explanation) -> list[str]:
    lines = [f"fusions rejected: {len(found.fused.notes) or 'none'}"]
    lines += [f"  {note.node}: {note.reason}" for note in found.fused.notes]
    lines.append(f"copies because of layouts: {len(found.placed.copies) or 'none'}")
    lines += [f"  {why}" for why in found.placed.copies.values()]
    weighed = " (weighted by their copies; `pelton build` times them)" if found.layouts else ""
    lines.append(f"layouts that templates disagree on: {len(found.layouts) or 'none'}{weighed}")
    return [*lines, *(f"  {line}" for line in text.layouts(found.layouts)), *states(found)]


def states(found: Explanation) -> list[str]:
    """Lists the values that `Engine.state` keeps between runs."""
    lines = ["state between runs, by names and types:"] if found.states else []
    for kept in found.states:
        how = f"written anew in every run: {kept.copied}" if kept.copied else "extended in place"
        lines.append(f"  {kept.input} ← {kept.output} ({kept.type}), {how}")
    return lines


def why_not(found: Explanation, name: str) -> list[str]:
    answer = found.why_not(name)
    lines = [f"{answer.name}: {answer.doc.splitlines()[0]}" if answer.doc else answer.name]
    lines.append(f"  applied {len(answer.applied)}×" + (f": {', '.join(answer.applied)}" if answer.applied else ""))
    lines += [f"  not at {node}: {reason}" for node, reason in answer.rejected.items()]
    if not answer.applied and not answer.rejected:
        lines.append("  nothing in this model matches it")
    return lines


def error_header(model: str, found: Errors) -> list[str]:
    return [
        f"{model}: run on {arrays.sizes_in_words(found.inputs)}",
        (
            "largest differences from float64, relative to the largest value of a step: its own, on the inputs that"
            " it had, and all so far"
        ),
    ]


def error_table(found: Errors, top: int | None) -> str:
    """Formats all steps in execution order, or the `top` with the largest errors of their own."""
    numbered = list(enumerate(found.steps))
    if top is not None:
        numbered = sorted(numbered, key=lambda n: -n[1].own)[:top]
    rows: list[tuple[str, ...]] = [("step", "own", "so far", "", "tactic", "what")]
    for i, s in numbered:
        tactic = "host" if s.step.host else s.step.info["tactic"].partition("@")[0]
        rows.append(
            (
                f"{i}",
                f"{s.own:.1e}",
                f"{s.accumulated:.1e}",
                "inexact" if s.inexact else "",
                text.shortened(tactic, 48),
                text.shortened("+".join(s.step.info["layers"]) or s.step.info["op"], 60),
            )
        )
    return text.table(rows, "rrrlll")


def outputs(found: Errors) -> list[str]:
    return [
        f"output {name}: {o.engine:.1e} from the model in float64; {o.program:.1e} if every step were exact (folded"
        " constants, rules that round)"
        for name, o in found.outputs.items()
    ]


def shorten_list(names: list[str]) -> str:
    return ", ".join(text.shortened(name, 48) for name in names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
