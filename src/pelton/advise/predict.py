"""Predictions of latency, memory and cost of a model's work on a device, with intervals; see `docs/advise.md`.

A step takes max(operations / (peak · efficiency), bytes / (bandwidth · efficiency)) and its start: the roofline of
Williams et al. 2009, with efficiencies by kernel template.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pelton.errors import InputError

from .catalog import Price
from .profile import BandwidthLevel, DeviceProfile, TemplateFit
from .work import ModelWork, StepWork, in_int8

CONFIDENCE = 0.9  # of intervals
SIGMAS = 1.645  # of a normal distribution on both sides, for 90 %
# Wider types that run the products of a device without a published peak of a precision.
WIDER = {"int8": ("fp16", "fp32"), "fp16": ("fp32",), "bf16": ("fp16", "fp32"), "fp32": (), "fp64": ()}
BOUNDS = ("compute", "bandwidth", "launches")
DOMINANT = 0.4  # share of the time from which on a bound decides the advice
YEAR = 365.25 * 86400  # seconds


@dataclass(frozen=True)
class RatedDevice:
    """A device with its roof.

    peaks: tera-operations per second by precision; levels: bandwidth, caches first. roof: "measured" or "quoted". own:
    True if the profile was measured on this very device. here: True for this machine. runs: True if Pelton's engines
    run on it; predictions for others assume kernels like those for NVIDIA GPUs.
    """

    name: str
    kind: str
    peaks: dict[str, float]
    levels: tuple[BandwidthLevel, ...]
    memory_gb: float | None
    power_w: float | None
    price: Price | None
    profile: DeviceProfile
    roof: str
    own: bool = False
    here: bool = False
    runs: bool = True

    def peak(self, precision: str) -> float:
        """Returns operations per second of a precision, or of the next wider one with a peak.

        Raises InputError if there is none.
        """
        name = self.peak_name(precision)
        if name is not None:
            return self.peaks[name] * 1e12
        raise InputError(f"{self.name}: no source states its peak of {precision}; add it by --catalog")

    def peak_name(self, precision: str) -> str | None:
        """Returns the precision whose peak counts for another, None without one."""
        return next((name for name in (precision, *WIDER.get(precision, ())) if name in self.peaks), None)

    def bandwidth(self, size: float) -> float:
        """Returns bytes per second out of the smallest level that holds `size` bytes."""
        level = next((x for x in self.levels if x.bytes is None or size <= x.bytes), self.levels[-1])
        return level.gbs * 1e9


@dataclass(frozen=True)
class StepPrediction:
    """Seconds of a step: of its operations, of its bytes, and of its start; the longer of the first two counts."""

    work: StepWork
    compute: float
    memory: float
    start: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory) + self.start

    @property
    def bound(self) -> str:
        """The largest part of the step, one of BOUNDS."""
        return max(zip((self.compute, self.memory, self.start), BOUNDS))[1]


@dataclass(frozen=True)
class Prediction:
    """A prediction for one device and batch. low, high: the interval of `seconds` that holds 90 % of networks like
    those of the profile. needed: bytes of memory; fits: None if the device's memory is unknown."""

    device: RatedDevice
    work: ModelWork
    steps: tuple[StepPrediction, ...]
    seconds: float
    low: float
    high: float

    @property
    def throughput(self) -> float:
        """Inferences per second, one run after the other."""
        return self.work.batch / self.seconds

    @property
    def fits(self) -> bool | None:
        limit = self.device.memory_gb
        return None if limit is None else self.work.memory <= limit * 2**30

    def shares(self) -> dict[str, float]:
        """Returns the share of the time of a run by bound, the call included in launches."""
        sums = dict.fromkeys(BOUNDS, 0.0)
        for s in self.steps:
            sums["compute" if s.compute >= s.memory else "bandwidth"] += max(s.compute, s.memory)
        sums["launches"] = self.seconds - sums["compute"] - sums["bandwidth"]
        return {name: seconds / self.seconds for name, seconds in sums.items()}

    @property
    def bound(self) -> str:
        shares = self.shares()
        return max(shares, key=shares.__getitem__)


@dataclass(frozen=True)
class RunningCosts:
    """Assumptions on cost, all of them options. energy: price of a kWh; years: life of the device; use: share of the
    time in which it works. Energy and hardware are in the currency of the device's price."""

    energy: float = 0.25
    years: float = 3.0
    use: float = 0.5

    def of_million(self, p: Prediction) -> tuple[float | None, float | None]:
        """Returns (energy, hardware) of a million inferences; None where power or price is unknown."""
        seconds, d = 1e6 / p.throughput, p.device
        energy = None if d.power_w is None else seconds * d.power_w / 3.6e6 * self.energy
        hardware = None if d.price is None else d.price.amount * seconds / (self.years * YEAR * self.use)
        return energy, hardware


@dataclass(frozen=True)
class ServiceLimits:
    """What the user asks for: latency of a run in seconds, inferences per second, a budget in the currency of prices;
    None for no limit."""

    latency: float | None = None
    qps: float | None = None
    budget: float | None = None

    def check(self, batches: Iterable[int]) -> None:
        """Raises InputError for limits that contradict each other whatever the device."""
        least = min(batches)
        if self.latency is not None and self.qps is not None and (wait := (least - 1) / self.qps) > self.latency:
            raise InputError(
                f"--batch {least}, --qps {self.qps:g} and --latency {self.latency * 1e3:g}ms contradict each other: a "
                f"batch of {least} takes {wait:.3g} s to arrive; use a smaller batch"
            )

    def machines(self, p: Prediction) -> int | None:
        """Returns the number of devices for the inferences per second; None without that limit."""
        return None if self.qps is None else math.ceil(self.qps / p.throughput)

    def met(self, p: Prediction) -> dict[str, bool | None]:
        """Returns, for each limit, whether it is met by the prediction; None without the limit or the figure."""
        price, count = p.device.price, self.machines(p) or 1
        cost = None if price is None or self.budget is None else price.amount * count <= self.budget
        return {
            "latency": None if self.latency is None else p.seconds <= self.latency,
            "qps": None if self.qps is None else count == 1,
            "budget": cost,
        }

    def enough(self, p: Prediction) -> bool:
        """True if one device meets latency and rate, at least one of which is a limit, even at the interval's end."""
        if (self.latency is None and self.qps is None) or p.fits is False:
            return False
        in_time = self.latency is None or p.high <= self.latency
        return in_time and (self.qps is None or p.work.batch / p.high >= self.qps)


def predict(work: ModelWork, device: RatedDevice) -> Prediction:
    """Predicts a run of the work. Raises InputError if no peak of the device is known for a step."""
    steps = tuple(predict_step(s, device, work.memory) for s in work.steps)
    costs = device.profile.costs
    call = costs.run_us if any(s.launches or s.template == "host" for s in work.steps) else costs.brief_us
    seconds = sum(s.seconds for s in steps) + call * 1e-6
    factor = math.exp(SIGMAS * spread(steps, seconds, device))
    return Prediction(device, work, steps, seconds, seconds / factor, seconds * factor)


def predict_step(step: StepWork, device: RatedDevice, resident: float) -> StepPrediction:
    """Predicts a step. resident: bytes that a run touches, which decide the level that weights are read from; the
    step's own activations decide theirs. Without a peak, only the bytes of steps without weights count."""
    fit, costs = device.profile.fit(step.template, step.rival), device.profile.costs
    counted = step.operations and (step.product or device.peak_name(step.precision))
    compute = step.operations / (device.peak(step.precision) * fit.compute) if counted else 0.0
    moved = step.weights / device.bandwidth(resident) + step.activations / device.bandwidth(step.activations)
    if step.template == "host":
        start = costs.host_us
    else:
        start = costs.step_us * step.launches if step.launches else costs.brief_us
    return StepPrediction(step, compute, moved / fit.bandwidth, start * 1e-6)


def spread(steps: Iterable[StepPrediction], seconds: float, device: RatedDevice) -> float:
    """Returns the standard deviation of the logarithm of the latency: of whole networks, of the templates weighted by
    their time (errors of one template's steps go together), and of other devices than the measured one."""
    profile, by_fit = device.profile, dict[TemplateFit, float]()
    for s in steps:
        fit = profile.fit(s.work.template, s.work.rival)
        by_fit[fit] = by_fit.get(fit, 0.0) + s.seconds
    parts = [profile.run_spread, *(fit.spread * time / seconds for fit, time in by_fit.items())]
    if not device.own:
        parts.append(profile.transfer_spread)
    return math.hypot(*parts)


def helps(p: Prediction) -> list[str]:
    """Returns what would make the run faster, with figures where the model has them."""
    shares, advice = p.shares(), []
    if p.work.precision != "int8" and "int8" in p.device.peaks:
        narrow = predict(in_int8(replace(p.work, assumptions=())), p.device)
        if narrow.seconds < 0.9 * p.seconds:
            advice.append(f"INT8: {narrow.seconds * 1e3:.3g} ms")
    if shares["launches"] > DOMINANT:
        advice.append(f"a larger batch: starts of {len(p.steps)} steps take {shares['launches']:.0%}")
    weights = sum(s.work.weights for s in p.steps)
    if shares["bandwidth"] > DOMINANT and weights > sum(s.work.activations for s in p.steps):
        advice.append("a larger batch, which reads the weights as often for more inputs; narrower weights")
    if shares["bandwidth"] > DOMINANT:
        advice.append("a device with more bandwidth")
    if shares["compute"] > DOMINANT:
        advice.append(f"a device with a higher peak of {p.work.precision}")
    return advice
