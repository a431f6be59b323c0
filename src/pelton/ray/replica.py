"""A replica of an engine in Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.compat.rows import RowRunner
from pelton.errors import DeadlineError, InputError, QueueFullError
from pelton.runtime.batching import Batching
from pelton.runtime.queue import AsyncQueue


class Replica:
    """Joins concurrent requests to batches of an engine; parameters as for `pelton.ray.deployment`."""

    def __init__(self, path: str, batching: Batching, outputs: Sequence[str] | None, jobs: int, threads: int):
        self._rows = RowRunner(path, outputs, threads)
        # a batch of one row is a run, which engines of fixed sizes do, too
        joined = batching if batching.max_batch > 1 else None
        engine = self._rows.shared.engine
        self._queue = AsyncQueue(engine, jobs, threads, batching=joined, slo=batching.slo)

    async def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the outputs of one request, by name. inputs: arrays by name, each [rows, …].

        Raises InputError for inputs that do not fit, QueueFullError and DeadlineError for a request that would be late.
        """
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs are arrays by name, got {type(inputs).__name__}")
        arrays, _ = self._rows.arrays(inputs)
        results = await self._queue.run_async(arrays, share_inputs=True)
        return {name: results[name] for name in self._rows.outputs}

    async def __call__(self, request: Any) -> Any:
        """Answers a request over HTTP."""
        from starlette.responses import JSONResponse  # part of ray[serve]

        try:
            body = await request.json()
            if not isinstance(body, Mapping) or not isinstance(body.get("inputs"), Mapping):
                raise InputError('the body is {"inputs": {name: rows}}')
            results = await self.run(body["inputs"])
            return JSONResponse({"outputs": {name: array.tolist() for name, array in results.items()}})
        except QueueFullError as e:
            after = str(max(1, round(e.retry_after)))
            return JSONResponse({"error": str(e)}, 503, headers={"Retry-After": after})
        except DeadlineError as e:
            return JSONResponse({"error": str(e)}, 504)
        except ValueError as e:  # JSON's errors and InputError are
            return JSONResponse({"error": str(e)}, 400)
