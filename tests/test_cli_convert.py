"""`pelton convert`: models of other formats, and of ONNX, as ONNX files."""

import numpy as np
import onnx
import pytest
from compare import assert_close

from pelton import importers
from pelton.cli import main, peers
from pelton.ir.evaluate import evaluate

CFG = """[net]
width=8
height=6
channels=3

[convolutional]
batch_normalize=1
filters=5
size=3
stride=2
pad=1
activation=leaky

[maxpool]
size=2
stride=1

[connected]
output=4
activation=linear

[softmax]
"""


def outputs(path, x):
    graph = importers.load(path).graph
    (name,) = (v.name for v in graph.inputs)
    return list(evaluate(graph, {name: x}).values())


def test_a_darknet_model_becomes_one_of_onnx(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.cfg").write_text(CFG)
    assert main(["convert", "net.cfg", "--outputs", "softmax"]) == 2
    capsys.readouterr()
    assert main(["convert", "net.cfg", "--opset", "20"]) == 0
    assert capsys.readouterr().out.startswith("net.onnx: ") and (tmp_path / "net.onnx").exists()
    model = onnx.load("net.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 20
    x = np.random.default_rng(0).standard_normal((1, 3, 6, 8)).astype(np.float32)
    assert_close(outputs("net.onnx", x), outputs("net.cfg", x))


def test_an_onnx_model_is_written_again_with_weights_beside(tmp_path, cnn):
    path = tmp_path / "again.onnx"
    assert main(["convert", cnn, "-o", str(path), "--external", "-q"]) == 0
    assert (tmp_path / "again.onnx.data").exists()
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)
    assert_close(outputs(path, x), outputs(cnn, x))


@pytest.mark.parametrize(
    "args, reason",
    [
        (["--opset", "9"], "opsets from 18"),
        (["-o", "no/such/folder.onnx"], "there is no folder"),
        (["--outputs", "nothing"], "nothing"),
        (["--weights", "w.bin"], "weights"),
    ],
)
def test_what_cannot_be_converted_says_why(refused, cnn, args, reason):
    assert reason in refused("convert", cnn, *args)


def test_the_model_itself_is_not_overwritten(refused, cnn):
    assert "is the model itself" in refused("convert", cnn, "-o", cnn)


def test_other_runtimes_get_models_of_other_formats_as_onnx(tmp_path):
    net = tmp_path / "net.prototxt"
    net.write_text("name: 'x' input: 'x' input_shape { dim: 2 dim: 3 } layer { type: 'ReLU' bottom: 'x' top: 'y' }")
    found = peers.onnx_file(str(net), str(net), str(tmp_path))
    assert found == str(tmp_path / "model.onnx") and [n.op_type for n in onnx.load(found).graph.node] == ["Relu"]
    assert peers.onnx_file(found, found, str(tmp_path / "other")) == found
