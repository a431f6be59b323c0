"""The advice for a model: predictions for devices and batches, sorted, and the sentences that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.errors import InputError

from .predict import CONFIDENCE, Prediction, RatedDevice, RunningCosts, ServiceLimits, helps, predict
from .work import ModelWork

PRODUCTS_ON_CPU = "CPUs: only weights are FP16, products are FP32"


@dataclass(frozen=True)
class ModelAdvice:
    """Predictions, those that meet all limits first, then by latency for each input. left: why devices were left
    out."""

    model: str
    precision: str
    limits: ServiceLimits
    costs: RunningCosts
    predictions: tuple[Prediction, ...]
    left: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Returns what follows: whether this CPU is enough, and what was left out."""
        enough = [p for p in self.predictions if p.device.here and self.limits.enough(p)]
        said = []
        if enough:
            best = min(enough, key=lambda p: p.seconds)
            said.append(
                f"The CPU that you have is enough: {best.device.name} takes {best.seconds * 1e3:.3g} ms for a batch of "
                f"{best.work.batch}, and at the slow end of the interval {best.high * 1e3:.3g} ms."
            )
        if not any(fulfils(self.limits, p) for p in self.predictions) and self.limits != ServiceLimits():
            said.append("No device in this list is predicted to meet all limits.")
        return said

    def json(self, layers: bool = False) -> dict[str, Any]:
        """Returns the data of `pelton advise --json`. layers: with the steps of every prediction."""
        return {
            "model": self.model,
            "precision": self.precision,
            "limits": {
                "latency_ms": self.limits.latency and self.limits.latency * 1e3,
                "qps": self.limits.qps,
                "budget": self.limits.budget,
            },
            "costs": {"energy_price": self.costs.energy, "years": self.costs.years, "use": self.costs.use},
            "rows": [row(p, self, layers) for p in self.predictions],
            "left_out": list(self.left),
            "sentences": self.sentences(),
        }


def advise(
    works: Mapping[str, Sequence[ModelWork]],
    devices: Sequence[RatedDevice],
    limits: ServiceLimits,
    costs: RunningCosts,
    left: Sequence[str] = (),
) -> ModelAdvice:
    """Predicts every work on every device. works: "cpu" and "gpu" → the work of the model for each batch, as planned
    for such devices. Raises InputError if no device has the figures that a prediction needs."""
    predictions, without = list[Prediction](), list(left)
    for device in devices:
        try:
            predictions += [predict(work, device) for work in works[plan_kind(device)]]
        except InputError as e:
            without.append(str(e))
    if not predictions:
        raise InputError(without[-1] if without else "no device is left to predict for")
    work = predictions[0].work
    ordered = sorted(predictions, key=lambda p: (not fulfils(limits, p), p.seconds / p.work.batch))
    return ModelAdvice(work.name, work.precision, limits, costs, tuple(ordered), tuple(dict.fromkeys(without)))


def plan_kind(device: RatedDevice) -> str:
    """Returns "cpu" or "gpu": the target whose plan a device would run."""
    return "cpu" if device.kind == "cpu" else "gpu"


def fulfils(limits: ServiceLimits, p: Prediction) -> bool:
    """True if the model fits and no limit is known to be missed."""
    return p.fits is not False and False not in limits.met(p).values()


def notes(p: Prediction) -> list[str]:
    """Returns the assumptions behind a prediction, in sentences."""
    d, said = p.device, list(p.work.assumptions)
    for precision in sorted({s.precision for s in p.work.steps if s.operations}):
        if precision not in d.peaks:
            wider = d.peak_name(precision)
            how = f"that of {wider} is used" if wider else "only bytes count for steps without weights"
            said.append(f"no known peak of {precision}: {how}")
    if p.work.precision == "fp16" and d.kind == "cpu":
        said.append(PRODUCTS_ON_CPU)
    if not d.profile.fitted or d.profile.architectures:
        said.append(d.profile.note)
    elif not d.own:
        said.append(f"efficiencies were fitted on {d.profile.name}, not on this device")
    if d.roof == "measured" and d.kind == "cpu" and (d.price or d.power_w):
        said.append("price and power are quoted for the whole CPU")
    if not d.runs:
        said.append("Pelton has no back end for it; kernels like those for NVIDIA GPUs are assumed")
    return said


def row(p: Prediction, advice: ModelAdvice, layers: bool) -> dict[str, Any]:
    """Returns a row of the JSON: one device and batch."""
    d, ms = p.device, 1e3
    energy, hardware = advice.costs.of_million(p)
    quoted = d.price and {
        "amount": d.price.amount,
        "currency": d.price.currency,
        "date": d.price.date,
        "what": d.price.kind,
        "kind": "quoted",
    }
    steps = [
        {
            "name": s.work.name,
            "template": s.work.template,
            "ms": s.seconds * ms,
            "bound": s.bound,
            "operations": s.work.operations,
            "bytes": s.work.bytes,
        }
        for s in p.steps
    ]
    return {
        "device": d.name,
        "device_kind": d.kind,
        "batch": p.work.batch,
        "precision": p.work.precision,
        "latency_ms": p.seconds * ms,
        "interval_ms": [p.low * ms, p.high * ms],
        "confidence": CONFIDENCE,
        "kind": "predicted",
        "throughput": p.throughput,
        "memory_bytes": p.work.memory,
        "memory_gb": d.memory_gb,
        "fits": p.fits,
        "roof": {"kind": d.roof, "peaks": d.peaks, "bandwidth_gbs": d.levels[-1].gbs},
        "profile": {"name": d.profile.name, "fitted": d.profile.fitted, "own": d.own},
        "runs": d.runs,
        "power_w": d.power_w,
        "price": quoted,
        "million": {"energy": energy, "hardware": hardware},
        "machines": advice.limits.machines(p),
        "meets": advice.limits.met(p),
        "bound": p.bound,
        "shares": p.shares(),
        "helps": helps(p),
        "assumptions": notes(p),
        **({"layers": steps} if layers else {}),
    }
