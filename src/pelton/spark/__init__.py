"""Engines in Spark: functions for `predict_batch_udf` and `mapInPandas`.

    from pyspark.ml.functions import predict_batch_udf

    logits = predict_batch_udf(
        pelton.spark.predictor("/models/net.pelton"),
        return_type=ArrayType(FloatType()), batch_size=1024, input_tensor_shapes=[[3072]],
    )
    table.select(logits("image"))

Pelton and the file must be on every worker, at the same path. Each Python process of a worker loads an engine once;
the weights are mapped, and so in memory once a machine.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pelton.compat.rows import RowRunner, absolute, check_threads, kept_columns, names_of
from pelton.errors import EngineError, Needs

__all__ = ["map_in_pandas", "predictor"]


def predictor(
    path: str | os.PathLike[str], outputs: str | Sequence[str] | None = None, threads: int = 1
) -> Callable[[], Callable[..., Any]]:
    """Returns the argument `make_predict_fn` of `pyspark.ml.functions.predict_batch_udf`.

    path: of the engine's file on every worker; a relative one is relative to the driver's folder.
    outputs: names of outputs; default: all. One output is an array; several are a dictionary, for a return type that is
        a StructType. Rows of more than one dimension are flat.
    threads: 1 to 256 per run; Spark runs as many tasks as a worker has cores, so that 1 suits.

    The columns are the inputs in the engine's order, as single numbers or flat arrays, for which `predict_batch_udf`
    needs `input_tensor_shapes`. Raises InputError for other parameters here; on workers InputError for columns that do
    not fit and EngineError as `pelton.load` does, which Spark reports for the task.
    """
    check_threads(threads)
    return partial(_predict_function, absolute(path), names_of(outputs, "outputs"), threads)


def _predict_function(path: str, outputs: Sequence[str] | None, threads: int) -> Callable[..., Any]:
    runner = RowRunner(path, outputs, threads)
    names = [p.name for p in runner.inputs]

    def predict(*arrays: np.ndarray) -> Any:
        results = {name: _flat(array) for name, array in runner.run(dict(zip(names, arrays))).items()}
        return results if len(results) > 1 else next(iter(results.values()))

    # Spark counts the parameters
    parameters = [inspect.Parameter(f"input_{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(names))]
    predict.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return predict


def map_in_pandas(
    path: str | os.PathLike[str],
    outputs: str | Sequence[str] | None = None,
    threads: int = 1,
    *,
    columns: Mapping[str, str] | None = None,
    keep: str | Sequence[str] = (),
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the argument `func` of `pyspark.sql.DataFrame.mapInPandas`.

        table.mapInPandas(pelton.spark.map_in_pandas("/models/net.pelton", keep="id"), "id long, logits array<float>")

    columns: input → column; default: the column of its name. keep: columns of the table that stay beside the outputs.
    Other parameters and errors as for `predictor`.
    """
    check_threads(threads)
    kept = names_of(keep, "keep") or ()
    return partial(_map_frames, absolute(path), names_of(outputs, "outputs"), threads, columns, kept)


def _map_frames(
    path: str,
    outputs: Sequence[str] | None,
    threads: int,
    columns: Mapping[str, str] | None,
    keep: Sequence[str],
    frames: Iterator[Any],
) -> Iterator[Any]:
    with Needs("mapInPandas", EngineError, "spark"):
        import pandas
    runner = RowRunner(path, outputs, threads, columns)
    for frame in frames:
        table = {name: frame[name].to_numpy() for name in frame.columns}
        kept = kept_columns(table, keep, runner)
        results = {name: _flat(array) for name, array in runner.run(table).items()}
        yield pandas.DataFrame({**kept, **{k: a if a.ndim == 1 else list(a) for k, a in results.items()}})


def _flat(array: np.ndarray) -> np.ndarray:
    """Returns an output with rows of at most one dimension, as Spark's columns have."""
    return array.reshape(len(array), -1) if array.ndim > 2 and len(array) else array
