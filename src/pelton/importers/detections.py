"""Box selection at the end of programs that return boxes with scores."""

from __future__ import annotations

from dataclasses import replace

from pelton.errors import InputError, ModelError, near
from pelton.ir.dims import is_known
from pelton.ir.imported import Imported
from pelton.network import Network

USUAL = {"score": 0.25, "iou": 0.45, "keep": 100.0}
EXAMPLE = "score=0.25,iou=0.45,keep=100"
OUTPUT = "detections"


def select_detections(imported: Imported, how: str | bool) -> Imported:
    """Returns the program with one output `detections` f32[batch, keep, 6] instead of those that `box_outputs` names.

    how: as `Options.detections`. Raises InputError for an invalid text, and for a program without boxes.
    """
    values = _parsed("" if how is True else str(how))
    names = imported.info.box_outputs
    if not names:
        raise InputError(
            "detections= needs boxes with scores, and none were found in this model (or outputs= excludes them);"
            " leave it out"
        )
    net = Network.from_graph(imported.graph)
    outputs = [net.tensor(name) for name in names]
    if len({x.shape[2] for x in outputs}) > 1 or not is_known(outputs[0].shape[2]):
        sizes = ", ".join(f"{x.name} {x.shape[2]}" for x in outputs)
        raise ModelError(f"boxes can be selected from outputs with the same classes, they have 5 + classes of: {sizes}")
    with net.scope(OUTPUT):
        boxes = outputs[0] if len(outputs) == 1 else net.concat(outputs, 1)
        center, size = boxes[:, :, :2], boxes[:, :, 2:4] * 0.5
        corners = net.concat([center - size, center + size], 2)
        scores = net.transpose(boxes[:, :, 5:], perm=(0, 2, 1))
        kept = net.multiclass_nms(
            corners, scores, keep=int(values["keep"]), score=values["score"], overlap=values["iou"]
        )
    others = {v.name: net.wrap(v) for v in imported.graph.outputs if v.name not in names}
    graph = net.graph({OUTPUT: kept, **others})
    return replace(imported, graph=graph, info=replace(imported.info, box_outputs=()))


def _parsed(text: str) -> dict[str, float]:
    """Parses `score=0.3,keep=20`, with default values for the rest."""
    values = dict(USUAL)
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if name not in USUAL:
            raise InputError(f"detections knows {', '.join(USUAL)}, as in {EXAMPLE!r}, got {part!r}{near(name, USUAL)}")
        try:
            values[name] = float(value)
        except ValueError:
            raise InputError(f"detections is like {EXAMPLE!r}, got {part!r}") from None
    if not 0 <= values["score"] < 1 or not 0 <= values["iou"] <= 1:
        raise InputError(f"score (below 1) and iou of detections are from 0 to 1, got {text!r}")
    if not 1 <= values["keep"] <= 1 << 16 or values["keep"] != int(values["keep"]):
        raise InputError(f"keep of detections is an integer from 1 to {1 << 16}, got {text!r}")
    return values
