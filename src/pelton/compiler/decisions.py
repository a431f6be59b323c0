"""Logs the decisions of each build stage in "pelton.build": choices at INFO, rejections at DEBUG.

Every line is "stage: what, why"; the command line shows them with -v and -vv.
"""

from __future__ import annotations

import logging

from pelton.logs import Logger
from pelton.plan.region import Region

from .compilation import Compilation

log = Logger("pelton.build")


def tell(stage: str, before: Compilation, after: Compilation) -> None:
    """Logs the decisions of a stage, from the compilations before and after it."""
    if not log.isEnabledFor(logging.INFO):
        return
    _tell_passes(stage, before, after)
    match stage:
        case "import":
            opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in after.imported.info.opsets.items())
            log.info("import: %s, %d nodes; opset %s", after.graph.name, len(after.graph.nodes), opsets or "none")
        case "fuse":
            regions = sum(isinstance(i, Region) for i in after.fused.items)
            log.info("fuse: from %d nodes to %d regions", len(after.graph.nodes), regions)
            for line in after.fused.chains:
                log.info("fuse: chain %s", line)
            for note in after.fused.notes:
                log.debug("fuse: not at %s: %s", note.node, note.reason)
        case "layout":
            for d in after.layouts:
                more = ", ".join(f"{name} {cost:.0f} {d['unit']} more" for name, cost in d["more"].items())
                log.info("layout: %s as %s wants it; %s", "+".join(d["layers"]) or d["region"], d["template"], more)
        case "place":
            for why in after.placed.copies.values():
                log.info("place: copy %s", why)
        case "tune":
            _tell_tactics(after)
        case "lower":
            for line in after.lowered.launches:
                log.info("lower: %s", line)
        case "link":
            for layer in after.plain.meta.get("half") or ():
                log.info("link: weights of %s are %s: %s", layer["layer"], layer["weights"], layer["reason"])


def _tell_passes(stage: str, before: Compilation, after: Compilation) -> None:
    refused: dict[tuple[str, str], str] = {}  # (rule, node) → reason; several passes may try the same
    for done in after.report.passes[len(before.report.passes) :]:
        if done.fired:
            log.info("%s: %s", stage, done)
        for rule, nodes in done.fired.items():
            for node in nodes:
                log.debug("%s: %s makes %s", stage, rule, node)
        refused.update({(rule, node): why for rule, nodes in done.rejected.items() for node, why in nodes.items()})
    for (rule, node), why in refused.items():
        log.debug("%s: %s not at %s: %s", stage, rule, node, why)


def _tell_tactics(after: Compilation) -> None:
    """Logs a line for each region: its tactic, and the fastest alternative if times are known."""
    for i, choice in after.choices.items():
        region, name, times = after.placed.tasks[i].region, choice.tactic.name, choice.times
        title = "+".join(region.layers) or region.title()
        others = sorted((ns, other) for other, ns in times.items() if other != name)
        if name not in times:
            log.info("tune: %s by %s, not timed", title, name)
        elif not others:
            log.info("tune: %s by %s, %.1f µs", title, name, times[name] / 1e3)
        else:
            text = "tune: %s by %s, %.1f µs, of %d timed; next %s, %.1f µs"
            log.info(text, title, name, times[name] / 1e3, len(times), others[0][1], others[0][0] / 1e3)
        for ns, other in others:
            log.debug("tune: %s not by %s, %.1f µs", title, other, ns / 1e3)
