"""`pelton advise --from --to`: every printed command parses, every page exists, and wrong names list the known ones."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton.advise.routes import SOURCES, TARGETS, directions, named
from pelton.cli import main, parser
from pelton.cli.formats import formats

ROOT = Path(__file__).parents[1]
PAIRS = [(s.name, t.name) for s in SOURCES for t in TARGETS]
PARSER = parser()


def commands(route) -> list[str]:
    """The lines of Pelton's own commands: steps, alternatives, and those inside sentences."""
    lines = [s.line for s in (*route.steps, *route.instead) if s.line.startswith("pelton ")]
    return [*lines, *re.findall(r"pelton import-env \w+", " ".join(route.limits))]


@pytest.mark.parametrize("source, target", PAIRS)
def test_every_command_parses(source, target):
    route = directions(source, target)
    for line in commands(route):
        assert "{" not in line and "…" not in line
        args = PARSER.parse_args(shlex.split(line)[1:])  # SystemExit for unknown options and choices
        assert args.command == shlex.split(line)[1]
    pages = [*route.pages, *re.findall(r"\b(?:docs|examples)/[\w/.-]+\.\w+", " ".join(s.why for s in route.steps))]
    assert pages and all((ROOT / page).is_file() for page in pages), pages
    assert route.possible == bool(route.steps)
    if not route.possible:
        assert route.limits, "says why not"


def test_a_wrong_command_would_not_parse(capsys):
    for line in ("export m.onnx --targets wasm", "convert m.onnx --precision int8", "generate m.gguf"):
        with pytest.raises(SystemExit):
            args, unknown = PARSER.parse_known_args(line.split())
            args.refuse(unknown)
    capsys.readouterr()


def test_the_sources_are_what_pelton_reads():
    titles = " ".join(s.title.lower() for s in SOURCES)
    for known in formats():
        if known.about.covers:  # others are refused, with a way around
            assert known.name.lower() in titles, known.name


def test_the_targets_are_what_pelton_builds_for():
    from pelton.targets import ISAS

    lines = " ".join(f"{s.line} {s.why}" for t in TARGETS for s in t.steps)
    for level in re.findall(r"cpu:(\w+)", lines):
        assert level in ISAS, level
    for core in re.findall(r"^\| `(\w[\w-]+)` \|", (ROOT / "docs/micro-controllers.md").read_text(), re.M):
        assert f"--target {core}" in lines, core


def test_names_and_aliases_are_unique():
    for table in (SOURCES, TARGETS):
        words = [w for entry in table for w in (entry.name, *entry.aliases)]
        assert len(words) == len(set(words)) and all(w == w.lower() for w in words)
        assert all(named(w.upper(), table, "--x").name for w in words)


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--from", "keros", "--to", "this"], "did you mean 'keras'?"),
        (["--from", "onnx", "--to", "cortexm7"], "did you mean 'cortex-m7'?"),
        (["--from", "onnx", "--to", "toaster"], "known: this, linux-x64,"),
        (["--from", "onnx"], "needs --to, one of this,"),
        (["--to", "browser"], "needs --from, one of onnx,"),
        (["model.onnx", "--from", "onnx", "--to", "this"], "leave it out"),
    ],
)
def test_wrong_names_are_one_sentence(capsys, flags, said):
    assert main(["advise", *flags]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out


def test_the_answer_has_commands_limits_and_pages(capsys):
    assert main(["advise", "--from", "caffe", "--to", "cortex-m7"]) == 0
    said = capsys.readouterr().out
    assert "  pelton export deploy.prototxt -o net/ --target cortex-m7" in said and "--weights net.caffemodel" in said
    assert "limit: " in said and "instead: TensorFlow Lite" in said and "pages: docs/micro-controllers.md" in said
    assert main(["advise", "--from", "gguf", "--to", "edgetpu"]) == 0
    said = capsys.readouterr().out
    assert "Pelton does not lead there." in said and "Language models do not go there" in said and "tried" not in said
    assert main(["advise", "--from", "huggingface", "--to", "server"]) == 0
    said = capsys.readouterr().out
    assert said.index("pelton serve folder/") < said.index("optimum-cli") < said.index("exported/model.onnx")


def test_json_fits_the_schema(capsys):
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    schemas = {n: json.loads((ROOT / "docs/schemas" / n).read_text()) for n in ("advise.json", "common.json")}
    known = referencing.Registry().with_resources(
        (n, referencing.Resource.from_contents(s)) for n, s in schemas.items()
    )
    validator = jsonschema.Draft202012Validator(schemas["advise.json"], registry=known)
    for source, target in (("keras", "browser"), ("gguf", "tpu"), ("darknet", "android")):
        assert main(["advise", "--from", source, "--to", target, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        validator.validate(found)
        assert found["possible"] == bool(found["steps"])


@pytest.mark.skipif(sys.platform != "linux", reason="builds engines")
@pytest.mark.parametrize("target", ("onnx", "tflite", "stablehlo", "edgetpu", "c"))
def test_a_route_leads_there(target, tmp_path, monkeypatch, capsys):
    """The printed commands run, on a small model, with the placeholders replaced."""
    rng, net = np.random.default_rng(0), pelton.Network("small")
    x = net.input("x", "f32[batch, 3, 16, 16]")
    y = net.relu(net.convolution(x, rng.standard_normal((4, 3, 3, 3)).astype(np.float32), padding=1))
    net.output(net.global_average_pool(y), "y")
    pelton.export_onnx(net, tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", x=rng.standard_normal((8, 3, 16, 16)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    ran = 0
    for line in commands(directions("onnx", target)):
        words = shlex.split(line.replace("1x3x224x224", "1x3x16x16"))
        quickly = ["--level", "0"] if words[1] == "build" else []
        assert main([*words[1:], *quickly, "-q"]) == 0, (line, capsys.readouterr().err)
        ran += 1
    assert ran and len(list(tmp_path.iterdir())) > 2
