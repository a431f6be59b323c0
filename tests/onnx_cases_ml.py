"""One-node models of ai.onnx.ml's operators, and of one step of training."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper
from onnx_operands import ML, TRAINING, i64


# two trees: x₀ ≤ 0.5 ? (x₁ > 0.4 ? leaf : leaf) : leaf, and x₂ ≤ 0.3 ? leaf : leaf
TREES = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
    "nodes_values": [0.5, 0.4, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", *["LEAF"] * 3, "BRANCH_LEQ", *["LEAF"] * 2],
    "nodes_missing_value_tracks_true": [0] * 8,
}
HELD = {
    "treeids": [0, 0, 0, 1, 1],
    "nodeids": [2, 3, 4, 1, 2],
    "ids": [0, 1, 2, 1, 0],
    "weights": [0.5, 1.5, -1.0, 2.0, 0.25],
}
TRAINING_STEPS = [
    (
        "Adagrad",
        np.float32(0.1),
        np.int64(3),
        "f32[3]",
        "f32[2, 2]",
        "f32[3]",
        "f32[2, 2]",
        "f32[3]",
        "f32[2, 2]",
        {**TRAINING, "norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-3, "outputs": 4},
    ),
    *(
        (
            "Momentum",
            "f32[]",
            "i64[]",
            *["f32[3]"] * 3,
            {**TRAINING, "alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.02, "mode": mode, "outputs": 2},
        )
        for mode in ("standard", "nesterov")
    ),
]

CLASSICAL = [
    ("ArrayFeatureExtractor", "f32[2, 5]", i64(3, 0), ML),
    ("Binarizer", "f32[2, 5]", {**ML, "threshold": 0.5}),
    ("Scaler", "f32[2, 3]", {**ML, "offset": [0.5, 0.25, 1.0], "scale": [2.0, 3.0, 0.5]}),
    *(("Normalizer", "f32[3, 5]", {**ML, "norm": norm}) for norm in ("MAX", "L1", "L2")),
    (
        "Imputer",
        np.array([[1, np.nan, 3], [np.nan, 5, 6]], np.float32),
        {**ML, "imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": math.nan},
    ),
    ("OneHotEncoder", "i64[4]", {**ML, "cats_int64s": [2, 0, 5], "zeros": 1}),
    ("FeatureVectorizer", "f32[2, 3]", "f32[2, 2]", {**ML, "inputdimensions": [3, 2]}),
    (
        "LabelEncoder",
        "i64[3, 2]",
        {**ML, "version": 2, "keys_int64s": [2, 0, 5], "values_floats": [0.5, 1.5, 2.5], "default_float": -3.0},
    ),
    (
        "LinearRegressor",
        "f32[3, 4]",
        {**ML, "coefficients": [*map(float, range(8))], "intercepts": [0.5, -0.25], "targets": 2},
    ),
    *(
        (
            "LinearClassifier",
            "f32[3, 2]",
            {
                **ML,
                "coefficients": [1.0, -2.0, 0.5, 0.25, 0.0, 1.0],
                "intercepts": [0.5, 0.0, 0.25],
                "classlabels_ints": [4, 7, 9],
                "post_transform": post,
                "outputs": 2,
            },
        )
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    ),
    *(
        (
            "SVMRegressor",
            "f32[3, 2]",
            {
                **ML,
                "kernel_type": kind,
                "kernel_params": [0.3, 0.2, 2.0],
                "support_vectors": [0.5, 1.0, 0.1, 0.2, -0.5, 1.0],
                "coefficients": [0.5, -1.0, 2.0],
                "rho": [0.25],
                "n_supports": 3,
            },
        )
        for kind in ("LINEAR", "RBF", "POLY", "SIGMOID")
    ),
    *(
        (
            "TreeEnsembleRegressor",
            "f32[9, 3]",
            {**ML, **TREES, **{f"target_{k}": v for k, v in HELD.items()}, "n_targets": 3, "aggregate_function": join},
        )
        for join in ("SUM", "AVERAGE")
    ),
    *(
        (
            "TreeEnsembleRegressor",
            "f32[9, 3]",
            {
                **ML,
                **TREES,
                **{f"target_{k}": v for k, v in HELD.items()},
                "target_ids": [0] * 5,
                "n_targets": 1,
                "aggregate_function": join,
            },
        )
        for join in ("MIN", "MAX")
    ),
    (
        "TreeEnsembleClassifier",
        "f32[9, 3]",
        {
            **ML,
            **TREES,
            **{f"class_{k}": v for k, v in HELD.items()},
            "classlabels_int64s": [3, 5, 8],
            "post_transform": "SOFTMAX",
            "outputs": 2,
        },
    ),
    (
        "TreeEnsemble",
        "f32[9, 2]",
        {
            **ML,
            "version": 5,
            "n_targets": 2,
            "tree_roots": [0, 2],
            "nodes_featureids": [0, 1, 1],
            "leaf_targetids": [0, 1, 1, 0],
            "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [3], [0, 3, 2]),
            "nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, [3], [0.5, 0.4, 0.6]),
            "nodes_trueleafs": [0, 1, 1],
            "nodes_truenodeids": [1, 0, 2],
            "nodes_falseleafs": [1, 1, 1],
            "nodes_falsenodeids": [1, 3, 3],
            "leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, [4], [0.5, -1.0, 2.0, 0.25]),
        },
    ),
]
