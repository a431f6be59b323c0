"""Conversions in child processes, with stubs of the frameworks: their inputs, their ends, and the cache."""

import os
import signal
import stat
import sys
import time
import zipfile
from pathlib import Path

import framework_files as made
import numpy as np
import pytest

import pelton
import pelton.importers
from pelton.cli import main
from pelton.importers.frameworks import conversion
from pelton.system import environments
from pelton.importers.keras import archive as archives
from pelton.system import temporary

SCRIPT = """
import os, shutil, sys, time
target, source, *given = sys.argv[1:]
with open({log!r}, "a") as file: print(source, *given, file=file)
assert os.path.exists(source)
{body}
shutil.copy({onnx!r}, target)
"""


class Stubs:
    """Environments whose Python is this one, and scripts of the tests in place of those that convert."""

    def __init__(self, folder: Path, children: Path):
        self.folder, self.children, self.log = folder, children, folder / "log.txt"
        self.onnx = folder / "converted.onnx"
        self.onnx.write_bytes(made.ONNX)

    def environment(self, name: str) -> Path:
        home = environments.folder(name)
        (home / "bin").mkdir(parents=True)
        python = home / "bin" / "python"
        path = os.pathsep.join(p for p in sys.path if "site-packages" in p)
        python.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec {sys.executable} \"$@\"\n")
        python.chmod(0o755)
        (home / environments.VERSIONS).write_text("{}")
        return home

    def script(self, name: str = "from_keras.py", body: str = "") -> None:
        (self.children / name).write_text(SCRIPT.format(log=str(self.log), body=body, onnx=str(self.onnx)))

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(temporary.tempfile, "tempdir", None)
    children = tmp_path / "children"
    children.mkdir()
    monkeypatch.setattr(conversion, "CHILDREN", children)
    yield Stubs(tmp_path, children)
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
    stubs.script()
    engine = pelton.build(archive, level=0)
    x = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    want = pelton.build(made.ONNX, level=0).run({"x": x})["y"]
    np.testing.assert_array_equal(engine.run({"x": x})["y"], want)
    assert stubs.calls == [str(archive)]


def test_the_command_line_takes_it(stubs, archive, capsys, tmp_path, monkeypatch):
    stubs.environment("tensorflow")
    stubs.script()
    monkeypatch.chdir(tmp_path)
    assert main(["build", str(archive), "--level", "0", "-q"]) == 0
    assert main(["convert", str(archive), "-q"]) == 0
    assert main(["explain", str(archive)]) == main(["compare", str(archive), "net.pelton", "--seed", "1", "-q"]) == 0
    assert main(["bench", str(archive), "--level", "0", "--seconds", "0.01", "--warmup", "0"]) == 0
    capsys.readouterr()
    for model in (str(archive), "net.onnx"):
        assert main(["check", model]) == 0
        assert f"{Path(model).name} can be built" in capsys.readouterr().out
    assert len(stubs.calls) == 1


def test_the_command_line_takes_folders(stubs, capsys, tmp_path, monkeypatch):
    stubs.environment("tensorflow")
    stubs.script("from_tensorflow.py")
    folder = tmp_path / "saved.v2"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(made.saved_model())
    monkeypatch.chdir(tmp_path)
    assert main(["build", "saved.v2/", "--level", "0", "-q"]) == 0 and Path("saved.v2.pelton").exists()
    assert main(["convert", "saved.v2", "-q"]) == 0 and Path("saved.v2.onnx").exists()
    assert main(["bench", "saved.v2", "--level", "0", "--seconds", "0.01", "--warmup", "0"]) == 0
    assert main(["check", "saved.v2#encode"]) == 0
    assert stubs.calls == [str(folder), f"{folder} encode"]


def test_a_folder_may_have_the_sign_of_signatures_in_its_name(stubs, tmp_path):
    stubs.environment("tensorflow")
    stubs.script("from_tensorflow.py")
    folder = tmp_path / "a#b"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(made.saved_model())
    for path in (folder, f"{folder}#c", folder / "saved_model.pb"):
        pelton.importers.load(path)
    assert stubs.calls == [str(folder), f"{folder} c"]


def test_conversions_are_kept_by_content(stubs, archive, monkeypatch):
    home = stubs.environment("tensorflow")
    stubs.script()
    moved = archive.with_name("moved")
    moved.write_bytes(archive.read_bytes())
    for model in (archive, archive, moved, moved.read_bytes(), bytearray(moved.read_bytes())):
        assert pelton.importers.load(model).graph.outputs[0].name == "y"
    assert len(stubs.calls) == 1
    moved.write_bytes(made.keras_archive({"other": 1}))
    pelton.importers.load(moved)
    assert len(stubs.calls) == 2
    (home / environments.VERSIONS).write_text('{"keras": "99"}')
    pelton.importers.load(moved)
    assert len(stubs.calls) == 3
    monkeypatch.setenv("PELTON_CACHE_DIR", str(stubs.folder / "none"))
    assert "pelton import-env tensorflow" in refusal(moved)


def test_folders_are_told_apart_by_every_file(tmp_path):
    folder = tmp_path / "saved"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(made.saved_model())
    keys = {conversion._key([folder], ["1"])}
    for change in ("variables/a", "variables/b", "b"):
        (folder / change).write_bytes(b"1")
        keys.add(conversion._key([folder], ["1"]))
    (folder / "b").write_bytes(b"2")
    keys |= {conversion._key([folder], words) for words in (["1"], ["1", "unsafe"], ["2"])}
    assert len(keys) == 7
    os.symlink(folder / "b", folder / "link")
    conversion._key([folder], ["1"])
    os.symlink("/", folder / "root")
    with pytest.raises(pelton.ModelError, match="is a link to a folder"):
        conversion._key([folder], ["1"])
    (folder / "root").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(pelton.ModelError, match="neither a file nor a folder"):
        conversion._key([folder], ["1"])


def test_paddle_gets_both_files(stubs, tmp_path):
    stubs.environment("paddle")
    stubs.script("from_paddle.py", "assert open(given[0]).read() == 'numbers'")
    program, numbers = tmp_path / "net.json", tmp_path / "net.pdiparams"
    program.write_bytes(made.PIR)
    assert f"its weights file {numbers}" in refusal(program)
    other = tmp_path / "w"
    other.write_text("numbers")
    assert pelton.importers.load(pelton.importers.ModelFiles(program, other)).graph.outputs[0].name == "y"
    numbers.write_text("numbers")
    pelton.importers.load(tmp_path)  # the folder of the program
    assert stubs.calls == [f"{program} {other}"]  # the same files, under other names
    (tmp_path / "second.pdmodel").write_bytes(made.program_desc())
    assert "net.json, second.pdmodel" in refusal(tmp_path)


# --- how it fails


def test_what_a_converter_said_is_shown(stubs, archive):
    stubs.environment("tensorflow")
    stubs.script(body="print('about to fail'); raise NotImplementedError('op Foo')")
    said = refusal(archive)
    assert "status 1" in said and "about to fail" in said and "NotImplementedError: op Foo" in said
    stubs.script(body="print('x' * 100_000); print(*range(1000), sep='\\n'); sys.exit(5)")
    said = refusal(archive)
    assert "status 5" in said and "  999" in said and "  900" not in said and len(said) < 3000


@pytest.mark.parametrize(
    "body, expected",
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("print('all done'); os._exit(0)", "status 0.*all done"),
        ("print('it has no inputs'); sys.exit(3)", r"net.keras: it has no inputs$"),
        ("open(target, 'w').write('junk'); os._exit(0)", "converted to ONNX, is no ONNX model|is no valid ONNX model"),
    ],
    ids=["killed", "nothing written", "refused", "no onnx"],
)
def test_how_a_child_may_end(stubs, archive, body, expected):
    import re

    stubs.environment("tensorflow")
    stubs.script(body=body)
    assert re.search(expected, refusal(archive), re.S)


def test_time_is_limited(stubs, archive, monkeypatch):
    stubs.environment("tensorflow")
    pid = stubs.folder / "pid"
    stubs.script(body=f"open({str(pid)!r}, 'w').write(str(os.getpid())); print('slow', flush=True); time.sleep(60)")
    monkeypatch.setenv("PELTON_IMPORT_TIMEOUT", "3")
    start = time.monotonic()
    said = refusal(archive)
    assert "exceeded 3 s" in said and time.monotonic() - start < 30
    assert pid.exists() and "slow" in said
    assert not Path(f"/proc/{pid.read_text()}").exists()
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv("PELTON_IMPORT_TIMEOUT", wrong)
        with pytest.raises(pelton.InputError, match="PELTON_IMPORT_TIMEOUT"):
            pelton.importers.load(archive)


def test_ctrl_c_ends_the_child(stubs, archive, monkeypatch):
    stubs.environment("tensorflow")
    pid = stubs.folder / "pid"
    stubs.script(body=f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")

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
    stubs.script()
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: name)
    assert pelton.importers.load(archive).graph.outputs[0].name == "y"
    assert environments.find("tensorflow").own


def test_variables_of_this_python_are_not_for_others(stubs, archive, monkeypatch):
    """A module that PYTHONPATH leads to here is not found by the Python of an environment."""
    monkeypatch.setenv("SHOWN", str(stubs.folder / "variables.txt"))
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    home = stubs.environment("tensorflow")
    python = home / "bin" / "python"
    python.write_text(python.read_text().replace("#!/bin/sh\n", '#!/bin/sh\nenv > "$SHOWN"\n'))
    stubs.script()
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
    monkeypatch.setattr(archives, "FREE", 1 << 20)
    bomb = made.keras_archive(**{"model/zeros": bytes(1 << 24)})
    assert len(bomb) < 1 << 15
    said = refusal(written(tmp_path, bomb))
    assert "would expand to" in said and str(1 << 20) in said
    monkeypatch.setattr(archives, "ENTRIES", 50)
    assert "103 entries" in refusal(written(tmp_path, made.keras_archive(**{f"e{i}": b"" for i in range(100)})))
    monkeypatch.setattr(archives, "CONFIG", 1000)
    assert "describes its layers in" in refusal(written(tmp_path, made.keras_archive({"long": "x" * 1000})))


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:\\evil"])
def test_entries_that_lead_elsewhere(stubs, tmp_path, name):
    assert "outside of its folder" in refusal(written(tmp_path, made.keras_archive(**{name: b"x"})))


def test_links_and_entries_of_one_name(stubs, tmp_path):
    link = zipfile.ZipInfo("assets")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "', a link" in refusal(written(tmp_path, made.keras_archive(link=(link, "/etc"))))
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
            archives.check_archive(bytes(data))
        except pelton.ModelError as e:
            refused += "damaged" in str(e)
    assert refused > 50
    encrypted = bytearray(good)
    encrypted[good.index(b"PK\x03\x04", 4) + 6] |= 1  # the flags of config.json, the second entry,
    encrypted[good.index(b"PK\x01\x02", good.index(b"PK\x01\x02") + 4) + 8] |= 1  # and in the directory
    assert "encrypted" in refusal(written(tmp_path, encrypted))


def test_code_in_layers_is_run_only_if_asked(stubs, tmp_path, monkeypatch):
    stubs.environment("tensorflow")
    stubs.script()
    path = written(tmp_path, made.keras_archive(made.LAMBDA))
    assert "PELTON_UNSAFE_KERAS=1" in refusal(path) and stubs.calls == []
    monkeypatch.setenv("PELTON_UNSAFE_KERAS", "1")
    pelton.importers.load(path)
    assert stubs.calls == [f"{path} unsafe"]
    monkeypatch.delenv("PELTON_UNSAFE_KERAS")
    refusal(path)  # what was converted then is not taken now
