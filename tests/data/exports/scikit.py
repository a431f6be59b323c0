"""Pipelines of scikit-learn, by skl2onnx: pip install scikit-learn skl2onnx onnxruntime; python scikit.py [NAME…]"""

from __future__ import annotations

import scikit_linear
import scikit_others
import scikit_preprocessing
import scikit_trees
from keep import run

PARTS = (scikit_linear, scikit_trees, scikit_others, scikit_preprocessing)  # importing them declares what they make

if __name__ == "__main__":
    run()
