"""Packages for browsers and node: `pelton export --target wasm`."""

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton import web
from pelton.cli import main

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: apt install nodejs")
CIFAR = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
RUN = Path(__file__).parent / "native" / "run_package.mjs"


def network() -> pelton.Network:
    """A convolution, numbers of 64 bits in and out, and bytes."""
    net, rng = pelton.Network("net"), np.random.default_rng(0)
    x, at = net.input("x", "f32[2, 3, 19, 23]"), net.input("at", "i64[2, 5]")
    w = rng.standard_normal((37, 3, 3, 3)).astype(np.float32)
    y = net.relu(net.convolution(x, w, np.zeros(37, np.float32), padding=1))
    flat = net.reshape(net.global_average_pool(y), (2, 37))
    net.output(net.softmax(flat, axis=1), "scores")
    net.output(net.arg_max(flat, axis=1, keepdims=False), "best")
    net.output(net.gather_elements(flat, at, axis=1), "chosen")
    return net


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "net"
    plans = {level: pelton.build(network(), level=0, threads=1, target=f"cpu:{level}").plain for level in web.LEVELS}
    web.write(plans, folder)
    return folder


def test_a_package_is_complete(package):
    names = {p.name for p in package.iterdir()}
    modules = {f"net.{level}{kind}.wasm" for level in ("relaxed", "simd") for kind in ("", ".threads")}
    texts = {"net.mjs", "net.d.ts", "pelton.mjs", "worker.mjs", "package.json", "index.html", "README.md"}
    assert names == modules | texts | {"net.bin"}
    about = json.loads((package / "package.json").read_text())
    assert about["exports"]["."] == {"types": "./net.d.ts", "default": "./net.mjs"} and about["type"] == "module"
    types = (package / "net.d.ts").read_text()
    assert re.search(r'"x": Float32Array \| Tensor<Float32Array>;\n.*\n  "at": BigInt64Array', types)
    assert '"best": BigInt64Array;' in types
    assert "MODEL" not in (package / "index.html").read_text()
    for name in modules:
        module = (package / name).read_bytes()
        assert module[:8] == b"\0asm\1\0\0\0" and len(module) < 60_000 and len(gzip.compress(module)) < 20_000
    facts = json.loads(re.search(r"facts = (\{.*?\n\});", (package / "net.mjs").read_text(), re.S)[1])
    assert facts["weightBytes"] == (package / "net.bin").stat().st_size and list(facts["modules"]) == [
        "relaxed",
        "simd",
    ]


@needs_node
def test_node_runs_it(package):
    rng = np.random.default_rng()
    feeds = {"x": rng.standard_normal((2, 3, 19, 23)).astype(np.float32), "at": rng.integers(0, 37, (2, 5))}
    for name, array in feeds.items():
        (package / f"{name}.in").write_bytes(array.tobytes())
    shutil.copy(RUN, package)
    done = subprocess.run([NODE, RUN.name], cwd=package, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    want = pelton.build(network(), level=0, threads=1).run(feeds)
    for how in ("here", "worker1", "worker2"):
        for name, array in want.items():
            got = np.frombuffer((package / f"{name}.{how}").read_bytes(), array.dtype).reshape(array.shape)
            assert np.allclose(got, array, rtol=1e-5, atol=1e-6), (how, name)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["errors"] == [
        "TypeError: input x is a Float32Array (f32), got Array",
        "RangeError: input x has 2622 elements [2,3,19,23], got 2621",
        "TypeError: there is no input more; inputs: x, at",
        *["TypeError: input x is a Float32Array (f32), got undefined", "Error: net is stopped"] * 2,
        "RangeError: threads is a positive integer, got 0",
    ]


@needs_node
def test_kernels_are_timed_by_node(tmp_path, capsys):
    """The whole command, on the network of the demo; packed weights stay near the model's own by default."""
    sizes = {}
    for ratio in ("1.1", "2"):
        folder = tmp_path / ratio
        command = ["export", str(CIFAR), "-o", str(folder), "--name", "cifar", "--shapes", "image=1x3x32x32"]
        command += ["--target", "wasm", "--level", "1", "--budget", "15", *(["--max-packed", ratio] * (ratio != "1.1"))]
        assert not main(command), capsys.readouterr().err
        sizes[ratio] = (folder / "cifar.bin").stat().st_size
    captured = capsys.readouterr()
    assert "not timed" not in captured.err and "cifar.mjs has its functions" in captured.out
    own = 272_474 * 4  # bytes of the parameters
    assert own < sizes["1.1"] < 1.2 * own and sizes["1.1"] <= sizes["2"] < 2.1 * own


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["--save-tactics", "t.json"],
            "builds engines for several levels, so it does not take --save-tactics",
        ),
        (["--shapes", "image=1..70000..80000x3x32x32"], "GB, and a module of WebAssembly has 2 GB of memory"),
    ],
)
def test_what_cannot_be_exported(arguments, message, tmp_path, capsys):
    given = ["export", str(CIFAR), "-o", str(tmp_path / "web"), "--target", "wasm", "--level", "0", *arguments]
    assert main(given) and message in capsys.readouterr().err
    assert not (tmp_path / "web").exists()
