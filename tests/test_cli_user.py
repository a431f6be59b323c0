"""A new user's mistakes at the command line: no command, missing runtimes, arrays of other names."""

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pelton
from pelton.cli import main


def test_without_a_command_there_is_help(capsys):
    with pytest.raises(SystemExit) as e:
        main([])
    said = capsys.readouterr()
    assert (
        e.value.code == 0 and not said.err and "usage: pelton" in said.out and "pelton build resnet50.onnx" in said.out
    )


def test_other_runtimes_are_looked_for_before_the_build(capsys, tmp_path, monkeypatch):
    from pelton.cli import peers

    monkeypatch.setitem(peers.PACKAGES, "openvino", ("no_such_package", "nor_this"))
    absent = str(tmp_path / "absent.onnx")
    assert main(["bench", absent, "--vs", "openvino", "--peers-python", sys.executable]) == 2
    assert "no_such_package and nor_this are not installed for" in capsys.readouterr().err
    assert main(["bench", absent, "--vs", "openvino", "--peers-python", str(tmp_path / "no-python")]) == 2
    assert "does not start" in capsys.readouterr().err
    monkeypatch.setitem(peers.PACKAGES, "openvino", ("json",))
    assert main(["bench", absent, "--vs", "openvino"]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert main(["bench", absent, "--peers-python", sys.executable]) == 2
    assert "add --vs" in capsys.readouterr().err


def test_an_array_of_another_name_is_refused_as_an_input_of_another_name(capsys, tmp_path, engines):
    (port,) = pelton.load(engines["cnn"]).inputs
    x = np.ones([size if isinstance(size, int) else 1 for size in port.shape], np.float32)
    np.savez(tmp_path / "wrong.npz", **{port.name + "s": x})
    np.savez(tmp_path / "unnamed.npz", x)
    np.savez(tmp_path / "right.npz", **{port.name: x})
    for given, status in (("wrong.npz", 2), (f"{port.name}s=right.npz", 2), ("unnamed.npz", 0), ("right.npz", 0)):
        name, _, file = given.rpartition("=")
        argument = f"{name}={tmp_path / file}" if name else str(tmp_path / file)
        assert main(["run", engines["cnn"], "--input", argument]) == status, given
        assert (f"did you mean {port.name!r}" in capsys.readouterr().err) == (status == 2)


def test_rows_that_are_maps_are_said_to_be_some(capsys, tmp_path):
    """Engine, session and command line name the same thing: columns in files, dicts in Python."""
    ml, f32 = "ai.onnx.ml", TensorProto.FLOAT
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(f32, []))
    out = helper.make_value_info("z", helper.make_sequence_type_proto(kind))
    nodes = [helper.make_node("ZipMap", ["p"], ["z"], domain=ml, classlabels_int64s=[5, 6, 7])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("p", f32, [2, 3])], [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ml, 1)]
    path, target = str(tmp_path / "m.onnx"), str(tmp_path / "m.pelton")
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    assert main(["build", path, "-o", target, "--level", "0"]) == 0
    said = "the rows of z are maps of 5, 6, 7; Python gets a list of dicts z"
    assert said in capsys.readouterr().out
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    assert main(["run", target, "--input", str(tmp_path / "x.npy")]) == 0 and said in capsys.readouterr().out
    assert main(["inspect", target]) == 0 and said in capsys.readouterr().out
    assert main(["run", target, "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "z.npy")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), x)
    want = [dict(zip((5, 6, 7), row)) for row in x.tolist()]
    assert pelton.load(target).run({"p": x})["z"] == want


def test_an_input_of_maps_in_a_sequence_is_refused(tmp_path):
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    ports = [[helper.make_value_info(n, helper.make_sequence_type_proto(kind))] for n in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", *ports)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(pelton.ModelError, match="sequences of tensors, maps or optionals.*declared as sequence"):
        pelton.build(model, level=0)
