"""Operators of com.microsoft that are refused, each with its reason."""

from __future__ import annotations

from pelton.importers.onnx.node import MICROSOFT, Binding, Reading, reads

_DECODING = (
    "it is a loop over a whole decoder that is part of its attributes; build the decoder as a model of its own, and run"
    " it for each token"
)
REFUSED = {op: _DECODING for op in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")}


@reads(*REFUSED, domain=MICROSOFT)
def refuse(n: Reading) -> Binding:
    raise n.refuse(f"{n.op} is not supported: {REFUSED[n.op]}")
