"""Packages as npm has them: an archive that node imports, and types that TypeScript checks."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import web_packages
from web_packages import needs_node

NPM, TSC = shutil.which("npm"), Path(os.environ.get("PELTON_TEST_TYPESCRIPT", "none"))
needs_npm = pytest.mark.skipif(NPM is None, reason="npm is not installed: apt install npm")
needs_tsc = pytest.mark.skipif(not TSC.exists(), reason="TypeScript is not installed (make test-web)")

PROGRAM = """import { load, start, type Inputs, type Outputs, type Engine, type Remote } from "%s";

const engine: Engine = await load({ progress: (loaded: number, total: number) => void (loaded / total) });
%s
const remote: Remote = await start({ threads: 2 });
const threads: number = remote.threads, level: string = remote.level;
await remote.stop();
for (const port of engine.inputs) void [port.name.length, port.shape.length, port.optimum?.length];
"""
RIGHT = {
    "cifar": """const inputs: Inputs = { image: new Float32Array(3072) };
const outputs: Outputs = engine.run(inputs);
const first: number = outputs.OUTPUT[0];
engine.run({ image: { data: new Float32Array(3072), dims: [1, 3, 32, 32] } });""",
    "rows": """const { y }: Outputs = engine.run({ x: new Float32Array(14) });
const data: Float32Array = y.data, rows: number = y.dims[0];
engine.run({ x: { data, dims: [rows, 7] } });""",
}
WRONG = [
    ("cifar", "engine.run({ image: [1, 2] });"),
    ("cifar", "engine.run({ image: new Float64Array(3072) });"),
    ("cifar", "engine.run({});"),
    ("cifar", "engine.run({ image: new Float32Array(3072), more: new Float32Array(1) });"),
    ("cifar", "const y: Int32Array = engine.run({ image: new Float32Array(3072) }).OUTPUT;"),
    ("rows", "const y: Float32Array = engine.run({ x: new Float32Array(14) }).y;"),
    ("rows", "engine.run({ x: { data: new Float32Array(14) } });"),
    ("rows", "await start({ threads: '2' });"),
]


def npm(*arguments: str, cwd: Path) -> str:
    done = subprocess.run([str(NPM), *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def output_of(packages: Path, name: str) -> str:
    text = (packages / name / f"{name}.mjs").read_text("utf-8")
    return json.loads(text[text.index("{") : text.index("\n};") + 2])["outputs"][0]["name"]


@pytest.fixture(scope="module")
def installed(packages, tmp_path_factory):
    """A project in which both packages are installed from their archives, without a registry."""
    project, archives = tmp_path_factory.mktemp("project"), []
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    for name in ("cifar", "rows"):
        packed = json.loads(npm("pack", "--json", "--pack-destination", str(project), cwd=packages / name))[0]
        files = {f["path"] for f in packed["files"]}
        assert files == {p.name for p in (packages / name).iterdir()}
        archives.append(f"./{packed['filename']}")
    npm("install", "--offline", "--no-audit", "--no-fund", *archives, cwd=project)
    return project


@needs_node
@needs_npm
def test_node_imports_packed_archives(installed):
    program = """
import { load, start } from "cifar";
import * as rows from "rows";
const x = { image: Float32Array.from({ length: 3072 }, (_, i) => Math.sin(i)) };
const engine = await load(), [{ name }] = engine.outputs;
const remote = await start({ threads: 2 });
const here = engine.run(x)[name], there = (await remote.run(x))[name];
await remote.stop();
const { y } = (await rows.load()).run({ x: new Float32Array(21) });
console.log(JSON.stringify([here.length, here.every((v, i) => v === there[i]), y.dims, remote.threads]));
"""
    (installed / "main.mjs").write_text(program)
    done = subprocess.run(
        [str(web_packages.NODE), "main.mjs"], cwd=installed, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [10, True, [3, 40], 2]


def check(installed: Path, name: str, body: str) -> subprocess.CompletedProcess:
    (installed / "main.mts").write_text(
        PROGRAM % (name, body.replace("OUTPUT", output_of(installed / "node_modules", name)))
    )
    how = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    return subprocess.run([str(TSC), *how, "main.mts"], cwd=installed, capture_output=True, text=True)


@needs_npm
@needs_tsc
@pytest.mark.parametrize("name", RIGHT)
def test_types_take_what_is_right(installed, name):
    done = check(installed, name, RIGHT[name])
    assert done.returncode == 0, done.stdout


@needs_npm
@needs_tsc
@pytest.mark.parametrize("name, body", WRONG)
def test_types_reject_what_is_wrong(installed, name, body):
    done = check(installed, name, body)
    assert done.returncode and "error TS2" in done.stdout and "main.mts(4," in done.stdout, done.stdout
