"""Pelton's reader of Keras files beside Keras, and beside its conversion by TensorFlow: layers with all of their
options, graphs, operations, and whole applications, which `frameworks/of_keras.py` writes."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton.importers import keras
from pelton.system import environments
from pelton.importers.network import imported
from pelton.importers.onnx.load import load
from pelton.ir.dims import is_known
from pelton.ir.evaluate import evaluate

pytestmark = pytest.mark.xdist_group("keras")
HERE = Path(__file__).parent
CLOSE = 1e-5  # of the largest element
# TensorFlow rounds the places between pixels to parts of 1024 for these.
ROUNDED, CLOSE_TO_ROUNDED = "bicubic", 2e-3
# models whose inputs and outputs are compared with those that TensorFlow gives them
CONVERTED = (
    *("graph_add", "graph_dicts", "graph_input_is_output", "graph_same_output_twice", "graph_nested", "graph_states"),
    *("graph_shared", "graph_embedding", "graph_fixed_batch", "graph_free_image", "graph_mha_mask"),
    *("graph_sequential_built_later", "lstm_state", "ops_picks", "ops_products", "graph_nested_deep"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The models, each with inputs and what Keras gives for them."""
    python = environments.made("tensorflow")
    if python is None:
        pytest.skip("needs `pelton import-env tensorflow`")
    folder = tmp_path_factory.mktemp("keras")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    script = HERE / "frameworks" / "of_keras.py"
    done = subprocess.run([python.path, script, folder], capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr[-3000:]
    return folder


def recorded(path):
    """The inputs by name, and the outputs, of a model."""
    with np.load(f"{path}.npz") as file:
        given = {key[3:]: file[key] for key in file.files if key.startswith("in/")}
        return given, [file[f"out/{i}"] for i in range(len(file.files) - len(given))]


def far(found, wanted):
    """How far outputs are from those of Keras, of the largest element."""
    assert len(found) == len(wanted)
    for y, want in zip(found, wanted):
        assert y.shape == want.shape and y.dtype == want.dtype
    pairs = [(y.astype(np.float64), want) for y, want in zip(found, wanted) if want.size]
    return max(float(np.abs(y - want).max() / max(np.abs(want).max(), 1e-9)) for y, want in pairs)


def in_order(given, inputs):
    """Inputs by the names of ours; a single one may have another name."""
    return dict(zip(inputs, given.values())) if len(given) == 1 else given


def evaluated(path, given):
    shapes = {v.name: x.shape for v, x in zip(imported(keras.read(path)).graph.inputs, given.values())}
    shapes = shapes if len(given) == 1 else {name: x.shape for name, x in given.items()}
    graph = imported(keras.read(path, shapes), shapes).graph
    found = evaluate(graph, in_order(given, [v.name for v in graph.inputs]))
    return [found[v.name] for v in graph.outputs]


def small(folder):
    return [p for p in sorted(folder.iterdir()) if p.suffix in (".keras", ".h5") and not p.name[0].isupper()]


def test_layers_graphs_and_operations(folder):
    paths, wrong = small(folder), []
    assert len(paths) > 500
    for path in paths:
        given, wanted = recorded(path)
        limit = CLOSE_TO_ROUNDED if ROUNDED in path.name else CLOSE
        try:
            distance = far(evaluated(path, given), wanted)
            if not distance < limit:
                wrong.append(f"{path.name} is off by {distance}")
        except (pelton.Error, AssertionError) as e:
            wrong.append(f"{path.name}: {e}")
    assert not wrong, "\n".join(wrong)


def test_applications(folder):
    paths = [p for p in sorted(folder.glob("*.keras")) if p.name[0].isupper()]
    assert len(paths) > 10
    for path in paths:
        given, wanted = recorded(path)
        engine = pelton.build(path, level=0)
        assert far(list(engine.run(in_order(given, [p.name for p in engine.inputs])).values()), wanted) < CLOSE, path


def ports(graph):
    """Inputs and outputs: names, element types, and sizes that are numbers."""
    return [
        [(v.name, v.type.dtype, *(d if is_known(d) else None for d in v.type.shape)) for v in values]
        for values in (graph.inputs, graph.outputs)
    ]


@pytest.mark.parametrize("name", CONVERTED)
def test_inputs_and_outputs_are_those_of_the_conversion(folder, name):
    path = folder / f"{name}.keras"
    assert ports(imported(keras.read(path)).graph) == ports(load(keras._converted(path)).graph)
