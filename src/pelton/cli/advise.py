"""`pelton advise`: which machine for this model; predictions from its plan, beside figures of the catalog."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, Needs
from pelton.system import files

from . import advise_machine, advise_page, advise_routes, arguments, output, parsers, text

if TYPE_CHECKING:
    from pelton.advise.advice import ModelAdvice
    from pelton.advise.predict import Prediction

EXAMPLES = """examples:
  pelton advise resnet50.onnx                                       this CPU, and GPUs since 2020
  pelton advise resnet50.onnx --batch 1,32 --devices "RTX 4090,L4,cpu:this" --precision int8
  pelton advise resnet50.onnx --latency 10ms --qps 1000 --budget 2000   what meets these limits, first
  pelton advise resnet50.onnx --catalog mine.toml --devices "My card"   devices and prices of your own
  pelton advise resnet50.onnx --html advice.html                    price against performance, as a page
  pelton advise --measure -o device.toml                            measures this machine (minutes), writes a profile
  pelton advise resnet50.onnx --devices device.toml                 predicts for the measured machine
  pelton advise resnet50.onnx --devices "RTX 4090" --count 4 --dataset 300GB   the machine around four cards
  pelton advise resnet50.onnx --devices L4 --rent-price 0.8 --hours 200   rent or buy
  pelton advise resnet50.onnx --profile startup                     defaults for a kind of user
  pelton advise --from keras --to cortex-m7                         the commands from a format to a place

Nothing of the model is compiled or run: latency is predicted from its plan, with an interval that should hold nine of
ten networks. Each figure is measured (here), predicted, or quoted (by the maker, in the catalog). docs/advise.md says
how."""
PRECISIONS = ("fp32", "fp16", "int8")
TARGETS = {"cpu": "cpu", "gpu": "cuda:sm_80"}  # the plans that predictions for CPUs and for all others are made from
MARKS = {"measured": "m", "quoted": "q", "predicted": "p"}
HINTS = ("bound by", "helps", "notes")  # the last columns
ADVICE = 44  # columns of the last column


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "advise",
        help="predict a model's latency and cost on devices",
        description="Predicts latency, memory and cost of a model on devices, or measures this machine.",
        epilog=EXAMPLES,
    )
    command.add_argument("model", nargs="?", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument("--batch", type=batches, metavar="N,…", help="batches (default: the model's own, or 1)")
    command.add_argument("--precision", choices=PRECISIONS, help="of convolutions and products (default fp32)")
    command.add_argument(
        "--devices", type=names, metavar="NAME,…", help="names or patterns of the catalog, profiles (.toml), cpu:this"
    )
    command.add_argument("--catalog", metavar="FILE", help="devices and prices of your own, over those of the catalog")
    limits = command.add_argument_group("limits")
    limits.add_argument("--latency", type=latency, metavar="TIME", help="most time of a run, such as 10ms or 0.5s")
    limits.add_argument("--qps", type=parsers.positive, metavar="N", help="inferences per second")
    limits.add_argument("--budget", type=parsers.positive, metavar="PRICE", help="for devices, in US dollars")
    costs = command.add_argument_group("costs")
    for flag, value, what in (
        ("--energy-price", 0.25, "price of a kWh"),
        ("--years", 3.0, "years until a device is replaced"),
        ("--use", 0.5, "share of the time in which it works"),
    ):
        costs.add_argument(
            flag, type=parsers.positive, default=value, metavar="X", help=f"{what} (default {value:g}, an assumption)"
        )
    command.add_argument("--layers", action="store_true", help="every step of the first row (JSON: of all rows)")
    command.add_argument("--html", metavar="FILE", help="write a page with a chart of price against performance")
    command.add_argument("--plot", metavar="FILE.svg", help="write the chart alone")
    command.add_argument("--measure", action="store_true", help="measure this machine instead, into the profile of -o")
    command.add_argument("-o", "--output", metavar="FILE", help="--measure: the profile to write")
    advise_machine.add(command)
    advise_routes.add(command)
    arguments.add_part(command)
    output.add_json(command)
    return command


def batches(given: str) -> list[int]:
    """Parses batches, such as 1,32."""
    read = parsers.int_in_range(1, 1 << 20, "batch")
    return sorted({read(part.strip()) for part in given.split(",")})


def names(given: str) -> list[str]:
    """Parses names of devices."""
    parts = [part.strip() for part in given.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, got {given!r}")
    return parts


def latency(given: str) -> float:
    """Parses a time above zero in seconds: 10ms, 250us, 0.5s; without a unit, in milliseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|ms|s|)", given.strip())
    seconds = float(match[1]) * {"us": 1e-6, "µs": 1e-6, "s": 1.0}.get(match[2], 1e-3) if match else 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"expected a time above 0, such as 10ms or 0.5s, got {given!r}")
    return seconds


def main(args: argparse.Namespace) -> None:
    if args.source is not None or args.target is not None:
        advise_routes.main(args)
        return
    if args.measure:
        measure(args)
        return
    if args.model is None:
        raise InputError("a model is missing: `pelton advise model.onnx`, or `pelton advise --measure -o device.toml`")
    if args.output is not None:
        raise InputError("-o is the profile of --measure; a page is --html FILE")
    if args.use > 1:
        raise InputError(f"--use is a share of the time, at most 1, got {args.use:g}")
    if args.plot and not args.plot.lower().endswith(".svg"):
        raise InputError(f"--plot writes SVG: name a file that ends in .svg, not {args.plot!r}")
    for flag, path in (("--html", args.html), ("--plot", args.plot)):
        if path and (why := files.rejection(path)):
            raise InputError(f"{flag} {path}: {why}")
    advise_machine.check(args)
    advice, more = predicted(args)
    if args.html:
        files.write(args.html, [advise_page.page(advice, args.model, more.sentences()).encode()])
    if args.plot:
        files.write(args.plot, [advise_page.chart(advice).encode()])
    output.emit(args, {**advice.json(args.layers), **more.json(), "model": args.model})
    if not args.json:
        print("\n".join([*lines(advice, args.layers), *more.lines()]))


def predicted(args: argparse.Namespace) -> tuple[ModelAdvice, advise_machine.Surroundings]:
    """Returns the advice for a model, and that for the machine around."""
    with Needs("advice on machines"):
        from pelton.advise.advice import advise, plan_kind
        from pelton.advise.catalog import load
        from pelton.advise.devices import choose
        from pelton.advise.predict import RunningCosts, ServiceLimits
        from pelton.advise.work import import_batches, input_bytes, plan_work
    user = advise_machine.apply_profile(args)
    precision = args.precision or "fp32"
    limits = ServiceLimits(args.latency, args.qps, args.budget)
    limits.check(args.batch or [1])
    catalog, costs = load(args.catalog), RunningCosts(args.energy_price, args.years, args.use)
    devices, left = choose(args.devices or [], catalog)
    overrides: dict[str, Any] = {"shapes": arguments.shapes(args) or None, "outputs": tuple(args.outputs) or None}
    sizes = import_batches(args.model, args.batch, **overrides)
    works = {kind: [plan_work(size, precision, TARGETS[kind]) for size in sizes] for kind in {*map(plan_kind, devices)}}
    advice = advise(works, devices, limits, costs, left)
    inputs = {size.batch: input_bytes(size) for size in sizes}
    return advice, advise_machine.surroundings(args, advice, catalog, inputs, user)


def measure(args: argparse.Namespace) -> None:
    """Measures this machine and writes its profile."""
    if args.model is not None:
        raise InputError("--measure measures networks of its own; leave out the model")
    if args.output is None:
        raise InputError("--measure writes a profile: add -o device.toml")
    if why := files.rejection(args.output):
        raise InputError(f"-o {args.output}: {why}")
    with Needs("measuring this machine"):
        from pelton.advise.measure import measure_machine
        from pelton.advise.profile import save_profile
    profile = measure_machine(tell=None if args.quiet else lambda name: print(f"measuring {name}"))
    save_profile(profile, args.output)
    rows = [vars(n) for n in profile.networks]
    output.emit(args, {"profile": args.output, "name": profile.name, "networks": rows})
    if not args.json:
        print(f"{args.output}: {profile.name}; networks that it was fitted on:")
        table = [("network", "measured", "predicted")]
        for n in profile.networks:
            table.append((n.name, text.duration(n.measured_ms * 1e6), text.duration(n.predicted_ms * 1e6)))
        print(text.table(table, "lrr", indent="  "))


def lines(advice: ModelAdvice, layers: bool) -> list[str]:
    """Returns the table of predictions, and the sentences below it."""
    from pelton.advise.advice import notes

    head = ("device", "batch", "latency (p)", "interval (p)", "inputs/s (p)", "memory (p)", "roof", "W (q)")
    rows: list[tuple[str, ...]] = [(*head, "price (q)", "1M energy (p)", "1M device (p)", *HINTS)]
    said: dict[str, int] = {}
    for p in advice.predictions:
        marks = [str(said.setdefault(note, len(said) + 1)) for note in notes(p)]
        rows.append((*cells(p, advice), ",".join(marks)))
    out = [text.table(rows, "lrrrrrlrrrrlll"), "p predicted, q quoted by the maker, m measured here"]
    out += [f"{number} {note}" for note, number in said.items()]
    c = advice.costs
    out.append(
        f"costs of a million inferences: a kWh at {c.energy:g}, all of the quoted power; a device over {c.years:g} "
        f"years, at work {c.use:.0%} of the time (assumptions: --energy-price, --years, --use)"
    )
    if advice.left:
        out.append(f"left out: {text.count(len(advice.left), 'device')} without figures, such as {advice.left[0]}")
    out += advice.sentences()
    return [*out, *(layer_lines(advice.predictions[0]) if layers else [])]


def cells(p: Prediction, advice: ModelAdvice) -> Sequence[str]:
    """Returns the cells of a row, without its notes."""
    from pelton.advise.predict import helps

    d, (energy, hardware) = p.device, advice.costs.of_million(p)
    fits = "" if p.fits is not False else " (too much)"
    shares = p.shares()
    return (
        d.name,
        str(p.work.batch),
        text.duration(p.seconds * 1e9),
        f"{text.duration(p.low * 1e9)} to {text.duration(p.high * 1e9)}",
        f"{p.throughput:.4g}",
        text.size(p.work.memory) + fits,
        MARKS[d.roof],
        "–" if d.power_w is None else f"{d.power_w:g}",
        "–" if d.price is None else f"{d.price.amount:g} {d.price.currency} {d.price.date[:4]}",
        "–" if energy is None else f"{energy:.3g}",
        "–" if hardware is None else f"{hardware:.3g}",
        f"{p.bound} {shares[p.bound]:.0%}",
        text.shortened("; ".join(helps(p)), ADVICE),
    )


def layer_lines(p: Prediction) -> list[str]:
    """Returns the steps of a prediction as a table."""
    rows = [("time", "share", "bound by", "operations", "bytes", "template", "layers")]
    for s in p.steps:
        share, name = f"{s.seconds / p.seconds:.1%}", text.shortened(s.work.name, ADVICE)
        figures = (f"{s.work.operations:.3g}", text.size(s.work.bytes))
        rows.append((text.duration(s.seconds * 1e9), share, s.bound, *figures, s.work.template, name))
    return ["", f"steps on {p.device.name}, batch {p.work.batch} (predicted)", text.table(rows, "rrlrrll")]
