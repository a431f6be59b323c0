"""Calls a server through KServe's clients, checks the answers with numpy, and prints a line for each.

Runs in a venv of its own: python kserve_calls.py URL GRPC_ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

MODEL = "simple"


def _request(binary: bool, seed: int) -> tuple[InferRequest, dict[str, np.ndarray]]:
    draw = np.random.default_rng(seed)
    a, b = (draw.integers(-1000, 1000, (1, 16)).astype(np.int32) for _ in range(2))
    inputs = []
    for i, array in enumerate((a, b)):
        tensor = InferInput(f"INPUT{i}", list(array.shape), "INT32")
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    return InferRequest(MODEL, inputs, request_id=str(seed)), {"OUTPUT0": a + b, "OUTPUT1": a - b}


def _check(response: Any, expected: dict[str, np.ndarray]) -> None:
    found = {o.name: o.as_numpy() for o in response.outputs}
    assert found.keys() == expected.keys(), found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name].reshape(array.shape), array)


async def _rest(url: str) -> dict[str, Callable[[], Awaitable[None]]]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))

    async def infer(binary: bool) -> None:
        for seed in range(20):
            request, expected = _request(binary, seed)
            _check(await client.infer(url, request, model_name=MODEL), expected)

    async def health() -> None:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, MODEL)

    async def many() -> None:
        pairs = [_request(seed % 2 == 0, seed) for seed in range(64)]
        answers = await asyncio.gather(*(client.infer(url, r, model_name=MODEL) for r, _ in pairs))
        for answer, (_, expected) in zip(answers, pairs):
            _check(answer, expected)

    return {
        "REST: infer, JSON": lambda: infer(False),
        "REST: infer, binary": lambda: infer(True),
        "REST: live, ready, model ready": health,
        "REST: 64 at once": many,
    }


async def _grpc(address: str) -> dict[str, Callable[[], Awaitable[None]]]:
    client = InferenceGRPCClient(address)

    async def infer(binary: bool) -> None:
        for seed in range(20):
            request, expected = _request(binary, seed)
            _check(await client.infer(request), expected)

    async def health() -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(MODEL)

    return {
        "gRPC: infer, typed contents": lambda: infer(False),
        "gRPC: infer, raw": lambda: infer(True),
        "gRPC: live, ready, model ready": health,
    }


async def main(url: str, address: str) -> int:
    failed = 0
    for name, call in {**await _rest(url), **await _grpc(address)}.items():
        begun = time.monotonic()
        try:
            await asyncio.wait_for(call(), 60)
            print(f"pass\t{name}", flush=True)
        except Exception as e:
            failed += 1
            reason = " ".join(f"{type(e).__name__}: {e}".split())[:300]
            print(f"fail\t{name}\t{reason} after {time.monotonic() - begun:.1f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
