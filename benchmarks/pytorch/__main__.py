"""Times networks of PyTorch on Pelton beside eager and inductor, and writes the table of docs/formats.md.

python -m benchmarks.pytorch [--level 3] [--threads 2] [--rounds 40] [--page docs/formats.md] [NETWORK …]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- python -m benchmarks.pytorch: begin -->", "<!-- python -m benchmarks.pytorch: end -->"
CALLS = 20_000  # of the smallest module, to time a call


def measure(name: str, level: int, threads: int, rounds: int) -> dict[str, Any]:
    """One network: agreement of a built engine, and milliseconds in alternation."""
    import torch
    from torch.utils import _pytree

    import pelton

    from .networks import NETWORKS

    torch.set_num_threads(threads)
    made = NETWORKS[name](False)
    module, inputs = made.module, made.inputs
    result: dict[str, Any] = {"name": name}
    with torch.no_grad():
        graph = _pytree.tree_leaves(inputs)
        begin = time.perf_counter()
        engine = pelton.build(module, example_inputs=inputs, level=0, threads=threads)
        result["build s"] = time.perf_counter() - begin
        found = engine.run({p.name: a.numpy() for p, a in zip(engine.inputs, graph)})
        ways: dict[str, Callable[..., Any]] = {"eager": module}
        for way, options in (("inductor", {}), ("pelton", {"options": {"level": level}})):
            ways[way] = torch.compile(module, backend=way, **options)
            begin = time.perf_counter()
            ways[way](**inputs)
            result[f"{way} first s"] = time.perf_counter() - begin
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, call in ways.items():
                begin = time.perf_counter()
                call(**inputs)
                times[way].append(1e3 * (time.perf_counter() - begin))
        result.update({f"{way} ms": statistics.median(found) for way, found in times.items()})
        fast = [t for t in _pytree.tree_leaves(ways["pelton"](**inputs)) if isinstance(t, torch.Tensor)]
        exact = module.double()(**_pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, inputs))
        exact = [t for t in _pytree.tree_leaves(exact) if isinstance(t, torch.Tensor)]
    result["built"] = _error([torch.as_tensor(a) for a in found.values()], exact)
    result["compiled"] = _error(fast, exact)
    return result


def _error(found: list[Any], exact: list[Any]) -> float:
    """The largest error of all outputs, by their largest elements."""
    return max(float((a.double() - b).abs().max() / b.double().abs().max()) for a, b in zip(found, exact, strict=True))


def overhead(parameters: int) -> dict[str, float]:
    """Microseconds of a call of the smallest modules: `parameters` scalars, one product of 8 by 8."""
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.scalars = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(parameters))

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.linear(x))
            return x * sum(self.scalars) if len(self.scalars) else x

    module, x = Small().eval(), torch.randn(1, 8)
    ways: dict[str, Callable[..., Any]] = {
        "eager": module,
        "inductor": torch.compile(module, backend="inductor"),
        "pelton": torch.compile(module, backend="pelton", options={"level": 0}),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    with torch.no_grad():
        for call in ways.values():
            call(x)
        for _ in range(10):
            for way, call in ways.items():
                begin = time.perf_counter()
                for _ in range(CALLS // 10):
                    call(x)
                found[way].append(1e6 * (time.perf_counter() - begin) / (CALLS // 10))
    return {way: statistics.median(times) for way, times in found.items()}


def table(results: list[dict[str, Any]], calls: dict[str, dict[str, float]], level: int, threads: int) -> Iterator[str]:
    import torch

    import pelton
    from pelton.backends.cpu import describe

    yield (
        f"{describe()['model']}, {threads} threads, batch 1, level {level}, torch {torch.__version__}, Python"
        f" {platform.python_version()}, Pelton {pelton.__version__}."
    )
    yield ""
    yield "| module | error, built | error, compiled | eager ms | inductor ms | Pelton ms | faster than inductor |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in results:
        if "failed" in r:
            yield f"| {r['name']} | {r['failed']} | | | | | |"
            continue
        yield (
            f"| {r['name']} | {r['built']:.1e} | {r['compiled']:.1e} | {r['eager ms']:.2f} | {r['inductor ms']:.2f}"
            f" | {r['pelton ms']:.2f} | {r['inductor ms'] / r['pelton ms']:.2f} |"
        )
    yield ""
    yield "| a call of | eager µs | inductor µs | Pelton µs |"
    yield "| --- | ---: | ---: | ---: |"
    for what, found in calls.items():
        yield f"| {what} | {found['eager']:.1f} | {found['inductor']:.1f} | {found['pelton']:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.networks[0], given.level, given.threads, given.rounds)))
        return
    import torch

    from .networks import NETWORKS

    torch.set_num_threads(given.threads)
    results = []
    for name in given.networks or NETWORKS:  # each in a process of its own
        limits = ["--level", str(given.level), "--threads", str(given.threads), "--rounds", str(given.rounds)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.pytorch", "--one", name, *limits], stdout=subprocess.PIPE, text=True
        )
        lines = done.stdout.splitlines()
        results.append(json.loads(lines[-1]) if done.returncode == 0 else {"name": name, "failed": "failed"})
        print(results[-1], file=sys.stderr, flush=True)
    calls = {"one product of 8 by 8": overhead(0), "the same with 200 scalars as parameters": overhead(200)}
    text = "\n".join(table(results, calls, given.level, given.threads))
    if given.page is None:
        print(text)
        return
    before, _, rest = given.page.read_text().partition(BEGIN)
    given.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
