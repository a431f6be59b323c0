"""Engines in Ray: actors for `ray.data`, and deployments for Ray Serve.

    dataset.map_batches(pelton.ray.Predictor, fn_constructor_kwargs={"path": "/models/net.pelton"}, concurrency=8)

    ray.serve.run(pelton.ray.deployment("/models/net.pelton", max_batch=32, slo=0.02, num_replicas=8))

Pelton and the file must be on every node, at the same path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.compat.rows import RowRunner, absolute, check_threads, kept_columns, names_of
from pelton.errors import EngineError, InputError, Needs

from .replica import Replica

__all__ = ["Predictor", "deployment"]

FEWEST_REQUESTS = 8


class Predictor:
    """Runs an engine on batches of a dataset, in an actor of `Dataset.map_batches`.

    path: of the engine's file on every node. outputs: names of outputs; default: all.
    threads: 1 to 256 per run; with `num_cpus=n` for the actor, n of them.
    columns: input → column; default: the column of its name. keep: columns that stay beside the outputs.

    Batches are of any size, in `batch_format="numpy"`, the default; rows may be flat. Raises InputError for names that
    the engine or the batch does not have and for columns that do not fit, EngineError as `pelton.load` does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        outputs: str | Sequence[str] | None = None,
        threads: int = 1,
        *,
        columns: Mapping[str, str] | None = None,
        keep: str | Sequence[str] = (),
    ):
        self._runner = RowRunner(path, outputs, threads, columns)
        self._keep = names_of(keep, "keep") or ()

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of all rows, by name, and the columns to keep."""
        if not isinstance(batch, Mapping):
            raise InputError(f'a batch is a dictionary of arrays, got {type(batch).__name__}; use batch_format="numpy"')
        return {**kept_columns(batch, self._keep, self._runner), **self._runner.run(batch)}


def deployment(
    path: str | os.PathLike[str],
    max_batch: int = 32,
    slo: float | None = None,
    *,
    outputs: str | Sequence[str] | None = None,
    jobs: int = 1,
    threads: int = 1,
    **options: Any,
) -> Any:
    """Returns an application of Ray Serve with one deployment, for `ray.serve.run`.

    path: of the engine's file on every node.
    max_batch: most rows of a run, which several requests share; more than 1 needs an engine with a dynamic batch.
    slo: seconds from a request's arrival at its replica to its result, see `pelton.Batching`; requests that cannot be
        answered in time are rejected with QueueFullError (503) or fail with DeadlineError (504).
    outputs: names of outputs; default: all. jobs, threads: runs at once of a replica, and threads of each.
    options: for `ray.serve.deployment`, such as num_replicas, autoscaling_config and ray_actor_options. Defaults:
        jobs × threads CPUs for a replica, and two batches of requests for each job.

    Over HTTP, POST {"inputs": {name: rows}}; the answer is {"outputs": {name: rows}}, or {"error": text} with status
    400 for invalid inputs. From Python: `await handle.run.remote({name: array})`, with rows as the first axis.
    Raises InputError for other parameters, EngineError without Ray Serve. Replicas load the engine, and fail to start
    if it cannot be loaded or joined to batches.
    """
    with Needs("serving by Ray", EngineError, "ray"):
        from ray import serve
    from pelton.runtime.batching import Batching

    where = absolute(path)
    check_threads(threads)
    check_threads(jobs, "jobs")
    batching = Batching(max_batch, slo=slo)  # checks both
    defaults = {
        "name": "pelton",
        "max_ongoing_requests": max(FEWEST_REQUESTS, 2 * max_batch * jobs),
        "ray_actor_options": {"num_cpus": jobs * threads},
    }
    served: Any = serve.deployment(**{**defaults, **options})(Replica)
    return served.bind(where, batching, names_of(outputs, "outputs"), jobs, threads)
