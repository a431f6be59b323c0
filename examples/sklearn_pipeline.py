"""A pipeline of scikit-learn, with columns of words and of numbers, as an engine: one input per column.

pip install 'pelton[build]' scikit-learn skl2onnx pandas
python examples/sklearn_pipeline.py
"""

import numpy as np
import pandas as pd
import pelton
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def passengers(count: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Invented ones, who travel first class more often the older they are and the more their ticket was."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "port": rng.choice(["Cherbourg", "Queenstown", "Southampton"], count),
            "age": rng.uniform(1, 80, count).astype(np.float32),
            "fare": rng.gamma(2, 20, count).astype(np.float32),
        }
    )
    first = table["fare"] + table["age"] / 2 + 30 * (table["port"] == "Cherbourg") + rng.normal(0, 10, count) > 80
    return table, first.to_numpy()


def columns(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """What the engine takes: arrays [rows, 1], of strings as objects."""
    return {name: table[[name]].to_numpy() for name in table}


table, first = passengers(2000)
pipeline = make_pipeline(
    make_column_transformer((OneHotEncoder(), ["port"]), (StandardScaler(), ["age", "fare"])),
    GradientBoostingClassifier(random_state=0),
)
pipeline.fit(table[:1000], first[:1000])

types = [("port", StringTensorType([None, 1])), *((n, FloatTensorType([None, 1])) for n in ("age", "fare"))]
model = to_onnx(pipeline, initial_types=types, options={"zipmap": False})
engine = pelton.build(model, level=0)

unseen = table[1000:]
found = engine.run(columns(unseen))
chances = pipeline.predict_proba(unseen)
print(f"right for {(found['label'] == first[1000:]).mean():.1%} of {len(unseen)} passengers")
print(f"off from scikit-learn by less than 1e-5: {np.abs(found['probabilities'] - chances).max() < 1e-5}")
