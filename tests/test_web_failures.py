"""What goes wrong with packages for browsers, in node: files, threads, workers, and runs that are stopped."""

import re
import shutil

import numpy as np
import pytest
import web_packages
from web_packages import needs_node

import pelton

TILES = 64
# By the first number of the input: 1 and 2 trap in the threads that help, and in the first; others are right. Each tile
# is long enough for all threads to take part.
BODY = f"""
    const float *x = a[0].p;
    float *y = a[1].p;
    for (idx t = begin; t < end; t++) {{
        if ((x[0] == 1 && thread) || (x[0] == 2 && !thread))
            __builtin_trap();
        float sum = x[t];
        for (int i = 0; i < 20000; i++)
            sum = sum * 0.999f + x[(t + i) % {TILES}];
        y[t] = sum;
        y[{TILES} + t] = thread;
    }}
"""


def network() -> pelton.Network:
    net, rng = pelton.Network("net"), np.random.default_rng(0)
    x = net.input("x", "f32[1, 3, 35, 37]")
    for i, channels in enumerate((24, 40, 40)):
        inputs = x.shape[1]
        w = rng.standard_normal((channels, inputs, 3, 3)).astype(np.float32) / (3 * inputs**0.5)
        x = net.relu(net.convolution(x, w, np.zeros(channels, np.float32), padding=1, name=f"c{i}"))
    net.output(net.softmax(net.reshape(net.global_average_pool(x), (1, 40)), axis=1), "scores")
    return net


def single() -> pelton.Network:
    net = pelton.Network("net")
    net.output(net.relu(net.input("x", f"f32[{2 * TILES}]")), "y")
    return net


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return web_packages.write(network(), tmp_path_factory.mktemp("failures") / "net")


@pytest.fixture
def copy(package, tmp_path):
    """A package that a test may damage."""
    return shutil.copytree(package, tmp_path / "net")


@pytest.fixture(scope="module")
def crafted(tmp_path_factory):
    return web_packages.with_kernels(single(), tmp_path_factory.mktemp("crafted") / "net", {0: BODY}, TILES)


def damage(folder, what):
    """Changes a package's files as downloads and deployments do."""
    weights, modules = folder / "net.bin", sorted(folder.glob("*.wasm"))
    data = weights.read_bytes()
    if what == "no weights":
        weights.unlink()
    elif what == "short weights":
        weights.write_bytes(data[:-5])
    elif what == "other weights":
        weights.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif what == "no module":
        [m.unlink() for m in modules]
    elif what == "a page for a module":
        [m.write_text("<!doctype html><title>Not found</title>") for m in modules]
    elif what == "short modules":
        [m.write_bytes(m.read_bytes()[:3000]) for m in modules]
    elif what == "no worker":
        (folder / "worker.mjs").unlink()
    else:
        assert what == "a worker that does not parse"
        (folder / "worker.mjs").write_text("<!doctype html>")


WEIGHTS = r"Error: file://\S+/net.bin\?[0-9a-f]{16} "
DAMAGED = [
    ("no weights", WEIGHTS + r"cannot be read: ENOENT.*"),
    ("short weights", WEIGHTS + r"has \d+ bytes, not \d+: it is damaged, or of another export"),
    ("other weights", WEIGHTS + r"has the hash [0-9a-f]{16}, not [0-9a-f]{16}: it is damaged, or of another export"),
    ("no module", r"Error: file://\S+/net.relaxed(.threads)?.wasm cannot be read: ENOENT.*"),
    ("a page for a module", r"Error: file://\S+/net.relaxed(.threads)?.wasm is no module of WebAssembly"),
    ("short modules", r"Error: neither net.relaxed(.threads)?.wasm nor net.simd(.threads)?.wasm is valid here: .*"),
    ("no worker", r"Error: the worker of net failed: Cannot find module .*worker.mjs.*"),
    ("a worker that does not parse", r"Error: the worker of net failed: .*Unexpected token.*"),
]


@needs_node
@pytest.mark.parametrize("what, message", DAMAGED, ids=[what for what, _ in DAMAGED])
def test_damaged_packages(copy, what, message):
    """One error each, in the program's thread and from workers, which end: else node would not."""
    damage(copy, what)
    ways = [f"start({{ threads: {n} }})" for n in (1, 2)] + ["load()"] * ("worker" not in what)
    found = web_packages.run(
        copy, f"console.log(JSON.stringify([{', '.join(f'await said(() => {w})' for w in ways)}]));"
    )
    assert all(re.fullmatch(message, f, re.S) for f in found), found


@needs_node
def test_inputs_of_another_type_or_length(package):
    assert web_packages.run(
        package,
        """
const x = floats(3 * 35 * 37, 0), errors = [];
const here = await load(), there = await start({ threads: 2 });
for (const engine of [here, there]) for (const given of [
  {}, { x: [1, 2] }, { x: new Float64Array(x) }, { x: x.slice(1) }, { x, y: x }, { x: { data: x, dims: [3, 35, 37] } },
  { x: null }, { x: "x" }, { x: { dims: [1, 3, 35, 37] } },
]) errors.push(await said(() => engine.run(given)));
const { scores } = await there.run({ x: { data: x, dims: [1, 3, 35, 37] } });
errors.push(String(scores.every((v, i) => v === here.run({ x }).scores[i])));
errors.push(await said(() => there.run({ x: () => 1 })), await said(() => there.run()));
await there.stop();
console.log(JSON.stringify(errors));
""",
    ) == [
        *[
            "TypeError: input x is a Float32Array (f32), got undefined",
            "TypeError: input x is a Float32Array (f32), got Array",
            "TypeError: input x is a Float32Array (f32), got Float64Array",
            "RangeError: input x has 3885 elements [1,3,35,37], got 3884",
            "TypeError: there is no input y; inputs: x",
            "RangeError: input x is of shape [1,3,35,37], got [3,35,37]",
            "TypeError: input x is a Float32Array (f32), got object",
            "TypeError: input x is a Float32Array (f32), got String",
            "TypeError: input x is a Float32Array (f32), got undefined",
        ]
        * 2,
        "true",
        "TypeError: inputs cannot be sent to a worker: () => 1 could not be cloned.",
        "TypeError: inputs are { name: array }, got undefined",
    ]


@needs_node
def test_threads_do_not_change_a_bit(package):
    """Hundreds of runs on inputs of their own, in turns and side by side."""
    assert web_packages.run(
        package,
        """
const remotes = [];
for (const threads of [1, 2, 3]) remotes.push(await start({ threads }));
let same = 0;
for (let seed = 0; seed < 300; seed++) {
  const x = floats(3 * 35 * 37, seed);
  const found = await Promise.all(remotes.map((remote) => remote.run({ x })));
  const [first, ...others] = found.map(({ scores }) => bytes(scores));
  same += others.every((o) => o === first);
}
await Promise.all(remotes.map((remote) => remote.stop()));
console.log(JSON.stringify([remotes.map((remote) => remote.threads), same]));
""",
    ) == [[1, 2, 3], 300]


@needs_node
def test_all_threads_take_part(crafted):
    """Over some runs: a busy machine may have no core for a thread in one of them."""
    assert web_packages.run(
        crafted,
        f"""
const remote = await start({{ threads: 3 }}), seen = new Set();
const first = (await remote.run({{ x: floats({2 * TILES}, 0) }})).y.slice(0, {TILES});
let same = true;
for (let i = 0; i < 200 && (i < 20 || seen.size < 3); i++) {{
  const {{ y }} = await remote.run({{ x: floats({2 * TILES}, 0) }});
  y.slice({TILES}).forEach((thread) => seen.add(thread));
  same &&= first.every((v, t) => v === y[t]);
}}
await remote.stop();
console.log(JSON.stringify([[...seen].sort(), same]));
""",
    ) == [[0, 1, 2], True]


@needs_node
@pytest.mark.parametrize("threads, value", [(3, 1), (2, 1), (3, 2), (1, 2)])
def test_errors_in_a_thread_reach_the_caller(crafted, threads, value):
    """And end the engine, whose memory is as the error left it; its threads end, too."""
    errors = web_packages.run(
        crafted,
        f"""
const remote = await start({{ threads: {threads} }}), x = floats({2 * TILES}, 0), errors = [];
await remote.run({{ x }});
x[0] = {value};
for (let i = 0; i < 200 && !errors.length; i++) // until the thread takes part
  errors.push(...[await said(() => remote.run({{ x }}))].filter((e) => e !== "none"));
x[0] = 0;
errors.push(await said(() => remote.run({{ x }})));
await remote.stop();
errors.push(await said(() => remote.run({{ x }})));
console.log(JSON.stringify(errors));
""",
    )
    first, second, last = errors
    if value == 1:
        assert first in {f"Error: thread {i} failed: unreachable" for i in range(1, threads)} and second == first
    else:
        assert first == "RuntimeError: unreachable"
        assert second == "Error: net failed in an earlier run, and has to be loaded again: unreachable"
    assert last == "Error: net is stopped"


@needs_node
@pytest.mark.parametrize("threads", [1, 3])
def test_stop_in_the_middle_of_runs(crafted, threads):
    """Runs that were asked for are answered, later ones refused; stopping twice is stopping."""
    assert web_packages.run(
        crafted,
        f"""
const found = [];
for (let i = 0; i < 20; i++) {{
  const remote = await start({{ threads: {threads} }}), x = floats({2 * TILES}, i);
  const runs = Array.from({{ length: i }}, () => said(() => remote.run({{ x }})));
  const ends = [remote.stop(), remote.stop()];
  found.push(await said(() => remote.run({{ x }})), ...(await Promise.all(runs)));
  await Promise.all(ends);
}}
const counts = {{}};
for (const text of found) counts[text] = (counts[text] ?? 0) + 1;
console.log(JSON.stringify(counts));
""",
    ) == {"Error: net is stopped": 20, "none": 190}


@needs_node
def test_a_worker_that_dies(copy):
    """With runs waiting, and between runs: each is an error, none waits for ever."""
    worker = copy / "worker.mjs"
    dying = "run(inputs) {\n    if (inputs.x[0] === 9) process.exit(7);"
    worker.write_text(worker.read_text().replace("run(inputs) {", dying))
    assert dying in worker.read_text()
    assert (
        web_packages.run(
            copy,
            """
const x = floats(3 * 35 * 37, 0), deadly = Float32Array.from(x), errors = [];
deadly[0] = 9;
for (const threads of [1, 2]) {
  const remote = await start({ threads });
  const runs = [x, deadly, x].map((array) => said(() => remote.run({ x: array })));
  errors.push(...(await Promise.all(runs)), await said(() => remote.run({ x })), await said(() => remote.stop()));
}
console.log(JSON.stringify(errors));
""",
        )
        == ["none", *["Error: the worker of net ended with status 7"] * 3, "none"] * 2
    )


@needs_node
@pytest.mark.parametrize("when", ["at once", "between runs"])
def test_a_helper_that_dies(copy, when):
    """Before it is ready, `start` fails; afterwards, the next run does."""
    worker = copy / "worker.mjs"
    before = {"at once": "let own;", "between runs": "own.work(thread);"}[when]
    dying = {"at once": "process.exit(5)", "between runs": "setTimeout(() => process.exit(5), 1500)"}[when]
    worker.write_text(worker.read_text().replace(before, f"{before}\n    if (thread === 2) {dying};", 1))
    if when == "between runs":
        worker.write_text(worker.read_text().replace(before, "if (thread === 1) own.work(thread);", 1))
    found = web_packages.run(
        copy,
        """
const x = floats(3 * 35 * 37, 0), errors = [];
let remote;
errors.push(await said(async () => (remote = await start({ threads: 3 }))));
if (remote) {
  await new Promise((resolve) => setTimeout(resolve, 2500));
  errors.push(await said(() => remote.run({ x })));
  await remote.stop();
}
console.log(JSON.stringify(errors));
""",
    )
    assert found == ["none"] * (when != "at once") + ["Error: thread 2 failed: it has ended"]
