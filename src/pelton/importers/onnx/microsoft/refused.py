"""Refused operators of com.microsoft, each with its reason."""

from __future__ import annotations

from pelton.importers.onnx.node import MICROSOFT, Binding, Reading, reads

_DECODING = (
    "it is a loop over a whole decoder in its attributes; build the decoder as a separate model, and run it for each"
    " token"
)
_PACKED = "its weights are packed for one ONNX Runtime's kernels; export the model with {} instead"
REFUSED = {
    **{op: _DECODING for op in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")},
    "MatMulFpQ4": _PACKED.format("MatMulNBits"),
    "GatherPacked": _PACKED.format("GatherBlockQuantized"),
}


@reads(*REFUSED, domain=MICROSOFT)
def refuse(n: Reading) -> Binding:
    raise n.refuse(f"{n.op} is not supported: {REFUSED[n.op]}")
