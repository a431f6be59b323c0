"""ONNX files that the importer refuses: broken ones, data outside the file, and random damage."""

from __future__ import annotations

import os
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model
from onnx_refusals import refusal, relu, script

from pelton.errors import Error, ModelError
from pelton.importers.onnx.load import load
from pelton.ir.imported import OnData

# --- files


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", "it is empty"),
        (b"import torch\nprint('hello')\n" * 10, 'looks like text: "import torch'),
        (b"PK\x03\x04rest of an archive", "PyTorch checkpoint"),
        (b"\x00\xff\xfe garbage \x80\x81", "is no valid ONNX model"),
        (relu().SerializeToString()[:-20], "truncated"),
        (onnx.ModelProto(ir_version=8, producer_name="x").SerializeToString(), "has no graph"),
    ],
    ids=["empty", "text", "zip", "garbage", "truncated", "no graph"],
)
def test_files_that_are_no_models(tmp_path, content, expected):
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    message = refusal(path)
    assert expected in message and str(path) in message
    assert expected in refusal(content)


def test_files_that_are_not_there(tmp_path):
    assert "there is no file" in refusal(tmp_path / "no.onnx")
    assert "cannot be read" in refusal(tmp_path)
    assert "got int" in refusal(3)


def test_files_too_large_for_protobuf(tmp_path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as f:
        f.truncate(2**31)
    assert "save_as_external_data" in refusal(path)


def external(folder, **entries) -> onnx.ModelProto:
    """x + w, w being f32[3, 4] in an external file."""
    m = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": "f32[4]"}, ["y"])
    tensor = m.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, dims=[3, 4], data_location=TensorProto.EXTERNAL
    )
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    return m


@pytest.mark.parametrize(
    "entries, expected",
    [
        ({"location": "../secret.bin"}, "folder of the model"),
        ({"location": "sub/../../secret.bin"}, "folder of the model"),
        ({"location": "link.bin"}, "folder of the model"),
        ({"location": os.path.abspath(os.sep + "secret.bin")}, "folder of the model"),
        ({"location": "weights.bin\0"}, "folder of the model"),
        ({}, "without a location"),
        ({"location": "missing.bin"}, "'missing.bin' is missing"),
        ({"location": "weights.bin", "offset": 8}, "too short: 48 bytes at 8 are needed, it has 50"),
        ({"location": "weights.bin", "offset": -4}, "too short"),
        ({"location": "weights.bin", "length": 40}, "need 48 bytes, but the model has 40"),
        ({"location": "weights.bin", "offset": "zero"}, "integers as offset and length"),
    ],
    ids=lambda x: str(x)[:40] if isinstance(x, str) else "",
)
def test_external_data(tmp_path, entries, expected):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    (folder / "weights.bin").write_bytes(bytes(50))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    external(folder, **entries)
    message = refusal(folder / "m.onnx")
    assert expected in message and "tensor 'w', m.onnx" in message


def test_external_data_that_git_lfs_has_left_a_pointer_of(tmp_path):
    external(tmp_path, location="weights.bin")
    (tmp_path / "weights.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 48\n")
    assert "weights.bin is not a model file: it is a Git LFS pointer" in refusal(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "data, said",
    [
        (None, "external file 'weights.bin' is missing"),
        (bytes(10), "external file 'weights.bin' is too short"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 48\n", "Git LFS"),
    ],
)
def test_a_file_of_many_tensors_is_one_problem(tmp_path, capsys, data, said):
    from pelton.cli import main

    nodes = [onnx.helper.make_node("Add", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(9)]
    weights = [onnx.numpy_helper.from_array(np.full((3, 100), i, np.float32), f"w{i}") for i in range(9)]
    ports = [[onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 100])] for n in ("h0", "h9")]
    m = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", *ports, weights), ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    if data is not None:
        (tmp_path / "weights.bin").write_bytes(data)
    message = refusal(path)
    assert said in message and "\n" not in message
    assert main(["check", str(path)]) == 1 and "cannot be built: 1 problem" in capsys.readouterr().out


def test_external_data_of_a_model_without_a_path(tmp_path):
    m = external(tmp_path, location="weights.bin")
    assert "pass the path of the model" in refusal(m)


def test_external_data_of_attributes_is_not_looked_for_where_the_process_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.arange(2.0, dtype=np.float32).tofile("weights.bin")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    body = helper.make_graph(
        [helper.make_node("StringSplit", ["x"], ["a", "b"])],
        "body",
        [],
        [onnx.ValueInfoProto(name=n) for n in "abw"],
        [tensor],
    )
    branch = helper.make_node("If", ["c"], ["p", "q", "r"], then_branch=body, else_branch=body)
    encoder = helper.make_node(
        "LabelEncoder", ["x"], ["r"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_tensor=tensor
    )
    for node, read in (
        (encoder, load),
        (helper.make_node("Constant", [], ["r"], value=tensor), load),
        (branch, script),
    ):
        with pytest.raises(ModelError, match="tensor 'w'.*an external file|an external file.*tensor 'w'"):
            read(model([node], {"x": "string[3]", "c": "bool[]"}, ["r"], opset=20, domains={"ai.onnx.ml": 4}))


@pytest.mark.parametrize("dims", [[0, 1 << 62, 1 << 62], [1] * 100])
def test_external_data_of_shapes_that_numpy_does_not_have(tmp_path, dims):
    (tmp_path / "weights.bin").write_bytes(bytes(48))
    m = external(tmp_path, location="weights.bin")
    m.graph.initializer[0].dims[:] = dims
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    assert "cannot be held" in refusal(tmp_path / "m.onnx")


def test_external_data_may_be_reached_by_links_next_to_the_model_itself(tmp_path):
    """Model caches keep files under other names, and folders of links to them."""
    blobs, view = tmp_path / "blobs", tmp_path / "view"
    blobs.mkdir()
    view.mkdir()
    external(blobs, location="weights.bin")
    (blobs / "9f3a").write_bytes(bytes(48))
    (view / "m.onnx").symlink_to(blobs / "m.onnx")
    (view / "weights.bin").symlink_to(blobs / "9f3a")
    assert load(view / "m.onnx").graph.outputs[0].type.shape == (3, 4)


# --- random damage


def test_damage_is_refused_and_nothing_worse():
    """Bytes changed, cut out and doubled in a model with a branch, a function, constants and an old-style operator."""
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["e"])], "else", [], [onnx.ValueInfoProto(name="e")])
    function = helper.make_function(
        "mine", "F", ["a"], ["b"], [helper.make_node("Elu", ["a"], ["b"], alpha=0.5)], [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        helper.make_node("F", ["i"], ["f"], domain="mine"),
        helper.make_node("Conv", ["f", "k"], ["g"], pads=[1, 1]),
        helper.make_node("Reshape", ["g", "s"], ["h"]),
        helper.make_node("Split", ["h"], ["y", "z"], axis=1),
    ]
    constants = {"w": np.ones(8, np.float32), "k": np.ones((4, 2, 3), np.float32), "s": np.array([8, -1])}
    whole = model(
        nodes, {"x": "f32[1, 2, 8]", "c": "bool[]"}, ["y", "z"], constants, functions=[function], domains={"mine": 1}
    ).SerializeToString()

    def read(data: bytes) -> None:
        try:
            load(data)
        except OnData:
            script(data)

    read(whole)
    rng, refused = random.Random(7), 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind < 2:
                data[at] = rng.randrange(256) if kind else data[at] ^ (1 << rng.randrange(8))
            elif kind == 2:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = data[at : at + rng.randrange(1, 9)]
        try:
            read(bytes(data))
        except Error:
            refused += 1
    assert 750 < refused < 1500
