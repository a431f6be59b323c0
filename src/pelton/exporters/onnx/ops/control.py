"""Writers of branches, loops and scans, whose graphs read outer values by name."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.ops.control import ENDLESS

from ..writing import Writing, writes


def _gives(w: Writing) -> list:
    return [v.type.dtype for v in w.node.outputs]


@writes("if")
def if_(w: Writing) -> Sequence[str]:
    operands = w.inputs[1:]
    branches = {k: w.model.nested(w.attrs[k].graph, operands, 0, k) for k in ("then", "other")}
    return w.emit_all("If", w.inputs[:1], _gives(w), then_branch=branches["then"], else_branch=branches["other"])


@writes("loop")
def loop(w: Writing) -> Sequence[str]:
    """Adds the condition that the graph must declare and does not need."""
    carried = w.attrs["carried"]
    trips, condition, *operands = w.inputs
    known = w.known(0)
    body = w.model.nested(w.attrs["body"].graph, operands[carried:], 1 + carried, "body")
    body.input.insert(1, w.model.declared("condition", w.node.inputs[1].type))
    endless = known is not None and known.item() == ENDLESS
    return w.emit_all("Loop", ["" if endless else trips, condition, *operands[:carried]], _gives(w), body=body)


@writes("scan")
def scan(w: Writing) -> Sequence[str]:
    a, count = w.attrs, w.attrs["states"] + len(w.attrs["axes"])
    body = w.model.nested(a["body"].graph, w.inputs[count:], count, "body")
    back = int(a["back"])
    return w.emit_all(
        "Scan",
        w.inputs[:count],
        _gives(w),
        body=body,
        num_scan_inputs=len(a["axes"]),
        scan_input_axes=a["axes"],
        scan_input_directions=[back] * len(a["axes"]) if back else None,
        scan_output_axes=a["into"] or None,
        scan_output_directions=[back] * len(a["into"]) if back and a["into"] else None,
    )
