"""A table of any length through an engine, a batch at a time: a new column, without a copy of the table.

pip install 'pelton[build]' scikit-learn skl2onnx pandas
python examples/pandas_batch.py
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pelton
from skl2onnx import to_onnx
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor

BATCH = 4096  # rows at once: large enough that calls do not count, small enough for the caches


def batches(table: pd.DataFrame) -> Iterator[np.ndarray]:
    """f32[rows, columns], contiguous; the last one is shorter."""
    for start in range(0, len(table), BATCH):
        yield np.ascontiguousarray(table.iloc[start : start + BATCH], dtype=np.float32)


def main() -> None:
    found = load_diabetes(as_frame=True)
    forest = RandomForestRegressor(100, random_state=0).fit(found.data.to_numpy(np.float32), found.target)
    model = to_onnx(forest, found.data.to_numpy(np.float32)[:1])
    engine = pelton.build(model, shapes={"X": f"1..{BATCH}..{BATCH}x10"}, level=0)
    print(f"{engine.inputs[0].name} {engine.inputs[0]}")

    table = found.data.sample(50_000, replace=True, random_state=0).reset_index(drop=True)
    table["progression"] = np.concatenate([engine(batch) for batch in batches(table)])[:, 0]
    print(table["progression"].describe().round(1).to_string())

    want = forest.predict(table[:500].drop(columns="progression").to_numpy(np.float32))
    print(f"as scikit-learn has it: {np.allclose(table['progression'][:500], want, rtol=1e-4)}")


if __name__ == "__main__":
    main()
