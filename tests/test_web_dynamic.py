"""Packages for browsers of engines with dynamic dimensions, run by node."""

import base64
import itertools
import re

import numpy as np
import pytest
import web_packages
from web_packages import CIFAR, needs_node, sine

import pelton
from pelton.cli import main

SHAPES = {"n": "1..8..32", "h": "1..8..40"}
# the optimum, the least, the greatest, a size in between; then shrinking and growing again
SIZES = [(8, 8), (1, 1), (32, 40), (3, 17), (1, 40), (32, 1), (8, 8), (32, 40)]


def network() -> pelton.Network:
    """Images of any number and height, and indices into their features."""
    net, rng = pelton.Network("net"), np.random.default_rng(0)
    x, at = net.input("x", "f32[n, 3, h, 23]"), net.input("at", "i64[n, 5]")
    w = rng.standard_normal((37, 3, 3, 3)).astype(np.float32)
    y = net.relu(net.convolution(x, w, np.zeros(37, np.float32), padding=1))
    flat = net.reshape(net.global_average_pool(y), (-1, 37))
    net.output(net.softmax(flat, axis=1), "scores")
    net.output(net.gather_elements(flat, at, axis=1), "chosen")
    net.output(net.max_pool(y, 2, stride=2, padding=1), "pooled")
    net.output(net.reduce_sum(flat), "sum")
    return net


def rows() -> pelton.Network:
    """One dynamic size, and its double."""
    net = pelton.Network("rows")
    x, pairs = net.input("x", "f32[batch, 7]"), net.input("pairs", "f32[2*batch, 3]")
    net.output(net.softmax(x, axis=1), "y")
    net.output(net.relu(net.reshape(pairs, (-1, 6))), "z")
    return net


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return web_packages.write(network(), tmp_path_factory.mktemp("dynamic") / "net", shapes=SHAPES)


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory):
    return web_packages.write(rows(), tmp_path_factory.mktemp("rows") / "rows", shapes={"batch": "2..4..9"})


def feeds(n, h):
    at = (np.arange(n * 5) * 7 % 37).astype(np.int64).reshape(n, 5)
    return {"x": sine(n * 3 * h * 23, h).reshape(n, 3, h, 23), "at": at}


INPUTS = """
const inputs = (n, h) => ({
  x: { data: floats(n * 3 * h * 23, h), dims: [n, 3, h, 23] },
  at: BigInt64Array.from({ length: n * 5 }, (_, i) => BigInt((i * 7) % 37)),
});
"""


@needs_node
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_at_any_size(package, threads):
    """In the thread of the program, in a worker, and in three."""
    engine = f"await start({{ threads: {threads} }})" if threads else "await load()"
    found = web_packages.run(
        package,
        INPUTS
        + f"""
const engine = {engine}, results = [];
for (const [n, h] of {[list(s) for s in SIZES]}) {{
  const outputs = await engine.run(inputs(n, h));
  results.push(Object.fromEntries(engine.outputs.map(({{ name, shape }}) => {{
    const given = outputs[name];
    return [name, {{ data: bytes(given.data ?? given), dims: given.dims ?? shape }}];
  }})));
}}
await engine.stop?.();
console.log(JSON.stringify(results));
""",
    )
    engine = pelton.build(network(), level=0, threads=1, shapes=SHAPES)
    for (n, h), outputs in zip(SIZES, found, strict=True):
        for name, want in engine.run(feeds(n, h)).items():
            got = np.frombuffer(base64.b64decode(outputs[name]["data"]), want.dtype)
            assert tuple(outputs[name]["dims"]) == want.shape, (n, h, name)
            assert np.allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5), (n, h, name)


@needs_node
def test_the_only_dynamic_size_follows_from_the_length(of_rows):
    found = web_packages.run(
        of_rows,
        """
const engine = await load();
const { y, z } = engine.run({ x: floats(35, 1), pairs: floats(30, 2) });
console.log(JSON.stringify({ y: y.dims, z: z.dims, first: engine.inputs[1].shape, tuned: engine.inputs[1].optimum }));
""",
        "rows",
    )
    assert found == {"y": [5, 7], "z": [5, 6], "first": ["2*batch", 3], "tuned": [8, 3]}


@needs_node
@pytest.mark.parametrize("how", ["load()", "start({ threads: 2 })"])
def test_shapes_that_an_engine_does_not_take(package, of_rows, how):
    """Each error names the input and what it takes; the engine runs as before afterwards."""
    begin = f"const engine = await {how}; const no = (i) => said(() => engine.run(i));"
    end = "await engine.stop?.(); console.log(JSON.stringify(errors));"
    assert web_packages.run(
        package,
        f"""{begin}{INPUTS}
const before = (await engine.run(inputs(2, 4))).scores.data, x = inputs(2, 4).x;
const errors = [
  await no(inputs(33, 8)), await no(inputs(0, 8)), await no(inputs(2, 41)),
  await no({{ ...inputs(2, 4), at: new BigInt64Array(15) }}),
  await no({{ ...inputs(2, 4), at: new BigInt64Array(14) }}),
  await no({{ ...inputs(2, 4), at: BigInt64Array.from({{ length: 10 }}, () => 37n) }}),
  await no({{ ...inputs(2, 4), x: x.data }}),
  await no({{ ...inputs(2, 4), x: {{ ...x, dims: [2, 3, 4, 22] }} }}),
  await no({{ ...inputs(2, 4), x: {{ ...x, dims: [2, 3, 5, 23] }} }}),
  await no({{ ...inputs(2, 4), x: {{ ...x, dims: [2, 3, 2.5, 23] }} }}),
  await no({{ ...inputs(2, 4), x: {{ ...x, dims: [2, 276] }} }}),
];
const after = (await engine.run(inputs(2, 4))).scores.data;
errors.push(before.every((v, i) => v === after[i]));
{end}""",
    ) == [
        "RangeError: axis 0 of input x may have 1 to 32, got 33",
        "RangeError: axis 0 of input x may have 1 to 32, got 0",
        "RangeError: axis 2 of input x may have 1 to 40, got 41",
        "RangeError: axis 0 of input at is 2, got 3",
        "RangeError: input at has a multiple of 5 elements [n,5], got 14",
        "RangeError: input at has an index out of bounds: layer gather_elements takes -37 to 36",
        "TypeError: input x has the dynamic sizes n and h: pass { data, dims }",
        "RangeError: input x is of shape [n,3,h,23], got [2,3,4,22]",
        "RangeError: input x has 690 elements [2,3,5,23], got 552",
        "RangeError: input x is of shape [n,3,h,23], got [2,3,2.5,23]",
        "RangeError: input x is of shape [n,3,h,23], got [2,276]",
        True,
    ]
    assert web_packages.run(
        of_rows,
        f"""{begin}
const errors = [
  await no({{ x: floats(70, 0), pairs: floats(60, 0) }}), await no({{ x: floats(7, 0), pairs: floats(6, 0) }}),
  await no({{ x: floats(14, 0), pairs: floats(9, 0) }}),
];
{end}""",
        "rows",
    ) == [
        "RangeError: axis 0 of input x may have 2 to 9, got 10",
        "RangeError: axis 0 of input x may have 2 to 9, got 1",
        "RangeError: axis 0 of input pairs is 4, got 3",
    ]


@needs_node
def test_shapes_beyond_the_memory_of_a_module(tmp_path):
    """The size has no bound but memory: a clear error, and the next run is right."""
    net = pelton.Network("open")
    x = net.input("x", "f32[n, 1024]")
    net.output(net.relu(net.matmul(x, np.ones((1024, 32768), np.float32))), "y")
    folder = web_packages.write(net, tmp_path / "open", shapes={"n": "1..4.."})
    first, second = web_packages.run(
        folder,
        """
const engine = await load();
const wide = await said(() => engine.run({ x: floats(20000 * 1024, 0) }));
const { y } = engine.run({ x: new Float32Array(3 * 1024).fill(1) });
console.log(JSON.stringify([wide, [y.dims, y.data.every((v) => v === 1024)]]));
""",
        "open",
    )
    assert re.fullmatch(r"RangeError: these shapes take more memory than .* has, 2047 MB; use a smaller input", first)
    assert second == [[3, 32768], True]


@needs_node
def test_export_takes_bounds(tmp_path, capsys):
    """The command, whose levels have one set of tactics; by default every number of pictures is taken."""
    for name, shapes in (("bounded", ["--shapes", "image=1..2..5x3x32x32"]), ("open", [])):
        command = ["export", str(CIFAR), "-o", str(tmp_path / name), "--name", "net", "--target", "wasm", *shapes]
        assert not main([*command, "--level", "0"]), capsys.readouterr().err
        found = web_packages.run(
            tmp_path / name,
            """
const engine = await load(), said5 = engine.run({ image: floats(5 * 3072, 1) });
const six = await said(() => engine.run({ image: floats(6 * 3072, 1) }));
console.log(JSON.stringify([Object.values(said5)[0].dims, six, engine.inputs[0].optimum]));
""",
        )
        bounded = "RangeError: axis 0 of input image may have 1 to 5, got 6"
        assert found == [[5, 10], *((bounded, [2, 3, 32, 32]) if shapes else ("none", [1, 3, 32, 32]))]


def test_only_dynamic_packages_have_the_resolver(tmp_path, package):
    fixed = web_packages.write(network(), tmp_path / "net", shapes={"n": 8, "h": 8})
    for level, kind in itertools.product(("relaxed", "simd"), ("", ".threads")):
        (one, _), (other, _) = (
            (len(module := (f / f"net.{level}{kind}.wasm").read_bytes()), b"may have" in module)
            for f in (fixed, package)
        )
        assert one + 8000 < other < one + 40_000
    assert b"may have" not in (fixed / "net.simd.wasm").read_bytes()
    assert b"may have" in (package / "net.simd.wasm").read_bytes()
