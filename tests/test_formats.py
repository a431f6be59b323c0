"""Model formats: recognized by content, refused with the way around, listed as documented."""

import itertools
import json
import random
import re
from pathlib import Path

import framework_files as made
import numpy as np
import onnx
import pytest

import pelton
import pelton.importers
from pelton.cli import formats, main
from pelton.errors import FormatError
from pelton.importers import foreign, signs
from pelton.importers.frameworks import retired
from pelton.importers.registry import FORMATS, ModelFiles, format_of

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
FILES = [(name, data) for known in (made.READ, made.RETIRED) for name, datas in known.items() for data in datas]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(FILES)]


@pytest.mark.parametrize("name, data", FILES, ids=IDS)
def test_content_tells_the_format_whatever_the_name(tmp_path, name, data):
    for called in ("model", "model.bin", "model.onnx", "model.pb", "model.keras", "model.json"):
        path = tmp_path / called
        path.write_bytes(data)
        assert format_of(path).name == format_of(str(path)).name == name, called
    assert format_of(data).name == format_of(bytearray(data)).name == name


@pytest.mark.parametrize("name, data", FILES, ids=IDS)
def test_no_other_format_takes_it(name, data):
    assert [f.name for f in FORMATS if f.recognizes(data)] == [name]


def test_folders_are_told_by_what_is_in_them(tmp_path):
    saved, paddle = tmp_path / "saved", tmp_path / "paddle"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(made.saved_model())
    paddle.mkdir()
    (paddle / "readme.json").write_text('{"license": "MIT"}')
    (paddle / "inference.pdmodel").write_bytes(made.program_desc())
    assert format_of(saved).name == format_of(saved / "saved_model.pb").name == "TensorFlow"
    assert format_of(paddle).name == "PaddlePaddle"
    (paddle / "inference.pdmodel").unlink()
    with pytest.raises(FormatError, match="without a SavedModel"):
        format_of(paddle)


def test_what_is_cut_off_is_of_no_other_format():
    """Any beginning of an ONNX model is one, or nothing that is known."""
    for size in [*range(300), *range(300, len(made.ONNX), 997)]:
        assert {f.name for f in FORMATS if f.recognizes(made.ONNX[:size])} <= {"ONNX"}, size


def test_models_of_other_exporters_are_onnx():
    model = onnx.ModelProto(ir_version=3, producer_name="日本 exporter", doc_string="two\nlines")
    model.graph.name = "g"
    model.opset_import.add(version=9)
    turned = onnx.ModelProto(doc_string="long " * 2000)
    for data in (model.SerializeToString(), model.SerializeToString() + turned.SerializeToString()):
        assert format_of(data).name == "ONNX" and signs.is_onnx(data)
    graph_first = made.field(7, model.graph.SerializeToString()) + made.field(1, 8)
    assert signs.is_onnx(graph_first)
    assert not signs.is_onnx(b"") and not signs.is_onnx(made.field(1, 0)) and not signs.is_onnx(made.field(1, 5000))


def test_damaged_files_are_of_some_format_or_none(tmp_path):
    rng = random.Random(7)
    path = tmp_path / "damaged"
    for _ in range(400):
        data = bytearray(rng.choice(FILES)[1][: rng.randrange(1, 3000)])
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            assert format_of(path) in FORMATS
        except FormatError:
            pass


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    assert signs.head(tmp_path / "pipe") == signs.head("/dev/zero") == signs.head(tmp_path / "none") == b""
    assert signs.head("a\0b") == signs.head(3) == b""


# --- errors


def test_unknown_content_lists_what_is_read(tmp_path):
    path = tmp_path / "model.weights"
    path.write_text("hello")
    with pytest.raises(pelton.ModelError) as e:
        pelton.build(path, level=0)
    said = str(e.value)
    assert str(path) in said and "b'hello'" in said and "pelton formats" in said
    assert all(f.name in said for f in FORMATS if f.about.covers) and "UFF" not in said


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 97\n"


@pytest.mark.parametrize("called", ["m", "m.onnx", "m.tflite", "m.cfg", "m.prototxt", "m.keras", "m.pt", "m.pelton"])
def test_pointers_of_git_lfs_and_engines_are_told_whatever_their_names(tmp_path, called):
    path = tmp_path / called
    for data, why in ((POINTER, "it is a Git LFS pointer"), (b"\x93PELTON\n\7\0", "it is already an engine")):
        path.write_bytes(data)
        for given, name in ((path, str(path)), (str(path), str(path)), (data, "the given data")):
            with pytest.raises(FormatError, match=why) as e:
                pelton.build(given, level=0)
            assert str(e.value).startswith(f"{name} is not a model file: ")
    path.write_bytes(POINTER)
    with pytest.raises(pelton.EngineError, match="is not a Pelton engine: it is a Git LFS pointer"):
        pelton.load(path)


@pytest.mark.parametrize("called", ["m.ort", "m.onnx", "m"])
def test_files_of_onnx_runtimes_own_format_are_told_at_every_door(tmp_path, capsys, called):
    path, data = tmp_path / called, made.RETIRED["ONNX Runtime's own format"][0]
    path.write_bytes(data)
    said = "model of ONNX Runtime's own format.*save_model_format', 'ONNX'"
    for door, given in itertools.product((pelton.build, pelton.InferenceSession), (str(path), data)):
        with pytest.raises(pelton.ModelError, match=said):
            door(given)
    assert main(["check", str(path)]) != 0 and re.search(said, capsys.readouterr().err)


def test_damaged_files_are_of_the_format_that_their_names_tell(tmp_path):
    for called, name in (("a.onnx", "ONNX"), ("a.ONNX", "ONNX"), ("a.tflite", "TFLite"), ("a.keras", "Keras")):
        path = tmp_path / called
        path.write_bytes(b"\xffdamaged")
        assert format_of(path).name == name
        with pytest.raises(pelton.ModelError, match="damaged|does not begin as one") as e:
            pelton.build(path, level=0)
        assert "lists supported formats" in str(e.value) or name != "ONNX"
    (tmp_path / "a.pdmodel").write_bytes(b"\xffdamaged")
    assert format_of(tmp_path / "a.pdmodel").name == "PaddlePaddle"


def test_an_empty_path_is_none(capsys):
    assert main(["check", ""]) == 2
    assert capsys.readouterr().err == "error: the path of the model is empty; pass the path of a file\n"


def test_explain_names_opsets_only_where_there_are_some(tmp_path, capsys):
    path = tmp_path / "a.prototxt"
    path.write_bytes(b"name: 'x'\ninput: 'x' input_shape { dim: 2 dim: 3 } layer { type: 'ReLU' bottom: 'x' top: 'y' }")
    assert main(["explain", str(path), "--graph", "import"]) == 0
    assert main(["explain", str(path)]) == 0
    assert "of constants; made by Caffe" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, damage",
    [
        ("a.tflite", lambda data: data[:20]),
        ("a.tflite", lambda data: bytes(len(data))),
        ("a.tflite", lambda data: b"hello\n" * 20),
        ("a.tflite", lambda data: b""),
        ("a.pt2", lambda data: b""),
        ("a.h5", lambda data: b""),
        ("a.onnx", lambda data: b""),
        ("a.onnx", lambda data: data[:-9]),
        ("a.cfg", lambda data: b"[net]\nbatch=1\n[conv"),
        ("a.prototxt", lambda data: b"name: 'x'\nlayer { name:"),
        ("absent.tflite", None),
        ("absent.prototxt", None),
    ],
)
def test_check_of_what_cannot_be_read_is_an_error_in_one_line(tmp_path, capsys, name, damage):
    path = tmp_path / name
    whole = {".tflite": made.READ["TFLite"][0], ".onnx": made.ONNX}.get(path.suffix, b"")
    if damage is not None:
        path.write_bytes(damage(whole))
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.startswith("error: ") and said.err.count("\n") == 1 and name in said.err
    assert damage is None or damage(whole) or f"{name} is empty; " in said.err


@pytest.mark.parametrize("name", [*made.RETIRED, *made.NAMED])
def test_formats_that_ended_say_the_way_around(tmp_path, name):
    given = made.NAMED.get(name) or {f"model{i}": data for i, data in enumerate(made.RETIRED[name])}
    command = next(command for other, _, _, _, command in retired.RETIRED if other == name)
    for called, data in given.items():
        path = tmp_path / called
        path.write_bytes(data)
        for do in (pelton.importers.load, pelton.importers.examine, pelton.importers.unread):
            with pytest.raises(pelton.ModelError, match=re.escape(f"model of {name}")) as e:
                do(path)
            assert str(path) in str(e.value) and command in str(e.value)


FOREIGN = [(name, called) for name, files in made.FOREIGN.items() for called in files]


@pytest.mark.parametrize("name, called", FOREIGN)
def test_files_of_others_are_named_with_the_way_in(tmp_path, capsys, name, called):
    """By their content under any name, where that tells; files that only their names tell keep these."""
    data = made.FOREIGN[name][called]
    (known,) = (f for f in foreign.FOREIGN if f.name == name)
    by_content = known.recognizes(data)
    for path in [tmp_path / called, *([tmp_path / "model", tmp_path / "model.onnx"] if by_content else [])]:
        path.write_bytes(data)
        for do in (pelton.importers.load, pelton.importers.examine, pelton.importers.unread):
            with pytest.raises(FormatError, match=re.escape(known.what)) as e:
                do(path)
            assert str(path) in str(e.value) and known.way in str(e.value) and known.command in str(e.value)
        assert main(["check", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert [f.name for f in FORMATS if f.recognizes(data)] in ([name], [])
    if known.suffixes:
        with pytest.raises(FileNotFoundError, match="there is no file"):
            pelton.build(tmp_path / f"absent{known.suffixes[0]}")


def test_every_file_of_others_has_an_example():
    assert made.FOREIGN.keys() | {"Hugging Face"} == {f.name for f in foreign.FOREIGN}
    ambiguous = [f.name for f in foreign.FOREIGN for d in FILES if f.recognizes(d[1])]
    assert not ambiguous


def test_folders_of_others_are_named_with_the_way_in(tmp_path):
    module, package, both = tmp_path / "bert", tmp_path / "m.mlpackage", tmp_path / "both"
    for folder in (module, package / "Data" / "com.apple.CoreML", both / "onnx"):
        folder.mkdir(parents=True)
    (module / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    with pytest.raises(FormatError, match="module of transformers.*optimum-cli export onnx --model"):
        pelton.build(module)
    with pytest.raises(FormatError, match="a model of Core ML"):
        pelton.build(package)
    (both / "config.json").write_text('{"model_type": "bert"}')
    (both / "onnx" / "model.onnx").write_bytes(made.ONNX)
    with pytest.raises(FormatError, match="is a folder; pass the path of the model in it: onnx/model.onnx"):
        pelton.build(both)
    (both / "config.json").write_text('{"model_type": ')
    (both / "onnx" / "model.onnx").unlink()
    with pytest.raises(FormatError, match="without a SavedModel"):
        pelton.build(both)


def test_weights_beside_a_network_of_others_are_of_it(tmp_path):
    for called, data, name in (("ov.xml", made.OPENVINO, "OpenVINO"), ("n.param", b"7767517\n75 83\n", "ncnn")):
        (tmp_path / called).write_bytes(data)
        weights = (tmp_path / called).with_suffix(".bin")
        weights.write_bytes(bytes(100))
        assert format_of(weights).name == name


def test_archives_are_said_to_be_some(tmp_path):
    import gzip
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("model.onnx", made.ONNX)
    (tmp_path / "a.gz").write_bytes(gzip.compress(made.ONNX))
    for name in ("a.zip", "a.gz"):
        with pytest.raises(FormatError, match="is an archive or a compressed file.*unpack it"):
            pelton.build(tmp_path / name)


def test_commands_of_the_way_around_are_code():
    for command in (*(way[-1] for way in retired.RETIRED), *(f.command for f in foreign.FOREIGN)):
        for code in re.findall(r'python -c "(.*?)"(?: |$)', command):
            compile(code, "command", "exec")


def test_second_files_are_for_formats_that_have_them(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(made.HDF5)
    with pytest.raises(pelton.InputError, match="PaddlePaddle.*Keras, leave it out"):
        format_of(ModelFiles(path, "w"))


def test_functions_of_jax_get_two_lines(monkeypatch):
    import sys
    import types

    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    with pytest.raises(pelton.InputError, match="^function is an object of JAX.*jax2onnx.to_onnx"):
        pelton.build(lambda x: x)
    with pytest.raises(pelton.InputError, match="^function is an object of JAX.*jax2onnx.to_onnx"):
        pelton.build(lambda x: x, example_inputs=np.zeros(3))
    monkeypatch.delitem(sys.modules, "jax")
    with pytest.raises(pelton.ModelError, match="expected the path of an ONNX model"):
        pelton.build(lambda x: x)


@pytest.mark.parametrize(
    "module, name, way",
    [
        ("flax.nnx", "JAX", "jax2onnx"),
        ("keras.src.models", "Keras", "model.save"),
        ("paddle.nn", "Paddle", "paddle.jit"),
    ],
)
def test_objects_of_frameworks_have_to_be_exported(module, name, way):
    base = type("Module", (), {"__module__": module})
    with pytest.raises(pelton.InputError, match=f"^Mine is an object of {name}.*{re.escape(way)}"):
        pelton.build(type("Mine", (base,), {})())


# --- what is said of them


def test_every_format_tells_of_itself():
    for f in FORMATS:
        assert f.about.files and f.about.export, f"{f.name} needs `about`"
        assert bool(f.about.covers) == bool(f.about.checked) and (f.about.covers or f.name in retired_names()), f.name


def retired_names():
    return {name for name, *_ in retired.RETIRED} | {f.name for f in foreign.FOREIGN}


def test_the_command_lists_all(capsys):
    assert main(["formats"]) == 0
    out = capsys.readouterr().out
    heads = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert heads[0] == "ONNX" and len(heads) == len(FORMATS) and "UFF (not read)" in heads
    assert all(len(line) <= 110 for line in out.splitlines())
    assert main(["formats", "KERAS", ".uff"]) == 0
    assert re.findall(r"^\S.*", capsys.readouterr().out, re.M) == ["Keras", "UFF (not read)"]
    for words, word in (
        (["nothing-of-this-name"], "nothing-of-this-name"),
        (["keras", "safetensor s"], "safetensor s"),
    ):
        assert main(["formats", *words]) == 2
        said = capsys.readouterr()
        assert not said.out and said.err.startswith(f"error: no format has {word!r} in its name or files")
    assert "did you mean 'Safetensors'" in said.err
    assert main(["formats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["pelton", *(f.name for f in formats.formats())] and found["ONNX"]["files"].startswith(
        ".onnx"
    )


def test_the_page_has_the_table():
    text = PAGE.read_text()
    assert formats.markdown() in text, "write the tables of docs/formats.md again: make formats"


def test_an_engine_of_a_renamed_model_is_the_same(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(made.ONNX)
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)
    options = {"level": 0, "cache_dir": tmp_path / "cache"}
    np.testing.assert_array_equal(pelton.build(path, **options)(x), pelton.build(made.ONNX, **options)(x))
