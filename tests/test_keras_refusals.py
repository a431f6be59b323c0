"""Refused Keras files: unknown parts, and damage."""

import copy
import json
import random

import keras_files as made
import numpy as np
import pytest
from test_keras_files import dense, refused, simple
from test_keras_layers import normal

import pelton
from pelton.importers import keras
from pelton.importers.keras import UnknownPart, archive, hdf5


@pytest.mark.parametrize(
    "layer, reason",
    [
        (made.layer("Mystery", "y", "x"), "layer 'y' is a Mystery$"),
        (made.layer("Dense", "y", "x", module="mine", units=2), "a Dense, an own class"),
        (dense("y", "x", lora_rank=4), "lora_rank=4"),
        (dense("y", "x", twist=None), "the unknown options 'twist'"),
        (dense("y", "x", activation="twisted"), "activation 'twisted'"),
        (dense("y", "x", dtype="mixed_float16"), "computes in mixed_float16"),
        (dense("y", "x", dtype={"class_name": "DTypePolicy", "config": {"name": "bfloat16"}}), "in bfloat16"),
        (dense("y", "x", units=-3), "an integer from 1 on as units"),
        (dense("y", "x", units="four"), "as units, got 'four'"),
        (made.layer("LSTM", "y", "x", units=3, stateful=True), "."),
        (made.layer("Add", "y", "x"), "two tensors and more"),
        (made.layer("Conv2D", "y", "x", filters=3, kernel_size=3), "a tensor of 4 axes"),
        (made.layer("ReLU", "y", "y"), "form a circle"),
        (made.layer("ReLU", "y", "z"), "'z', which it does not have"),
        (made.layer("ReLU", "y", ("x", 3, 0)), "its call 3 is read"),
        (made.layer("ReLU", "y", ("x", 0, 2)), "output 2 is read"),
    ],
)
def test_what_is_not_known_is_refused_by_name(layer, reason):
    data = simple(layer, weights={"layers/dense/vars/0": normal(4, 4)})
    with pytest.raises(UnknownPart, match=reason):
        keras.read(data)


def test_masks_that_matter_are_refused():
    words = made.given("x", 5, dtype="int32")
    embedding = made.layer("Embedding", "e", "x", input_dim=7, output_dim=3, mask_zero=True)
    drop = made.layer("Dropout", "d", "e", rate=0.5)
    rnn = made.layer("LSTM", "y", "d", units=2)
    arrays = {"layers/embedding/vars/0": normal(7, 3)}
    assert "with a mask" in refused(made.archive(made.functional([words, embedding, drop, rnn], ["x"], ["y"]), arrays))
    flat = made.layer("Flatten", "y", "d")
    keras.read(made.archive(made.functional([words, embedding, drop, flat], ["x"], ["y"]), arrays))


@pytest.mark.parametrize("called", [{"mask": [1, 0]}, {"mask": made.tensors("x")}, {"by": 3}])
@pytest.mark.parametrize("kind", ["GlobalAveragePooling1D", "LSTM", "ReLU", "Attention", "TimeDistributed"])
def test_what_layers_are_called_with_is_known(kind, called):
    call = ["x", "x"] if kind == "Attention" else "x"
    options = dict(LSTM=dict(units=2), TimeDistributed=dict(layer=dense("d")))
    layer = made.layer(kind, "y", call, **options.get(kind, {}))
    layer["inbound_nodes"][0]["kwargs"] = called
    data = made.archive(made.functional([made.given("x", 5, 3), layer], ["x"], ["y"]), {})
    assert f"is called with {next(iter(called))!r}" in refused(data)


@pytest.mark.parametrize(
    "dtype, layer, reason",
    [
        ("int32", made.layer("MaxPooling1D", "y", "x", pool_size=2), "needs floats, got i32"),
        ("float64", made.layer("ReLU", "y", "x"), "floats of another type than float32"),
        ("int64", made.layer("Add", "y", ["x", "i"]), "several types, i32, i64"),
        ("bool", made.layer("Concatenate", "y", ["x", "i"]), "several types, bool, i32"),
        ("uint8", made.layer("Sum", "y", "x", module="keras.src.ops.numpy", dtype=None), "sums u8"),
    ],
)
def test_types_of_which_keras_makes_others_are_refused(dtype, layer, reason):
    layers = [made.given("x", 6, 4, dtype=dtype), made.given("i", 6, 4, dtype="int32"), layer]
    assert reason in refused(made.archive(made.functional(layers, ["x", "i"], ["y"]), {}))


def test_wrong_and_missing_variables():
    assert "no 'kernel' at layers/dense" in refused(simple(dense("y", "x")))
    assert "of shape [4, 4], the file has [4, 3]" in refused(
        simple(dense("y", "x"), weights={"layers/dense/vars/0": normal(4, 3)})
    )
    named = {"layers/dense/vars": {"name": "other"}}
    weights = {"layers/dense/vars/0": normal(4, 4)}
    assert "those of 'other' are" in refused(simple(dense("y", "x"), weights=weights, attributes=named))
    assert "versions 2 and 3" in refused(simple(dense("y", "x"), weights=weights, version="4.0"))


# --- damage


def test_links_are_not_followed():
    data = simple(dense("y", "x"), weights={"layers/dense/vars/0": "/etc/passwd"})
    assert "has a link, '0', to somewhere else" in refused(data, pelton.ModelError)
    data = simple(dense("y", "x"), weights={"layers/dense": "elsewhere"})
    assert "has a link, 'dense'" in refused(data, pelton.ModelError)


def test_files_without_a_model_and_other_things(tmp_path):
    assert "weights without a model" in refused(made.hdf5({"layers": {}}), pelton.ModelError)
    assert "no JSON" in refused(made.hdf5({}, {"": {"model_config": "{"}}), pelton.ModelError)
    refused(made.hdf5({}, {"": {"model_config": "[" * 9000}}), pelton.ModelError)
    assert "unknown way" in refused(made.hdf5({}, {"": {"model_config": "[1]"}}))
    with pytest.raises(pelton.ModelError, match="there is no file"):
        keras.read(tmp_path / "none.keras")


@pytest.mark.parametrize("depth", [50, 300, 700])
def test_what_is_nested_deep_is_refused(depth):
    deep = json.loads("[" * depth + "1" + "]" * depth)
    node = made.layer("Add", "y") | {"inbound_nodes": [{"args": [made.tensors(["x", "x"])], "kwargs": {"t": deep}}]}
    refused(simple(node), pelton.ModelError)
    node = made.layer("Add", "y") | {"inbound_nodes": [[["x", 0, 0, {"t": deep}]] * 2]}
    refused(simple(node), pelton.ModelError)
    refused(simple(dense("y", "x", twist=deep)), pelton.ModelError)
    refused(simple(dense("y", "x", activation=deep)), pelton.ModelError)


def test_damaged_files_end_in_words():
    w = {"layers/dense/vars/0": normal(4, 4), "layers/batch_normalization/vars/0": normal(4)}
    good = [made.hdf5(made.tree_of(w), {"layers/dense/vars": {"name": "y"}})]
    config = made.functional([made.given("x", 4), dense("y", "x")], ["x"], ["y"])
    good.append(made.listed(config, {"x": {}, "y": {"y/kernel:0": normal(4, 4)}}))
    rng, refusals = np.random.default_rng(), 0
    for i in range(600):
        data = bytearray(good[i % 2])
        for at in rng.integers(8, len(data), rng.integers(1, 9)):
            data[at] = rng.integers(256)
        data = bytes(data[: rng.integers(len(data)) if i % 5 == 0 else len(data)])
        try:
            if i % 2:
                keras.read(data)
            else:
                file = hdf5.Hdf5(data, "a file")
                group = file.group("layers/dense/vars")
                assert group is None or len(file.array(group, "0")) <= 4
                file.attribute(file.root, "model_config")
        except pelton.ModelError:
            refusals += 1
    assert refusals > 200


def places(value):
    """(a list or dict, an index or key of it) for everything in a description."""
    if not isinstance(value, (dict, list)):
        return []
    keys = [*value] if isinstance(value, dict) else range(len(value))
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def test_descriptions_with_other_things_in_them_end_in_words():
    rng, odd = random.Random(), [None, -1, 0, 7, 1 << 40, 1.5, "", "x", [], [1], [["x", 0, 0]], {}, True, "float16"]
    odd += [
        {"class_name": kind, "config": {"value": [1], "dtype": "int32"}} for kind in ("__tuple__", "__numpy__", "Sum")
    ]
    every, sliced = (
        {"class_name": "__slice__", "config": {"start": a, "stop": b, "step": None}} for a, b in ((None, None), (0, 2))
    )
    get = made.layer("GetItem", "g", module="keras.src.ops.numpy")
    get |= {"config": {"name": "g"}, "inbound_nodes": [{"args": [made.tensors("h"), [every, sliced, 1]], "kwargs": {}}]}
    stack = made.sequential([made.given("i", 6, 4), made.layer("LSTM", "r", units=3, return_sequences=True)], "stack")
    stack |= {"name": "stack", "inbound_nodes": [{"args": [made.tensors("x")], "kwargs": {}}]}
    gru = made.layer("GRU", "e", units=2, return_sequences=True)
    both = made.layer("Bidirectional", "h", ("stack", 0, 0), layer=gru)
    normed = made.layer("BatchNormalization", "n", "x", axis=-1)
    arrays = {
        f"layers/sequential/layers/lstm/cell/vars/{i}": normal(*s) for i, s in enumerate([(4, 12), (3, 12), (12,)])
    }
    for side in ("forward", "backward"):
        place = f"layers/bidirectional/{side}_layer/cell/vars"
        arrays |= {f"{place}/{i}": normal(*s) for i, s in enumerate([(3, 6), (2, 6), (2, 6)])}
    arrays |= {f"layers/batch_normalization/vars/{i}": np.ones(4, "f4") for i in range(4)}
    good = made.functional([made.given("x", 6, 4), stack, both, get, normed], ["x"], ["g", "n"])
    assert len(keras.read(made.archive(good, arrays)).outputs) == 2
    refusals = 0
    for _ in range(250):
        config = copy.deepcopy(good)
        for _ in range(rng.randint(1, 2)):
            at, key = rng.choice(places(config["config"]))
            at[key] = copy.deepcopy(rng.choice(odd))  # the next may be put into it
        try:
            keras.read(made.archive(config, arrays))
        except pelton.ModelError:
            refusals += 1
    assert refusals > 50


def test_archives_are_checked(monkeypatch):
    data = simple(dense("y", "x"), weights={"layers/dense/vars/0": normal(4, 4)})
    monkeypatch.setattr(archive, "FREE", 0)
    monkeypatch.setattr(archive, "RATIO", 0)
    assert "would expand" in refused(data, pelton.ModelError)
