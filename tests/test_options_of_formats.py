"""Options that do not apply to a model are refused, whatever its format and the kind of build."""

import numpy as np
import onnx
import pytest
import script_models
from models import small_cnn
from test_detections import NET
from test_keras_files import dense, simple
from test_tflite_models import counter

import pelton
from pelton.cli import main

CAFFE = b"""name: "n" input: "x" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "y" type: "ReLU" bottom: "x" top: "y" }"""


def network():
    net = pelton.Network()
    net.output(net.relu(net.input("x", "f32[2, 3]")), "y")
    return net


def script():
    return script_models.MODELS["nonzero_gather"]()[0].SerializeToString()


MODELS = {
    "onnx": lambda: small_cnn(size=12).SerializeToString(),
    "script": script,
    "tflite": lambda: counter(None),
    "keras": lambda: simple(dense("y", "x"), weights={"layers/dense/vars/0": np.ones((4, 4), np.float32)}),
    "caffe": lambda: CAFFE,
    "darknet": lambda: NET,
    "network": network,
}
OTHERS = {
    "weights": "other.bin",
    "shapes": {"nothing": (1, 2)},
    "optimum": {"nothing": (1, 2)},
    "values": {"nothing": 1},
    "outputs": ["nothing"],
    "image": "71x73 gray",
    "max_drop": 0.5,
    "metric": float,
    "save_calibration": "table.txt",
    "example_inputs": (1,),
    "dynamic_shapes": {},
    "detections": True,
}
TAKEN = {("darknet", "detections")}


@pytest.mark.parametrize("option", OTHERS)
@pytest.mark.parametrize("format", MODELS)
def test_an_option_that_does_not_apply_is_refused(format, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if (format, option) in TAKEN:
        assert pelton.build(MODELS[format](), level=0, **{option: OTHERS[option]}).outputs[0].name == option
        return
    with pytest.raises((pelton.InputError, pelton.ModelError)) as e:
        pelton.build(MODELS[format](), level=0, **{option: OTHERS[option]})
    words = {"image": "71x73", "weights": "weights|other.bin", "example_inputs": "example_inputs"}
    assert any(word in str(e.value) for word in (option, "nothing", *words.get(option, option).split("|"))), e.value


def test_labels_and_pictures_of_a_script_are_checked_as_those_of_an_engine(tmp_path, capsys):
    """The inputs and outputs are those of the script, not those of the engines in it."""
    nodes = [
        script_models.N("GlobalAveragePool", ["image"], ["means"]),
        script_models.N("Flatten", ["means"], ["features"]),
        script_models.N("MatMul", ["features", "w"], ["scores"]),
        script_models.N("NonZero", ["scores"], ["at"]),
        script_models.N("Transpose", ["at"], ["rows"]),
        script_models.N("GatherND", ["scores", "rows"], ["found"]),
        script_models.N("Exp", ["found"], ["kept"]),
    ]
    f32 = onnx.TensorProto.FLOAT
    outputs = {"scores": (f32, ["n", 4]), "kept": (f32, ["k"])}
    model = script_models.model(nodes, {"image": (f32, ["n", 3, 8, 8])}, outputs, {"w": script_models.floats(3, 4)})
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    engine = pelton.build(path, level=0, image="8x8 rgb", labels=["a", "b", "c", "d"])
    assert len(engine.parts) > 1 and engine.meta["image"]
    with pytest.raises(pelton.InputError, match="labels= has 2 names.*has 4 classes along"):
        pelton.build(path, level=0, labels=["a", "b"])
    with pytest.raises(pelton.InputError, match="pictures of 9x9.*got image"):
        pelton.build(path, level=0, image="9x9 rgb")
    assert main(["build", str(path), "--level", "0", "--detections", "keep=3", "-o", str(tmp_path / "e.pelton")]) == 2
    assert "leave out --detections" in capsys.readouterr().err
