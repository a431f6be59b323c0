"""Published points, the work of their networks, and predictions for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.advise.catalog import Catalog
from pelton.advise.devices import rate
from pelton.advise.predict import RatedDevice, predict
from pelton.advise.profile import DeviceProfile
from pelton.advise.tables import rows
from pelton.advise.work import ModelWork, import_batches, plan_work, scaled

from .networks import network

FILE = Path(__file__).with_name("points.toml")
TARGET = "cuda:sm_80"  # as `pelton advise` plans for GPUs
PLANNED = 8  # batch of plans; the work of other batches is scaled from it


@dataclass(frozen=True)
class Point:
    """A published figure of `count` devices of the catalog. sequence: tokens of an input without padding, None for
    pictures; padded: with it, where padding is cut off. value: of `unit`, inputs/s of all devices, or ms of a batch."""

    name: str
    device: str
    count: int
    model: str
    batch: int
    precision: str
    scenario: str
    value: float
    unit: str
    date: str
    source: str
    held_out: bool
    sequence: int | None = None
    padded: int | None = None

    @property
    def throughput(self) -> float:
        """Inferences per second of one device."""
        return self.value / self.count if self.unit == "inputs/s" else 1e3 * self.batch / self.value

    @property
    def shape(self) -> tuple[str, int | None, str]:
        """What decides the work, but for the batch: model, tokens, precision."""
        return self.model, self.sequence, self.precision


@dataclass(frozen=True)
class PointResult:
    """A point with the throughput that is predicted for it, and the interval of that."""

    point: Point
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The predicted over the published throughput, less one."""
        return self.predicted / self.point.throughput - 1

    @property
    def inside(self) -> bool:
        """True if the published figure is in the interval."""
        return self.low <= self.point.throughput <= self.high


def read_points(path: Path = FILE) -> list[Point]:
    """Returns the points of a file. Raises TypeError for keys that Point does not have, or for absent ones."""
    return [Point(**row) for row in rows(path, "point")]


def plan_works(points: Sequence[Point]) -> dict[tuple[Any, ...], ModelWork]:
    """Returns shape → work for a batch of PLANNED. Of each network, the import is shared."""
    works: dict[tuple[Any, ...], ModelWork] = {}
    for model, sequence in dict.fromkeys((p.model, p.sequence) for p in points):
        (size,) = import_batches(network(model, sequence, PLANNED), [PLANNED])
        for precision in dict.fromkeys(p.precision for p in points if (p.model, p.sequence) == (model, sequence)):
            works[model, sequence, precision] = plan_work(size, precision, TARGET)
    return works


def rated(name: str, catalog: Catalog, profile: DeviceProfile) -> RatedDevice:
    """Returns a device of the catalog with a profile. Raises ValueError if its roof is not published."""
    row, left = catalog.device(name), list[str]()
    devices = rate([row], {row.kind: profile}, left)
    if not devices:
        raise ValueError(left[0])
    return devices[0]


def evaluate(
    points: Sequence[Point], works: Mapping[tuple[Any, ...], ModelWork], profile: DeviceProfile, catalog: Catalog
) -> list[PointResult]:
    """Returns predictions for points, in their order."""
    devices, results = {name: rated(name, catalog, profile) for name in {p.device for p in points}}, []
    for point in points:
        p = predict(scaled(works[point.shape], point.batch), devices[point.device])
        results.append(PointResult(point, p.throughput, point.batch / p.high, point.batch / p.low))
    return results


def mean_error(results: Sequence[PointResult]) -> float:
    """Returns the mean of the errors' magnitudes."""
    return sum(abs(r.error) for r in results) / len(results)
