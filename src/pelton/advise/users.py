"""Kinds of user: what they start from where they ask for nothing else, and what they weigh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .predict import Prediction


@dataclass(frozen=True)
class UserProfile:
    """Defaults of `pelton advise --profile`. budget: of a device, US dollars; devices: names of the catalog; weigh:
    keys of WEIGHTS, the most important first; guides: the kinds of user of the guides of 2017 to 2021 that it covers.
    """

    name: str
    title: str
    batches: tuple[int, ...]
    precision: str
    devices: tuple[str, ...]
    weigh: tuple[str, ...]
    why: str
    budget: float | None = None
    count: int = 1
    guides: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Returns the data of `pelton advise --json`."""
        return {
            "name": self.name,
            "title": self.title,
            "batch": list(self.batches),
            "precision": self.precision,
            "devices": list(self.devices),
            "weigh": list(self.weigh),
            "budget": self.budget,
            "count": self.count,
            "why": self.why,
        }

    def sentence(self) -> str:
        """Returns the defaults, each of which an option overrides."""
        budget = f", budget {self.budget:g} USD" if self.budget else ""
        count = f", {self.count} devices a machine" if self.count > 1 else ""
        batches = ",".join(map(str, self.batches))
        return (
            f"profile {self.name} ({self.title}): batch {batches}, {self.precision}{budget}{count}, "
            f"{len(self.devices)} devices; {self.why} (options override each)"
        )


PROFILES = (
    UserProfile(
        "starter",
        "first networks, little money",
        (1, 8),
        "fp16",
        ("RTX 3050 8GB", "RTX 3060 12GB", "RTX 4060", "RTX 5050", "RTX 5060"),
        ("memory", "value"),
        "memory comes first, since a network that does not fit does not run; then speed for the price",
        500.0,
        guides=("little money", "almost no money, or to try", "to start research", "good for its price, cheap"),
    ),
    UserProfile(
        "kaggle",
        "contests",
        (1, 32),
        "fp16",
        ("RTX 3060 12GB", "RTX 4060 Ti 16GB", "RTX 4070 Super", "RTX 5060 Ti 16GB", "RTX 5070", "RTX 5070 Ti"),
        ("value", "memory"),
        "many trials in little time: speed for the price, and memory for what others publish",
        1000.0,
        guides=("contests", "best for its price, dear"),
    ),
    UserProfile(
        "cv",
        "research in vision",
        (1, 32),
        "fp16",
        ("RTX 3090", "RTX 4080 Super", "RTX 4090", "RTX 5080", "RTX 5090", "RTX 6000 Ada"),
        ("speed", "memory"),
        "convolutions are bound by compute; deep networks and large pictures need memory; a second card later needs "
        "blowers or water",
        2500.0,
        guides=("research in vision", "data over 250 GB"),
    ),
    UserProfile(
        "nlp",
        "research in language",
        (1, 8),
        "fp16",
        ("RTX 3090", "RTX 4090", "RTX 5090", "RTX A6000", "RTX 6000 Ada", "NVIDIA RTX PRO 6000 Blackwell Workstation"),
        ("memory", "bandwidth", "speed"),
        "decoders read all weights for each token: memory and its bandwidth come first, in FP16",
        2500.0,
        guides=("research in language",),
    ),
    UserProfile(
        "startup",
        "predictions for customers",
        (1, 8, 32),
        "int8",
        ("RTX 4090", "RTX 5090", "Tesla T4", "NVIDIA A10", "L4", "L40S"),
        ("million", "value", "memory"),
        "the cost of a prediction counts, and whether the machine stands in a data center, where GeForce drivers are "
        "not licensed",
        10000.0,
    ),
    UserProfile(
        "cluster",
        "many machines",
        (32, 128),
        "fp16",
        (
            "L40S",
            "NVIDIA A100 PCIe 80GB",
            "NVIDIA H100 PCIe 80GB",
            "NVIDIA H100 NVL",
            "NVIDIA H200 SXM",
            "NVIDIA B200 SXM",
        ),
        ("speed", "bandwidth", "million"),
        "more than a choice of cards: network, cooling and a scheduler; cards for data centers",
        count=8,
        guides=("a cluster",),
    ),
)


def value(p: Prediction) -> float | None:
    """Inferences per second for a unit of the price."""
    return None if p.device.price is None else p.throughput / p.device.price.amount


def of_million(p: Prediction, costs: Any) -> float | None:
    """The cost of a million inferences, negative: more is better."""
    energy, hardware = costs.of_million(p)
    return None if energy is None or hardware is None else -(energy + hardware)


# key → (what it is, figure of a prediction, its text)
WEIGHTS: dict[str, tuple[str, Callable[[Prediction, Any], float | None], Callable[[float], str]]] = {
    "value": ("inputs/s for the price", lambda p, costs: value(p), lambda x: f"{x:.3g} for 1"),
    "memory": ("memory", lambda p, costs: p.device.memory_gb, lambda x: f"{x:g} GB"),
    "bandwidth": ("bandwidth of the memory", lambda p, costs: p.device.levels[-1].gbs, lambda x: f"{x:g} GB/s"),
    "speed": ("inputs/s", lambda p, costs: p.throughput, lambda x: f"{x:.0f}"),
    "million": ("cost of a million", of_million, lambda x: f"{-x:.3g}"),
}


def best_by(profile: UserProfile, predictions: Sequence[Prediction], costs: Any) -> list[tuple[str, str]]:
    """Returns the best device for each thing that a profile weighs, and a sentence. predictions: those within
    limits."""
    said = []
    for key in profile.weigh:
        what, figure, text = WEIGHTS[key]
        rated = [(x, p) for p in predictions if (x := figure(p, costs)) is not None]
        if rated:
            x, p = max(rated, key=lambda pair: pair[0])
            batch = f", batch {p.work.batch}" if key in ("value", "speed", "million") else ""
            said.append((p.device.name, f"best by {what}: {p.device.name} ({text(x)}{batch})"))
    return said
