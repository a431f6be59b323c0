"""Provenance in engines: the model's hash, options, metadata; equal builds stay equal."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

import pelton
from pelton.cli import main
from pelton.errors import InputError
from pelton.ir.imported import Metadata
from pelton.network import Network

from models import small_cnn


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "réseau 1.onnx"
    onnx.save(small_cnn(seed=np.random.default_rng().integers(1 << 30)), path)
    return path


def test_engines_carry_version_model_options_machine_and_metadata(model, tmp_path):
    engine = pelton.build(model, level=0, strict=True, threads=1, metadata={"team": "vision", "Ä": ""})
    engine.save(tmp_path / "e.pelton")
    for found in (engine.provenance, pelton.load(tmp_path / "e.pelton", device=None).provenance):
        assert found["pelton"] == pelton.__version__
        assert found["model"] == {
            "source": "files",
            "files": [{"file": model.name, "bytes": model.stat().st_size, "sha256": sha(model)}],
            "metadata": {**vars(Metadata()), "graph": onnx.load(model).graph.name},
        }
        assert found["options"] == {"level": 0, "precision": "fp32", "strict": True, "target": "cpu"}
        assert found["metadata"] == {"team": "vision", "Ä": ""}
        assert found["machine"]["isa"] == engine.plain.target["isa"] and found["machine"]["threads"] == 1
        assert str(tmp_path) not in json.dumps(found)


def test_equal_builds_are_bit_equal_wherever_the_model_and_the_files_of_the_search_are(model, tmp_path):
    other = tmp_path / "elsewhere" / model.name
    other.parent.mkdir()
    other.write_bytes(model.read_bytes())
    tactics = tmp_path / "t.json"
    first = pelton.build(model, level=0, save_tactics=tactics, cache_dir=tmp_path / "c", metadata={"b": "1", "a": "2"})
    second = pelton.build(str(other), level=0, metadata={"a": "2", "b": "1"})
    assert first.tobytes() == second.tobytes()
    replayed = pelton.build(model, level=0, load_tactics=tactics, metadata={"a": "2", "b": "1"})
    assert replayed.provenance == first.provenance
    assert first.tobytes() != pelton.build(model, level=0, metadata={"a": "2"}).tobytes()


def test_external_data_belongs_to_the_model(model, tmp_path):
    onnx.save(onnx.load(model), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    files = pelton.build(tmp_path / "m.onnx", level=0).provenance["model"]["files"]
    assert [(f["file"], f["sha256"]) for f in files] == [(n, sha(tmp_path / n)) for n in ("m.onnx", "w.bin")]


def test_models_in_memory_have_the_hash_of_their_bytes_or_say_what_they_were(model):
    data = model.read_bytes()
    found = pelton.build(data, level=0).provenance["model"]
    assert found.pop("metadata")["graph"] == onnx.load(model).graph.name
    assert found == {"source": "bytes", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    found = pelton.build(onnx.load(model), level=0).provenance["model"]
    assert found["sha256"] is None and "ModelProto in memory" in found["source"]
    net = Network()
    net.output(net.relu(net.input("x", (3, 5))), "y")
    assert "Network in memory" in pelton.build(net, level=0).provenance["model"]["source"]


def test_weights_beside_a_configuration_are_hashed(tmp_path):
    (tmp_path / "n.cfg").write_text("[net]\nheight=4\nwidth=4\nchannels=2\n[convolutional]\nfilters=3\nsize=1\n")
    weights = np.random.default_rng().standard_normal(3 + 6).astype(np.float32)
    (tmp_path / "n.weights").write_bytes(np.array([0, 1, 0, 0], np.int32).tobytes() + weights.tobytes())
    files = pelton.build(tmp_path / "n.cfg", level=0).provenance["model"]["files"]
    assert [(f["file"], f["sha256"]) for f in files] == [(n, sha(tmp_path / n)) for n in ("n.cfg", "n.weights")]


def test_options_with_data_are_recorded_by_their_form(model, tmp_path):
    from pelton.builder.provenance import describe
    from pelton.ir.imported import Info

    options = pelton.Options(
        level=0,
        precision="int8",
        calibration={"x": np.zeros((7, 3), np.float32)},
        weights=tmp_path / "w.bin",
        values={"k": np.arange(3), "mask": np.zeros(1000)},
        metric=len,
        shapes={"x": ((1, 2, 3), 5)},
    )
    found = describe(model, Info(str(model)), options)["options"]
    assert found["calibration"] == {"x": "float32[7, 3]"} and found["weights"] == "w.bin"
    assert found["values"] == {"k": [0, 1, 2], "mask": "float64[1000]"}
    assert found["metric"] == "builtins.len" and found["shapes"] == {"x": [[1, 2, 3], 5]}
    json.dumps(found)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": 1}, "texts by name"),
        ({"": "x"}, "texts by name"),
        ({"a": "x" * 4097}, "at most 4096 characters"),
        ({f"k{i}": "" for i in range(65)}, "at most 64 texts"),
        ({"a": "\udc80"}, "UTF-8"),
        ("team=vision", "mapping"),
    ],
)
def test_metadata_that_no_engine_should_carry_is_refused(model, given, says):
    with pytest.raises(InputError, match=says):
        pelton.build(model, level=0, metadata=given)


def test_damaged_records_are_shown_as_far_as_they_go(model, tmp_path):
    engine = pelton.build(model, level=0)
    odd_metadata = {"pelton": "x", "model": {"metadata": {"producer": 3, "version": "x", "custom": [1]}}}
    for record in ("text", None, [1], {"pelton": 3, "model": [], "options": "x", "metadata": [None]}, odd_metadata):
        odd = pelton.Engine(replace(engine.plain, meta={**engine.meta, "provenance": record}))
        odd.save(tmp_path / "odd.pelton")
        assert "machine" in pelton.load(tmp_path / "odd.pelton").provenance
        assert pelton.InferenceSession(tmp_path / "odd.pelton").get_modelmeta().custom_metadata_map == {}
        assert main(["inspect", str(tmp_path / "odd.pelton")]) == 0


def test_what_the_model_says_of_itself_is_shown(model, tmp_path, capsys):
    proto = onnx.load(model)
    proto.producer_name, proto.producer_version, proto.doc_string = "trainer", "2.1", "two\nlines"
    onnx.helper.set_model_props(proto, {"characters": "abc" * 100})
    pelton.build(proto, level=0).save(tmp_path / "e.pelton")
    assert main(["inspect", str(tmp_path / "e.pelton")]) == 0
    shown = capsys.readouterr().out
    assert "producer: trainer\n" in shown and "producer version: 2.1\n" in shown and "description: two lines\n" in shown
    assert f"custom characters: {'abc' * 66}a…\n" in shown and "domain:" not in shown


def test_no_text_of_an_engine_forges_a_line(model, tmp_path, capsys):
    proto = onnx.load(model)
    proto.producer_name, proto.graph.node[0].name = "a\x1b[31m", "first\nstep\x1b[2J"
    pelton.build(proto, level=0, metadata={"team": "x\n  signed by:   SHA256:me"}).save(tmp_path / "e.pelton")
    assert main(["inspect", str(tmp_path / "e.pelton")]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line.split(":")[1].strip() for line in lines if line.startswith("  signed by:")] == ["no one"]
    assert all(line.isprintable() for line in lines) and any("first\\nstep\\x1b[2J" in line for line in lines)


def test_other_weights_are_said(model, tmp_path, capsys):
    path, other = tmp_path / "e.pelton", onnx.load(model)
    pelton.build(model, level=0, refit=True).save(path)
    other.producer_name = "another"
    onnx.save(other, tmp_path / "other.onnx")
    assert main(["refit", str(path), "--weights", str(tmp_path / "other.onnx")]) == 0
    assert main(["inspect", str(path)]) == 0
    refitted = pelton.load(path).provenance["refitted"]
    assert f"with {refitted['weights']} other weights, SHA-256 {refitted['sha256']}" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "other.onnx"), str(path)]) == 0
    assert "another file" not in capsys.readouterr().err


def test_on_the_command_line(model, tmp_path, capsys):
    def run(*words):
        status, said = main(list(map(str, words))), capsys.readouterr()
        return status, said.out, said.err

    out = tmp_path / "e.pelton"
    given = ("--metadata", "team=vision", "--metadata", "note=a=b")
    assert run("build", model, "--level", 0, "-q", "-o", out, *given)[0] == 0
    _, shown, _ = run("inspect", out)
    assert sha(model) in shown and "team: vision" in shown and "note: a=b" in shown and pelton.__version__ in shown
    assert json.loads(run("inspect", out, "--json")[1])["provenance"] == pelton.load(out).provenance
    for wrong, says in (("team", "NAME=TEXT"), ("=x", "NAME=TEXT")):
        status, _, said = run("build", model, "--metadata", wrong, "-o", tmp_path / "none.pelton")
        assert status == 2 and says in said and not (tmp_path / "none.pelton").exists()
