"""`pelton advise --count, --dataset, --rent-price, --profile`: the machine around devices, and kinds of user."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, near

from . import parsers, text

if TYPE_CHECKING:
    from pelton.advise.advice import ModelAdvice
    from pelton.advise.catalog import Catalog
    from pelton.advise.dataset import DatasetAdvice
    from pelton.advise.machine import CopyTime, MachineReport
    from pelton.advise.users import UserProfile

MOST = 1024  # devices of a machine
WIDTH = 118
SHOWN = 3  # devices whose machine is described, the best first


@dataclass(frozen=True)
class Surroundings:
    """What is asked beside predictions: a kind of user with the best devices for it, machines, a data set."""

    user: UserProfile | None
    best: tuple[str, ...]
    machines: tuple[MachineReport, ...]
    left: int
    data: DatasetAdvice | None

    def sentences(self) -> list[str]:
        """Returns the lines below the table."""
        said = [self.user.sentence(), *self.best] if self.user else []
        for m in self.machines:
            assumed = " (an assumption: --cpu)" if m.assumed_cpu else ""
            said.append(f"machine with {m.count} × {m.device} and {m.cpu}{assumed}")
            for p in m.parts:
                said.append(f"  {'!' if p.ok is False else ' '} {p.name}: {p.text}")
                said += [f"    {copy_line(c)}" for c in m.copies] if p.name == "lanes" else []
        if self.left:
            said.append(f"machines of {text.count(self.left, 'further device')}: --json has all")
        return [*said, *(self.data.sentences() if self.data else [])]

    def lines(self) -> list[str]:
        """Returns the sentences, wrapped."""
        indents = [(s, " " * (len(s) - len(s.lstrip(" !")) + 2)) for s in self.sentences()]
        return [line for s, more in indents for line in textwrap.wrap(s, WIDTH, subsequent_indent=more)]

    def json(self) -> dict[str, Any]:
        """Returns the data of `--json`, only what was asked."""
        return {
            **({"user": {**self.user.json(), "best": list(self.best)}} if self.user else {}),
            **({"machines": [m.json() for m in self.machines]} if self.machines else {}),
            **({"dataset": self.data.json()} if self.data else {}),
        }


def add(command: argparse.ArgumentParser) -> None:
    machine = command.add_argument_group("the machine around")
    machine.add_argument(
        "--count", type=parsers.int_in_range(1, MOST, "number of devices"), metavar="N", help="devices in one machine"
    )
    machine.add_argument("--cpu", metavar="NAME", help="the machine's CPU, of the catalog")
    machine.add_argument("--dataset", type=parsers.size, metavar="SIZE", help="data set that is read, such as 300GB")
    machine.add_argument("--rent-price", type=parsers.positive, metavar="X", help="price of an hour of a rented device")
    machine.add_argument("--hours", type=parsers.positive, metavar="N", help="hours of use a month, for --rent-price")
    machine.add_argument("--profile", metavar="USER", help="starter, kaggle, cv, nlp, startup or cluster: defaults")


def check(args: argparse.Namespace) -> None:
    """Raises InputError for options that need another."""
    if args.hours is not None and args.rent_price is None:
        raise InputError("--hours is for rent or buy: add --rent-price, the price of an hour")
    if args.dataset == 0:
        raise InputError("--dataset 0: expected the size of the data, such as 300GB")
    if args.hours is not None and args.hours > 744:
        raise InputError(f"--hours {args.hours:g}: a month has at most 744 hours")


def apply_profile(args: argparse.Namespace) -> UserProfile | None:
    """Fills options that were not given from those of the kind of user; returns it. Raises InputError if unknown."""
    if args.profile is None:
        return None
    from pelton.advise.users import PROFILES

    known = {p.name: p for p in PROFILES}
    if args.profile not in known:
        raise InputError(f"--profile {args.profile}: unknown{near(args.profile, known)}; known: {', '.join(known)}")
    user = known[args.profile]
    args.batch = args.batch or list(user.batches)
    args.precision = args.precision or user.precision
    args.devices = args.devices or list(user.devices)
    args.budget = args.budget or user.budget
    args.count = args.count or user.count
    return user


def surroundings(
    args: argparse.Namespace,
    advice: ModelAdvice,
    catalog: Catalog,
    inputs: Mapping[int, float],
    user: UserProfile | None,
) -> Surroundings:
    """Returns what the options ask for beside predictions. Raises InputError if no device is of the catalog."""
    from pelton.advise.advice import fulfils
    from pelton.advise.dataset import dataset_advice
    from pelton.advise.users import best_by

    best: list[tuple[str, str]] = []
    if user is not None:
        inside = [p for p in advice.predictions if fulfils(advice.limits, p)] or list(advice.predictions)
        best = best_by(user, inside, advice.costs)
    asked = any(x is not None for x in (args.count, args.cpu, args.rent_price))
    first = list(dict.fromkeys(name for name, _ in best))
    machines = reports(args, advice, catalog, inputs, first) if asked else ()
    shown = machines if args.json else machines[: len(first) or SHOWN]
    data = dataset_advice(args.dataset) if args.dataset else None
    return Surroundings(user, tuple(text for _, text in best), tuple(shown), len(machines) - len(shown), data)


def reports(
    args: argparse.Namespace, advice: ModelAdvice, catalog: Catalog, inputs: Mapping[int, float], first: Sequence[str]
) -> tuple[MachineReport, ...]:
    """Returns the machine around each GPU of the catalog: those named `first`, then by their predictions."""
    from pelton.advise.machine import RentalPrices, around

    rental = None if args.rent_price is None else RentalPrices(args.rent_price, args.hours)
    rows = {row.name: row for row in catalog}
    gpus = [p.device.name for p in advice.predictions if p.device.kind == "gpu"]
    names = dict.fromkeys([*(name for name in first if name in gpus), *gpus])
    out = []
    for name in names:
        if name not in rows:
            continue
        own = [p for p in advice.predictions if p.device.name == name]
        machines = min((n for p in own if (n := advice.limits.machines(p)) is not None), default=None)
        out.append(
            around(
                rows[name],
                args.count or 1,
                catalog,
                own,
                inputs,
                advice.costs,
                cpu=args.cpu,
                rental=rental,
                machines=machines,
                dataset=args.dataset or 0,
            )
        )
    if not out:
        raise InputError("the machine around devices (--count, --cpu, --rent-price) needs a GPU of the catalog")
    return tuple(out)


def copy_line(c: CopyTime) -> str:
    """Returns the time to copy a batch's inputs, in a line."""
    alone = "" if c.full == c.here else f", {text.duration(c.full * 1e9)} over all its lanes"
    return (
        f"inputs of batch {c.batch}: {text.size(c.bytes)}, {text.duration(c.here * 1e9)} to copy{alone}, "
        f"{c.here / c.run:.0%} of a run of {text.duration(c.run * 1e9)} (p)"
    )
