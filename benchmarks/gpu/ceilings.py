"""Limits of the GPU: copied bytes, matrix products, and the cost of kernel launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

COPIED = 4 << 30  # bytes, many times the caches
WIDTH = 8192  # of the matrices, whose three take more than the caches, too
ROUNDS = 20
NODES = 1000


def median(run: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds by events, and their spread: the slowest by the fastest."""
    for _ in range(3):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(ROUNDS)]
    for begin, end in marks:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in marks]
    return statistics.median(times), max(times) / min(times)


class Ceilings:
    """Measured through torch, twice each, on random numbers: zeros go faster."""

    def copy(self) -> list[dict[str, float]]:
        """Bytes read and written per second, from one place of the GPU's memory to another."""
        source = torch.randint(-1 << 30, 1 << 30, (COPIED // 4,), dtype=torch.int32, device="cuda")
        to = torch.empty_like(source)
        return [
            {"TB_per_s": 2 * COPIED / ms / 1e9, "spread": spread}
            for ms, spread in (median(lambda: to.copy_(source)) for _ in range(2))
        ]

    def product(self, kind: str) -> list[dict[str, float]]:
        """Operations per second of a product of square matrices in f16, bf16, or f32 by way of tf32."""
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}[kind]
        a, b = (torch.randn(WIDTH, WIDTH, device="cuda").to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        return [
            {"TFLOP_per_s": 2 * WIDTH**3 / ms / 1e9, "spread": spread}
            for ms, spread in (median(lambda: torch.mm(a, b, out=out)) for _ in range(2))
        ]

    def starts(self) -> dict[str, float]:
        """What a kernel costs that does nothing to speak of: launched by itself, and as a node of a graph whose nodes
        wait for each other."""
        x = torch.zeros(32, device="cuda")
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(NODES):
                x.add_(1)
        replay, _ = median(graph.replay)
        start = time.perf_counter()
        for _ in range(NODES):
            x.add_(1)
        torch.cuda.synchronize()
        return {"graph_node_us": 1e3 * replay / NODES, "launch_us": 1e6 * (time.perf_counter() - start) / NODES}
