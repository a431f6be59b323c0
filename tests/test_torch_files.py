"""PyTorch files, recognized and refused without PyTorch."""

import subprocess
import sys
import zipfile

import pytest

import pelton
from pelton.errors import FormatError
from pelton.importers.torch.files import first_line, kind_of

ARCHIVES = {
    "exported": ("m/models/model.json", "m/archive_format", "m/data/weights/weight_0"),
    "script": ("m/code/__torch__.py", "m/constants.pkl", "m/data.pkl", "m/version"),
    "pickle": ("m/data.pkl", "m/version", "m/data/0"),
    None: ("word/document.xml", "version"),
}


def archive(path, names):
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return path


@pytest.mark.parametrize("kind", ARCHIVES)
@pytest.mark.parametrize("name", ["net.pt", "net.pt2", "net.bin"])
def test_kinds_are_told_by_content(tmp_path, kind, name):
    path = archive(tmp_path / name, ARCHIVES[kind])
    assert kind_of(path) == kind_of(str(path)) == kind


def test_what_torch_did_not_write(tmp_path):
    (tmp_path / "text.pt").write_bytes(b"hello")
    (tmp_path / "old.pth").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "old.bin").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04" + bytes(20))
    kinds = {p.name: kind_of(p) for p in tmp_path.iterdir()}
    assert kinds == {"text.pt": None, "old.pth": "pickle", "old.bin": None, "cut.pt": "truncated"}
    assert kind_of(tmp_path / "absent.pt") is kind_of(tmp_path) is kind_of(b"PK\x03\x04") is kind_of(3) is None


@pytest.mark.parametrize("kind", ["exported", "script"])
def test_without_torch_a_file_says_what_to_install(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pelton.BuildError, match=r'net.pt.* needs the package torch: pip install "pelton\[torch\]"'):
        pelton.build(archive(tmp_path / "net.pt", ARCHIVES[kind]))


def test_a_checkpoint_needs_no_torch_to_be_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pelton.ModelError, match="net.pt .* is a pickle.* weights_only=True"):
        pelton.build(archive(tmp_path / "net.pt", ARCHIVES["pickle"]))


def test_an_archive_without_its_end_is_truncated(tmp_path):
    path = archive(tmp_path / "net.pt2", ARCHIVES["exported"])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FormatError, match="net.pt2 is truncated or damaged: .* the end of the archive is missing"):
        pelton.build(path)
    inner = archive(tmp_path / "inner", ARCHIVES["pickle"]).read_bytes()
    with zipfile.ZipFile(path, "w") as file:  # as torch writes weights: another archive is whole within the rest
        file.writestr("m/data/weights/weight_0", inner)
    path.write_bytes(path.read_bytes()[:-30])
    assert kind_of(path) == "truncated"


def test_a_checkpoint_of_a_module_needs_torch_export(tmp_path):
    with pytest.raises(FormatError, match=r"of a whole module, .* torch.export.save\(torch.export.export\("):
        pelton.build(archive(tmp_path / "net.pt", ARCHIVES["pickle"]))


def test_what_torch_says_ends_with_a_word():
    said = first_line(ValueError("unsupported " * 100))
    assert len(said) < 320 and said.endswith("unsupported …")


def test_other_models_import_no_torch():
    program = (
        "import sys, pelton, pelton.importers\n"
        "for model in ('absent.onnx', b'', 'absent.bin', 3):\n"
        "    try:\n        pelton.build(model)\n    except pelton.ModelError:\n        pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_examples_are_for_models_that_are_traced():
    with pytest.raises(pelton.InputError, match="example_inputs .* got 'absent.onnx'; leave them out"):
        pelton.build("absent.onnx", example_inputs=1)
