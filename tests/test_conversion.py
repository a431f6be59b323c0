"""Conversions in child processes, with stubs of the frameworks: what children are given, how they end, what is kept."""

import os
import signal
import stat
import sys
import time
import zipfile
from pathlib import Path

import framework_files as made
import numpy as np
import onnx
import pytest

import pelton
import pelton.importers
from pelton.cli import main
from pelton.importers.frameworks import conversion, environments, keras
from pelton.system import temporary

KERAS = """
import os, sys, time
class Tensor:
    name = "x"
class Model:
    inputs, output_names = [Tensor], {names}
    def export(self, folder, verbose):
        target = sys.argv[1]
        {body}
        os.mkdir(folder)
        open(os.path.join(folder, "saved_model.pb"), "wb").close()
class saving:
    def load_model(path, compile, safe_mode):
        with open({log!r}, "a") as file: print(path, compile, safe_mode, file=file)
        assert os.path.exists(path)
        return Model()
"""
SAVED_MODEL_PB2 = """
class MetaGraph:
    class meta_info_def: tags = ["serve"]
    signature_def = {signatures}
class SavedModel:
    meta_graphs = [MetaGraph]
    def ParseFromString(self, data): pass
"""
TF2ONNX = """
import shutil, sys
def main():
    assert sys.argv[1:8:2] == ["--saved-model", "--tag", "--signature_def", "--output"], sys.argv
    assert sys.argv[4:7:2] == ["serve", "serving_default"]
    shutil.copy({onnx!r}, sys.argv[8])
"""


class Stubs:
    """Environments whose Python is this one, with modules of the tests in place of the frameworks."""

    def __init__(self, folder: Path):
        self.folder, self.log, self.onnx = folder, folder / "log.txt", folder / "converted.onnx"
        self.modules = folder / "modules"
        self.modules.mkdir()
        model = onnx.ModelProto.FromString(made.ONNX)
        model.graph.node.add(op_type="Identity", input=["y"], output=["output_0"])
        model.graph.output[0].name = "output_0"
        onnx.save(model, self.onnx)

    def environment(self, name: str) -> Path:
        home = environments.folder(name)
        (home / "bin").mkdir(parents=True)
        python = home / "bin" / "python"
        path = os.pathsep.join([str(self.modules), *(p for p in sys.path if "site-packages" in p)])
        python.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec {sys.executable} \"$@\"\n")
        python.chmod(0o755)
        (home / environments.VERSIONS).write_text("{}")
        return home

    def keras(self, body: str = "pass", names: tuple[str, ...] = ("scores",)) -> None:
        (self.modules / "keras.py").write_text(KERAS.format(body=body, names=list(names), log=str(self.log)))
        self.tensorflow()

    def tensorflow(self, *signatures: str) -> None:
        protobuf = self.modules / "tensorflow" / "core" / "protobuf"
        protobuf.mkdir(parents=True, exist_ok=True)
        text = SAVED_MODEL_PB2.format(signatures=signatures or ("__init", "other", "serving_default"))
        (protobuf / "saved_model_pb2.py").write_text(text)
        (self.modules / "tf2onnx").mkdir(exist_ok=True)
        (self.modules / "tf2onnx" / "convert.py").write_text(TF2ONNX.format(onnx=str(self.onnx)))

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(temporary.tempfile, "tempdir", None)
    yield Stubs(tmp_path)
    assert os.listdir(tmp_path / "temporary") == [], "a conversion left something behind"


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "net.keras"
    path.write_bytes(made.keras_archive())
    return path


def refusal(path, kind=pelton.ModelError):
    with pytest.raises(kind) as e:
        pelton.importers.load(path)
    assert str(path) in str(e.value)
    return str(e.value)


# --- what a conversion gives


def test_a_converted_model_is_built(stubs, archive):
    stubs.environment("tensorflow")
    stubs.keras()
    engine = pelton.build(archive, level=0)
    x = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    want = pelton.build(made.ONNX, level=0).run({"x": x})["y"]
    assert [p.name for p in engine.outputs] == ["scores"]
    np.testing.assert_array_equal(engine.run({"x": x})["scores"], want)
    assert stubs.calls == [f"{archive} False True"]


@pytest.mark.parametrize("names", [("a", "b"), ("x",)], ids=["too many", "taken"])
def test_names_that_do_not_fit_are_left(stubs, archive, names):
    stubs.environment("tensorflow")
    stubs.keras(names=names)
    assert [v.name for v in pelton.importers.load(archive).graph.outputs] == ["output_0"]


def test_the_command_line_takes_it(stubs, archive, capsys, tmp_path):
    stubs.environment("tensorflow")
    stubs.keras()
    assert main(["build", str(archive), "-o", str(tmp_path / "e.pelton"), "--level", "0", "-q"]) == 0
    assert main(["check", str(archive)]) == 0
    assert f"{archive.name} can be built" in capsys.readouterr().out and len(stubs.calls) == 1


def test_conversions_are_kept_by_content(stubs, archive, monkeypatch):
    home = stubs.environment("tensorflow")
    stubs.keras()
    moved = archive.with_name("moved")
    moved.write_bytes(archive.read_bytes())
    for model in (archive, archive, moved, moved.read_bytes(), bytearray(moved.read_bytes())):
        assert pelton.importers.load(model).graph.outputs[0].name == "scores"
    assert len(stubs.calls) == 1
    moved.write_bytes(made.keras_archive({"other": 1}))
    pelton.importers.load(moved)
    assert len(stubs.calls) == 2
    assert stubs.calls[1].split()[0].endswith("model.keras")  # named by content, as Keras wants it
    (home / environments.VERSIONS).write_text('{"keras": "99"}')
    pelton.importers.load(moved)
    assert len(stubs.calls) == 3
    monkeypatch.setenv("PELTON_CACHE_DIR", str(stubs.folder / "none"))
    assert "pelton import-env tensorflow" in refusal(moved)


def test_folders_are_told_apart_by_every_file(tmp_path):
    folder = tmp_path / "saved"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(made.saved_model())
    keys = {conversion._key([folder], "1", False)}
    for change in ("variables/a", "variables/b", "b"):
        (folder / change).write_bytes(b"1")
        keys.add(conversion._key([folder], "1", False))
    (folder / "b").write_bytes(b"2")
    keys |= {
        conversion._key([folder], "1", False),
        conversion._key([folder], "1", True),
        conversion._key([folder], "2", False),
    }
    assert len(keys) == 7
    os.symlink(folder / "b", folder / "link")
    conversion._key([folder], "1", False)
    os.symlink("/", folder / "root")
    with pytest.raises(pelton.ModelError, match="is a link to a folder"):
        conversion._key([folder], "1", False)
    (folder / "root").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(pelton.ModelError, match="neither a file nor a folder"):
        conversion._key([folder], "1", False)


@pytest.mark.parametrize("signatures", [("one", "other"), ("__init",)], ids=["several", "none"])
def test_a_saved_model_needs_a_signature(stubs, tmp_path, signatures):
    stubs.environment("tensorflow")
    stubs.tensorflow(*signatures)
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(made.saved_model())
    said = refusal(folder)
    assert "needs a signature serving_default" in said and "signatures=" in said
    assert ("one, other" in said) == (len(signatures) == 2)


def test_paddle_gets_both_files(stubs, tmp_path):
    stubs.environment("paddle")
    (stubs.modules / "paddle2onnx.py").write_text(
        "import shutil\ndef export(model, parameters, target, **more):\n"
        f"    assert open(parameters).read() == 'numbers'\n    shutil.copy({str(stubs.onnx)!r}, target)\n"
        f"    open({str(stubs.log)!r}, 'a').write(model + '\\n')\n"
    )
    program, numbers = tmp_path / "net.json", tmp_path / "net.pdiparams"
    program.write_bytes(made.PIR)
    assert f"there is no file {numbers}" in refusal(program)
    other = tmp_path / "w"
    other.write_text("numbers")
    assert pelton.importers.load(pelton.importers.ModelFiles(program, other)).graph.outputs[0].name == "output_0"
    numbers.write_text("numbers")
    pelton.importers.load(tmp_path)  # the folder of the program
    assert stubs.calls == [str(program)]
    (tmp_path / "second.pdmodel").write_bytes(made.program_desc())
    assert "net.json, second.pdmodel" in refusal(tmp_path)


# --- how it fails


def test_what_a_converter_said_is_shown(stubs, archive):
    stubs.environment("tensorflow")
    stubs.keras("print('about to fail'); raise NotImplementedError('op Foo')")
    said = refusal(archive)
    assert "status 1" in said and "about to fail" in said and "NotImplementedError: op Foo" in said
    stubs.keras("print('x' * 100_000); print(*range(1000), sep='\\n'); sys.exit(5)")
    said = refusal(archive)
    assert "status 5" in said and "  999" in said and "  900" not in said and len(said) < 3000


@pytest.mark.parametrize(
    "body, expected",
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("print('all done'); os._exit(0)", "status 0.*all done"),
        ("print('it has no inputs'); sys.exit(3)", r"net.keras: it has no inputs$"),
        ("open(target, 'w').write('junk'); os._exit(0)", "converted to ONNX, should be an ONNX model"),
    ],
    ids=["killed", "nothing written", "refused", "no onnx"],
)
def test_how_a_child_may_end(stubs, archive, body, expected):
    import re

    stubs.environment("tensorflow")
    stubs.keras(body)
    assert re.search(expected, refusal(archive), re.S)


def test_time_is_limited(stubs, archive, monkeypatch):
    stubs.environment("tensorflow")
    pid = stubs.folder / "pid"
    stubs.keras(f"open({str(pid)!r}, 'w').write(str(os.getpid())); print('slow', flush=True); time.sleep(60)")
    monkeypatch.setenv("PELTON_IMPORT_TIMEOUT", "3")
    start = time.monotonic()
    said = refusal(archive)
    assert "longer than 3 s" in said and time.monotonic() - start < 30
    assert pid.exists() and "slow" in said
    assert not Path(f"/proc/{pid.read_text()}").exists()
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv("PELTON_IMPORT_TIMEOUT", wrong)
        with pytest.raises(pelton.InputError, match="PELTON_IMPORT_TIMEOUT"):
            pelton.importers.load(archive)


def test_ctrl_c_ends_the_child(stubs, archive, monkeypatch):
    stubs.environment("tensorflow")
    pid = stubs.folder / "pid"
    stubs.keras(f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")

    def interrupt(*of):
        if pid.exists() and pid.read_text():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            pelton.importers.load(archive)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_without_packages_it_says_what_to_do(stubs, archive, monkeypatch):
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    assert "pelton import-env tensorflow" in refusal(archive)


def test_packages_beside_pelton_will_do(stubs, archive, monkeypatch):
    stubs.keras()
    monkeypatch.syspath_prepend(str(stubs.modules))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stubs.modules), *filter(None, sys.path)]))
    assert pelton.importers.load(archive).graph.outputs[0].name == "scores"
    assert environments.find("tensorflow").own


def test_variables_of_this_python_are_not_for_others(stubs, archive, monkeypatch):
    """A module that PYTHONPATH leads to here is not found by the Python of an environment."""
    monkeypatch.setenv("SHOWN", str(stubs.folder / "variables.txt"))
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    home = stubs.environment("tensorflow")
    python = home / "bin" / "python"
    python.write_text(python.read_text().replace("#!/bin/sh\n", '#!/bin/sh\nenv > "$SHOWN"\n'))
    stubs.keras()
    pelton.importers.load(archive)
    seen = dict(line.split("=", 1) for line in Path(os.environ["SHOWN"]).read_text().splitlines() if "=" in line)
    assert "PYTHONHOME" not in seen and seen["CUDA_VISIBLE_DEVICES"] == "-1"
    assert seen["TMPDIR"].startswith(str(stubs.folder / "temporary"))


# --- archives of Keras


def written(tmp_path, data):
    path = tmp_path / "given.keras"
    path.write_bytes(data)
    return path


def test_archives_that_would_expand(stubs, tmp_path, monkeypatch):
    monkeypatch.setattr(keras, "FREE", 1 << 20)
    bomb = made.keras_archive(**{"model/zeros": bytes(1 << 24)})
    assert len(bomb) < 1 << 15
    said = refusal(written(tmp_path, bomb))
    assert "would expand to" in said and str(1 << 20) in said
    monkeypatch.setattr(keras, "ENTRIES", 50)
    assert "103 entries" in refusal(written(tmp_path, made.keras_archive(**{f"e{i}": b"" for i in range(100)})))
    monkeypatch.setattr(keras, "CONFIG", 1000)
    assert "describes its layers in" in refusal(written(tmp_path, made.keras_archive({"long": "x" * 1000})))


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:\\evil"])
def test_entries_that_lead_elsewhere(stubs, tmp_path, name):
    assert "leads out of its folder" in refusal(written(tmp_path, made.keras_archive(**{name: b"x"})))


def test_links_and_entries_of_one_name(stubs, tmp_path):
    link = zipfile.ZipInfo("assets")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "is a link" in refusal(written(tmp_path, made.keras_archive(link=(link, "/etc"))))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = made.keras_archive(twice=("config.json", "{}"))
    assert "two entries of one name" in refusal(written(tmp_path, twice))


def test_damaged_archives(stubs, tmp_path):
    """Any byte may be wrong: an error in words, unless nothing that is looked at has changed."""
    good = made.keras_archive()
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(200):
        data = bytearray(good)
        for at in rng.integers(4, len(good), 3):
            data[at] = rng.integers(256)
        try:
            keras.check_archive(bytes(data))
        except pelton.ModelError as e:
            refused += "damaged" in str(e)
    assert refused > 50
    encrypted = bytearray(good)
    encrypted[good.index(b"PK\x03\x04", 4) + 6] |= 1  # the flags of config.json, the second entry,
    encrypted[good.index(b"PK\x01\x02", good.index(b"PK\x01\x02") + 4) + 8] |= 1  # and in the directory
    assert "encrypted" in refusal(written(tmp_path, encrypted))


def test_code_in_layers_is_run_only_if_asked(stubs, tmp_path, monkeypatch):
    stubs.environment("tensorflow")
    stubs.keras()
    path = written(tmp_path, made.keras_archive(made.LAMBDA))
    assert "PELTON_UNSAFE_KERAS=1" in refusal(path) and stubs.calls == []
    monkeypatch.setenv("PELTON_UNSAFE_KERAS", "1")
    pelton.importers.load(path)
    assert stubs.calls == [f"{path} False False"]
    monkeypatch.delenv("PELTON_UNSAFE_KERAS")
    refusal(path)  # what was converted then is not taken now
