"""`pelton import-env`: environments are created by pip, once, removed whole, and named in errors."""

import base64
import hashlib
import os
import zipfile

import pytest

import pelton
from pelton.cli import main
from pelton.system import environments


def wheel(folder, name="peltontoy", version="1.0", needs=()):
    """A wheel with one module that has a version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'"""A toy."""\nversion = {version!r}\n',
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,\n"]))


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An environment of one package, which pip finds in a folder."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path)
    wheel(tmp_path, "peltontoys", needs=("peltontoy",))
    monkeypatch.setitem(
        environments.ENVIRONMENTS, "paddle", environments.Environment(("peltontoys==1.*",), ("peltontoys",))
    )
    return tmp_path


def test_an_environment_is_made_listed_and_removed(offline, capsys):
    assert main(["import-env"]) == 0
    assert "none yet" in capsys.readouterr().out
    assert main(["import-env", "paddle"]) == 0
    out, err = capsys.readouterr()
    python = str(offline / "cache" / "environments" / "paddle" / "bin" / "python")
    assert out.startswith("made in ") and out.splitlines()[-1] == python and "installing packages" in err
    found = environments.find("paddle")
    assert (found.path, found.own) == (python, False)
    import subprocess

    said = subprocess.check_output([python, "-c", "import peltontoys, peltontoy; print(peltontoy.version)"], text=True)
    assert said == "1.0\n"
    assert main(["import-env", "paddle", "-q"]) == 0  # there already
    assert capsys.readouterr() == (f"{python}\n", "")
    assert main(["import-env"]) == 0 and python in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0 and environments.made("paddle") == found
    capsys.readouterr()
    os.unlink(python)  # as when the Python that made it is gone
    assert environments.made("paddle") is None
    assert main(["import-env", "paddle", "--remove"]) == 0 and "removed" in capsys.readouterr().out
    assert not (offline / "cache" / "environments" / "paddle").exists()
    assert main(["import-env", "paddle", "--remove"]) == 0 and "there was none" in capsys.readouterr().out


def test_what_pip_says_is_shown(offline, refused, monkeypatch):
    monkeypatch.setitem(
        environments.ENVIRONMENTS, "paddle", environments.Environment(("peltontoys==2.*",), ("peltontoys",))
    )
    said = refused("import-env", "paddle", "-q")
    assert "failed with status 1" in said and "No matching distribution found for peltontoys==2.*" in said
    assert not (offline / "cache" / "environments" / "paddle").exists()


def test_wrong_usage(offline, refused, monkeypatch):
    assert "(did you mean 'tensorflow'?); there are tensorflow, jax, paddle" in refused("import-env", "tensorflw")
    assert "--remove needs the name" in refused("import-env", "--remove")
    monkeypatch.setitem(environments.ENVIRONMENTS, "jax", environments.Environment((), (), python=(4, 0)))
    assert "Python 4.0 or newer" in refused("import-env", "jax")
    monkeypatch.delenv("PELTON_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert "PELTON_CACHE_DIR" in refused("import-env", "paddle")
    assert environments.made("paddle") is None


def test_a_folder_that_cannot_be_made(offline, monkeypatch):
    (offline / "file").write_text("")
    monkeypatch.setenv("PELTON_CACHE_DIR", str(offline / "file"))
    with pytest.raises(pelton.BuildError, match="PELTON_CACHE_DIR"):
        environments.make("paddle", lambda *of: None)
