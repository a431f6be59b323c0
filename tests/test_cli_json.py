"""`--json`: one object on stdout whatever else is printed, in strict accordance with docs/schemas."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from models import model, small_cnn
from onnx import helper

import pelton
from pelton.cli import GROUPS, demo, flags, layers, main, output, parser, peers, roofline, timing

jsonschema = pytest.importorskip("jsonschema", reason='jsonschema is not installed: pip install ".[test]"')
referencing = pytest.importorskip("referencing")

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
SCHEMAS = {path.name: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
KNOWN = referencing.Registry().with_resources((n, referencing.Resource.from_contents(s)) for n, s in SCHEMAS.items())
# commands that answer with a script, until they are stopped, and in the form of another tool
WITHOUT = {"chat", "completion", "serve", "trtexec"}


def faults(schema: dict, answer: object) -> list[str]:
    """What a schema finds wrong."""
    return [e.message[:400] for e in jsonschema.Draft202012Validator(schema, registry=KNOWN).iter_errors(answer)]


@pytest.fixture
def answer(capsys):
    """Runs a command with --json and gives its object, which must be as the schema says, and as strictly."""

    def go(*args: str, status: int = 0) -> dict:
        assert main([*args, "--json"]) == status
        out, err = capsys.readouterr()
        assert not out.count("NaN") and not out.count("Infinity") and "Traceback" not in err
        found = json.loads(out)
        schema = SCHEMAS[f"{'error' if status == 2 else args[0]}.json"]
        assert found["pelton"] == pelton.__version__ and faults(schema, found) == []
        for name in found:
            wrong = [[]] if not isinstance(found[name], list) else 7
            assert faults(schema, {**found, name: wrong}), f"{name} may be anything"
        assert faults(schema, {**found, "unheard_of": 1}) and faults(
            schema, {n: found[n] for n in found if n != "pelton"}
        )
        return found

    return go


@pytest.fixture(scope="module")
def script(folder, cache):
    """A model whose data decides, and its engine."""
    path = folder / "once.onnx"
    nodes = [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Relu", ["u"], ["y"])]
    path.write_bytes(model(nodes, {"x": (5,)}, {"y": ("n",)}, {}).SerializeToString())
    assert main(["build", str(path), "-o", str(path.with_suffix(".pelton")), "--level", "0", "-q", *cache]) == 0
    return str(path), str(path.with_suffix(".pelton"))


@pytest.fixture(scope="module")
def fed(folder):
    path = folder / "x.npy"
    np.save(path, np.random.default_rng().standard_normal((1, 3, 12, 12)).astype(np.float32))
    return str(path)


def test_every_command_answers_in_json_and_has_a_schema():
    commands = next(a for a in parser()._actions if a.dest == "command").choices
    assert [name for names in parser().groups.values() for name in names] == list(commands)
    assert len(commands) == sum(map(len, GROUPS.values()))
    for name, command in commands.items():
        assert ("--json" in command._option_string_actions) == (name not in WITHOUT), name
    assert {f"{name}.json" for name in commands.keys() - WITHOUT} | {"common.json", "error.json"} == SCHEMAS.keys()


def test_the_schemas_are_schemas_of_names_alone():
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == name and schema["title"] and "draft/2020-12" in schema["$schema"]


def test_build_and_inspect(answer, tmp_path, cnn, cache, script):
    found = answer("build", cnn, "-o", str(tmp_path / "e.pelton"), "--level", "0", "--check", *cache)
    engine = pelton.load(tmp_path / "e.pelton")
    assert found["steps"] == len(engine.steps) and found["bytes"] == (tmp_path / "e.pelton").stat().st_size
    assert found["inputs"][0]["shape"] == [1, 3, 12, 12] and found["checked"] and found["level"] == 0
    assert len(answer("inspect", str(tmp_path / "e.pelton"))["steps"]) == len(engine.steps)
    assert answer("build", script[0], "-o", str(tmp_path / "s.pelton"), "--level", "0", *cache)["host_steps"]
    assert answer("inspect", script[1])["engines"]


def test_run_and_bench(answer, tmp_path, engines, fed, monkeypatch):
    monkeypatch.setattr(layers, "measure_roof", lambda engine, threads: roofline.Roof(90.0, 9.0))
    found = answer("run", engines["seeing"], "--input", fed, "--output", str(tmp_path / "y.npy"), "--top", "3")
    want = np.load(tmp_path / "y.npy")
    assert found["outputs"]["y"]["max"] == pytest.approx(want.max()) and found["files"] == [str(tmp_path / "y.npy")]
    assert [c["class"] for c in found["top"][0]] == list(np.argsort(-want[0])[:3])
    assert found["top"][0][0]["label"].startswith("thing ")
    assert "top" not in answer("run", engines["cnn"], "--input", fed)
    found = answer("bench", engines["cnn"], "--seconds", "0", "--warmup", "0", "--layers")
    assert found["latency_ms"]["median"] > 0 and sum(s["share"] for s in found["layers"]) == pytest.approx(1)
    quick = ("--seconds", "0", "--warmup", "0")
    (tmp_path / "before.json").write_text(json.dumps(found))
    assert not answer("bench", engines["cnn"], *quick, "--baseline", str(tmp_path / "before.json"))["baseline"][
        "unlike"
    ]
    assert answer("bench", engines["cnn"], *quick, "--streams", "2", "--threads", "1")["streams"] == 2
    assert answer("trace", engines["cnn"], "-o", str(tmp_path / "t.json"), "--warmup", "0")["runs"] == 3
    page = answer("view", engines["cnn"], "-o", str(tmp_path / "v.html"))
    assert page["bytes"] == (tmp_path / "v.html").stat().st_size and page["engines"] == [engines["cnn"]]
    times = timing.Times(np.array([7, 9]))
    for measured in (
        peers.Measured("a", "1.0", rounds=[times], off=float("inf")),
        peers.Measured("a", "1.0", rounds=[times], split=(2, 1)),
        peers.Measured("b", failure="no"),
    ):
        assert not faults({"$ref": "common.json#/$defs/peer"}, output.plain(measured.json()))


def test_refit_and_sign(answer, tmp_path, cnn, cache):
    ed25519 = pytest.importorskip(
        "cryptography.hazmat.primitives.asymmetric.ed25519", reason="cryptography is not here"
    )
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key, engine = tmp_path / "key.pem", str(tmp_path / "e.pelton")
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*forms))
    answer("build", cnn, "-o", engine, "--level", "0", "--strip-weights", *cache)
    found = answer("refit", engine, "--weights", cnn)
    assert found["weights"] == found["refittable"] > 0 and found["file"] == engine
    (signer,) = answer("sign", engine, "--key", str(key))["signers"]
    assert answer("inspect", engine)["signers"] == [signer]


def test_an_output_that_is_not_finite(answer, folder, cache):
    path = folder / "root.onnx"
    path.write_bytes(model([helper.make_node("Sqrt", ["x"], ["y"])], {"x": (3,)}, {"y": (3,)}, {}).SerializeToString())
    assert main(["build", str(path), "-o", f"{path}.pelton", "--level", "0", "-q", *cache]) == 0
    np.save(folder / "minus.npy", np.array([-1, 2, np.inf], np.float32))
    assert answer("run", f"{path}.pelton", "--input", str(folder / "minus.npy"))["outputs"]["y"]["mean"] == "nan"


def test_check_compare_and_convert(answer, tmp_path, cnn, engines):
    assert answer("check", cnn)["ok"] is True
    wrong = small_cnn(size=12)
    wrong.graph.node[0].op_type = "Nothing"
    (tmp_path / "wrong.onnx").write_bytes(wrong.SerializeToString())
    assert answer("check", str(tmp_path / "wrong.onnx"), status=1)["problems"]
    assert answer("compare", cnn, engines["cnn"], "--seed", "7")["seed"] == 7
    found = answer("export", engines["cnn"], "-o", str(tmp_path / "net"))
    assert found["name"] == "net" and found["bytes"] == sum(f.stat().st_size for f in (tmp_path / "net").rglob("*.*"))
    assert answer("compare", cnn, engines["cnn"], "--tolerance", "1e-12", status=1)["ok"] is False
    found = answer("convert", cnn, "-o", str(tmp_path / "c.onnx"))
    assert found["bytes"] == (tmp_path / "c.onnx").stat().st_size and found["opset"] >= 18
    found = answer("convert", cnn, "-o", str(tmp_path / "c.mlir"))
    assert found["bytes"] == (tmp_path / "c.mlir").stat().st_size and found["format"] == "StableHLO"


def test_compress(answer, tmp_path):
    rng, net = np.random.default_rng(0), pelton.Network()
    x = net.input("x", "f32[batch, 64]")
    net.output(net.matmul(x, rng.standard_normal((64, 64)).astype(np.float32)), "y")
    pelton.export_onnx(net, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=rng.standard_normal((40, 64)).astype(np.float32))
    model, path, report = (str(tmp_path / name) for name in ("m.onnx", "small.onnx", "report.json"))
    found = answer("compress", model, "-o", path, "--report", report, "--threads", "1")
    assert found["accuracy"] is None and json.loads(Path(report).read_text()) == found
    assert found["bytes"] == Path(path).stat().st_size
    found = answer("compress", model, "-o", path, "--data", str(tmp_path / "x.npz"), "--threads", "1")
    assert found["accuracy"]["kl"] > 0 and found["layers"][0]["error"] > 0 and found["data"] == "40 samples"


def test_explain(answer, cnn, script, cache):
    (program,) = answer("explain", cnn)["programs"]
    assert program["rejected"] and all(s["tactics"] for s in program["steps"])
    found = answer("explain", script[0])
    assert found["reason"] and len(found["programs"]) == 1
    assert answer("explain", cnn, "--graph", "import")["programs"][0]["graph"].startswith("graph ")
    assert answer("explain", cnn, "--why-not", "winograd")["programs"][0]["name"] == "winograd"
    found = answer("explain", cnn, "--error", "--level", "0", *cache)
    assert found["quantized"] is None and found["outputs"]["y"]["engine"] < 1e-3


def test_of_the_machine(answer, tmp_path, monkeypatch):
    from pelton.system import environments

    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path))
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "a.o").write_bytes(b"12345")
    assert answer("cache", "info")["bytes"] == 5
    assert answer("cache", "prune")["left"] == {"files": 1, "bytes": 5}
    assert answer("cache", "clear")["removed"] == {"files": 1, "bytes": 5}
    assert answer("doctor")["environment"]["PELTON_CACHE_DIR"] == str(tmp_path)
    assert answer("formats")["ONNX"]["files"].startswith(".onnx")
    assert answer("import-env").keys() == {"pelton", "environments"}
    assert answer("import-env", "jax", "--remove")["removed"] is False
    monkeypatch.setattr(environments, "make", lambda name, tell: environments.Interpreter("/bin/python", "1"))
    assert answer("import-env", "jax")["python"] == "/bin/python"


def test_tune(answer, tmp_path, monkeypatch, engines):
    """The timing itself needs a GPU: here is another engine in its place."""

    def timed(engine, device, *, budget, progress):
        first, *rest = engine.plain.steps
        times = {first.info["tactic"]: 900, "another": 700}
        changed = dataclasses.replace(first, symbol="k", info={**first.info, "tactic": "another", "times_ns": times})
        return pelton.Engine(dataclasses.replace(engine.plain, steps=(changed, *rest)))

    monkeypatch.setattr(pelton, "tune", timed)
    found = answer("tune", engines["cnn"], "-o", str(tmp_path / "t.pelton"))
    assert (found["timed"], found["ns"], found["was_ns"]) == (1, 700, 900)
    assert [c["tactic"] for c in found["changed"]] == ["another"]


def test_demo(answer, monkeypatch, kernel_cache, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed here")
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    monkeypatch.setattr(demo.timing, "measure", lambda run, *_: np.array([5e5, 7e5]))
    found = answer("demo", "--level", "0")
    assert found["pictures"] >= found["right"] > 0 and found["latency_ms"]["mean"] == 0.6 and found["vs"] == []
    image.fromarray(np.random.default_rng(3).integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / "noise.png")
    assert len(answer("demo", "--level", "0", "--picture", str(tmp_path / "noise.png"))["top"]) == 3


def test_what_others_print_goes_to_stderr(capsys, monkeypatch, engines):
    given = output.emit

    def chatty(args, result):
        print("a library is proud of itself")
        given(args, result)

    monkeypatch.setattr(output, "emit", chatty)
    assert main(["inspect", engines["cnn"], "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "test" and "proud" in err and "proud" not in out


def test_errors_are_objects_too(answer, capsys, tmp_path, engines):
    (tmp_path / "not.pelton").write_bytes(b"no engine")
    for args, kind in (
        (["build", str(tmp_path / "absent.onnx")], "ModelError"),
        (["inspect", str(tmp_path / "not.pelton")], "EngineError"),
        (["run", engines["cnn"], "--input", "z=x.npy"], "InputError"),
    ):
        assert main([*args, "--json"]) == 2
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert faults(SCHEMAS["error.json"], found) == [] and found["error"]["type"] == kind
        assert err.endswith(f"error: {found['error']['message']}\n")
    with pytest.raises(SystemExit, match="2"):
        main(["build", "m.onnx", "--levle", "3", "--json"])
    assert "(did you mean '--level'?)" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_error_types_are_public_names():
    kinds = SCHEMAS["error.json"]["properties"]["error"]["properties"]["type"]["enum"]
    public = {n for n in pelton.__all__ if isinstance(k := getattr(pelton, n), type) and issubclass(k, pelton.Error)}
    assert set(kinds) == public
    assert flags.translate_options("set it with shapes=") == "set it with --shapes"
