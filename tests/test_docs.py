"""The documents: their commands and snippets run, their links exist, and their claims about the code hold."""

import asyncio
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pelton
from pelton.cli import main
from pelton.tuning import peak

ROOT = Path(__file__).parents[1]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
SIGN = ("--sign", "--key", "--trust")  # options that need the package cryptography
# what fetches, installs or measures for long is not run here, nor is what test_bundle compiles
NETWORK = ("git", "pip", "make", "cd", "cc", "cmake")
HOUR = re.compile(r"^## A newcomer's hour$.*?(?=^## )", re.M | re.S)
QUICKLY = {"build": ["--level", "0"], "bench": ["--seconds", "0.05", "--warmup", "0"], "explain": ["--level", "0"]}


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language, but for those of the newcomer's hour, which has a test of its own."""
    text = HOUR.sub("", page.read_text())
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def write_model(path: Path) -> None:
    """A small classifier of pictures of 32x32 pixels, in any number."""
    net, rng = pelton.Network(), np.random.default_rng(0)
    x = net.input("image", "f32[batch, 3, 32, 32]")
    for channels, inputs in ((16, 3), (32, 16), (32, 32)):
        weight = rng.normal(0, (2 / 9 / inputs) ** 0.5, (channels, inputs, 3, 3)).astype(np.float32)
        x = net.relu(net.convolution(x, weight, stride=2 if channels > inputs else 1, padding=1))
    weight = rng.standard_normal((10, 32)).astype(np.float32)
    net.output(net.linear(net.flatten(net.global_average_pool(x)), weight), "logits")
    pelton.export_onnx(net, path)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files that the documents speak of."""
    folder = tmp_path_factory.mktemp("docs")
    write_model(folder / "model.onnx")
    shutil.copy(ROOT / "src/pelton/data/cifar10.txt", folder / "labels.txt")
    images = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "samples.npz", image=images)
    np.save(folder / "image.npy", images[:1])
    pelton.build(folder / "model.onnx", level=0, cache_dir=folder / "cache" / "pelton").save(folder / "model.pelton")
    for suffix in ("onnx", "pelton"):  # the network of the tutorial, as far as its commands tell
        shutil.copy(folder / f"model.{suffix}", folder / f"resnet18.{suffix}")
    try:
        from PIL import Image

        Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)).save(
            folder / "cat.jpg"
        )
    except ImportError:
        pass  # without Pillow the commands that need it are skipped
    return folder


def commands(page: Path) -> list[str]:
    return [line.split(" #")[0].strip() for block in blocks(page, "sh") for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_commands_run(desk, monkeypatch, capsys, page, tmp_path):
    """One after another, as a reader would type them, in a folder where no other page left anything."""
    desk = shutil.copytree(desk, tmp_path / "desk")
    monkeypatch.chdir(desk)
    monkeypatch.setattr(peak, "ROUNDS", 5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "cache"))
    for line in commands(page):
        command, _, target = line.partition(" > ")
        program, *args = shlex.split(command)
        if program == "openssl":
            subprocess.run([program, *args], check=True)
            continue
        if find_spec("cryptography") is None and not set(SIGN).isdisjoint(args):
            continue
        assert program in ("pelton", *NETWORK), f"{page.name} has a command that nobody tests: {line}"
        if program == "pelton" and ("cat.jpg" not in line or (desk / "cat.jpg").exists()):
            builds = args[0] == "bench" and args[1].endswith(".onnx")
            quickly = [*QUICKLY.get(args[0], []), *(["--level", "0"] if builds else [])]
            absent = "--vs" in args and find_spec(args[-1]) is None
            assert main([args[0], *quickly, *args[1:]]) == 2 * int(absent), f"{line}: {capsys.readouterr().err}"
            said = capsys.readouterr().out
            assert said or absent or "--output" in line
            if target:
                Path(target).write_text(said)


SNIPPETS = [(page.name, block) for page in PAGES for block in blocks(page, "python")]


@pytest.mark.parametrize("page, code", SNIPPETS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(SNIPPETS)])
def test_snippets_run(desk, page, code):
    """As they stand, but for the time that tuning takes."""
    for package in re.findall(r"^(?:import|from) (torch|torchvision|cryptography)\b", code, re.M):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed here; `make test-importers` installs torch")
    program = (
        "import pelton\npelton.build = (lambda build: lambda *a, **k: build(*a, **k | {'level': 0}))(pelton.build)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XDG_CACHE_HOME": str(desk / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program + code], cwd=desk, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, f"{page}: {done.stderr}"


@pytest.mark.parametrize("size, status", [(4 * 3 * 32 * 32, 200), (12, 400), (13, 400), (0, 400)])
def test_servers_answer_400_to_what_is_no_input(desk, monkeypatch, size, status):
    monkeypatch.chdir(desk)
    by_thread, by_coroutine = dict[str, Any](), dict[str, Any]()
    for code in blocks(ROOT / "docs/serving.md", "python"):
        if "def app(" in code:
            exec(code, by_coroutine if "async" in code else by_thread)
    said: list[Any] = []
    found = by_thread["app"]({"wsgi.input": io.BytesIO(bytes(size))}, lambda status, head: said.append(status))
    assert said[0].startswith(f"{status} ") and (b"class" in found[0]) == (status == 200)

    async def receive():
        return {"body": bytes(size)}

    async def send(message):
        said.append(message)

    with by_coroutine["queue"]:
        asyncio.run(by_coroutine["app"]({"type": "http"}, receive, send))
    assert said[1]["status"] == status


def write_block(path: Path, language: str, text: str) -> None:
    """Appends a block to a file, or replaces the lines that a diff names; AssertionError where these are not there
    once."""
    if language != "diff":
        path.write_text((path.read_text() if path.exists() else "") + text)
        return
    was, now = ("".join(line[1:] + "\n" for line in text.splitlines() if line[0] in marks) for marks in (" -", " +"))
    source = path.read_text()
    assert source.count(was) == 1, f"{path.name} does not have these lines once:\n{was}"
    path.write_text(source.replace(was, now))


def test_the_newcomers_hour(tmp_path):
    """In a copy of the sources: writes what is printed, runs the commands, and finds the printed lines in what they
    say."""
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": str(tmp_path / "src"),
        "PELTON_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONIOENCODING": "utf-8",
    }
    (hour,) = HOUR.findall((ROOT / "CONTRIBUTING.md").read_text())
    said, ran = "", 0
    for language, path, text in re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```", hour, re.M | re.S):
        if path:
            write_block(tmp_path / path, language, text)
        elif language == "text":
            lines = [line.split() for line in said.splitlines()]
            assert [line for line in text.splitlines() if line.split() not in lines] == [], said
        else:
            assert language == "sh", f"nobody tests a block of {language}"
            for line in text.splitlines():
                command, _, remark = line.partition(" #")
                program, *args = shlex.split(command)
                assert program in ("python", "pelton", "git", "make", "."), line
                if program in ("python", "pelton"):
                    run = [sys.executable, *(["-m", "pelton"] if program == "pelton" else []), *args]
                    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, env=environment)
                    said, ran = done.stdout + done.stderr, ran + 1
                    assert done.returncode == int("exits with 1" in remark), f"{line}: {said}"
    assert ran >= 12


def test_there_is_something_to_test():
    assert sum(line.startswith("pelton") for page in PAGES for line in commands(page)) >= 8 and len(SNIPPETS) >= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path


def test_every_make_target_of_the_documents_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_code_in_contributing_is_the_code():
    """Its examples stand in the package as they are printed."""
    package = "\n".join(p.read_text() for p in (ROOT / "src/pelton").rglob("*.py"))
    for block in blocks(ROOT / "CONTRIBUTING.md", ""):
        for line in block.strip().splitlines():
            assert line.strip() in package, line


def test_the_readme_has_the_figures_of_the_page_on_performance():
    page = (ROOT / "docs/performance.md").read_text().splitlines()
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if re.search(r"\| \d+\.\d\d \|", line)]
    assert len(rows) == 6 and set(rows) <= set(page)
