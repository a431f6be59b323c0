"""Pages of `pelton view` in headless Chromium (make test-explorer): engines, their pages, and a browser."""

import os
from collections import Counter
from pathlib import Path

import chromium
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test import __file__ as onnx_tests

from pelton.cli import main

ROOT = Path(__file__).parents[2]
EVIL = "</script><img src=x onerror=alert(1)>"


def googlenet() -> onnx.ModelProto:
    """That of the onnx package, without trained weights, its nodes named after them: 57 steps."""
    model = onnx.load(Path(onnx_tests).parent / "data/light/light_inception_v1.onnx")
    seen, last = Counter(), "data"
    for node in model.graph.node:
        weights = [name for name in node.input if name.endswith("_w_0")]
        last = weights[0].removesuffix("_w_0") if weights else last
        kind = node.op_type.lower()
        seen[last, kind] += 1
        node.name = f"{last}/{kind}" + (f"_{seen[last, kind]}" if seen[last, kind] > 1 else "")
    return model


def blocks(count: int) -> onnx.ModelProto:
    """Three steps for each block, of small convolutions side by side; 1,502 steps for 500 of them."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for b in range(count):
        for k, size in enumerate((1, 3, 3)):
            array = rng.standard_normal((4, 12, size, size)).astype(np.float32)
            weights.append(onnx.numpy_helper.from_array(array, f"w{b}_{k}"))
            pads = [size // 2] * 4
            nodes.append(helper.make_node("Conv", [last, f"w{b}_{k}"], [f"c{b}_{k}"], f"block{b}/conv{k}", pads=pads))
            nodes.append(helper.make_node("Sigmoid", [f"c{b}_{k}"], [f"s{b}_{k}"], f"block{b}/sigmoid{k}"))
        nodes.append(helper.make_node("Concat", [f"s{b}_{k}" for k in range(3)], [f"j{b}"], f"block{b}/join", axis=1))
        pool = dict(kernel_shape=[3, 3], pads=[1] * 4)
        nodes.append(helper.make_node("MaxPool", [f"j{b}"], [f"p{b}"], f"block{b}/pool", **pool))
        nodes.append(helper.make_node("Add", [f"p{b}", last], [f"o{b}"], f"block{b}/add"))
        last = f"o{b}"
    nodes.append(helper.make_node("Relu", [last], ["y"], "end"))
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 12, 6, 6)) for name in "xy"]
    graph = helper.make_graph(nodes, "blocks", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def evil() -> onnx.ModelProto:
    nodes = [helper.make_node("Softmax", ["x"], ["s"], EVIL), helper.make_node("Relu", ["s"], [EVIL], "<b>bold</b>")]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (3, 7)) for name in ("x", EVIL)]
    graph = helper.make_graph(nodes, EVIL, ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Pages by name: of GoogLeNet with measured times, of 1,502 steps, of two engines, of names that are HTML; and
    advice for a model."""
    folder = tmp_path_factory.mktemp("pages")
    cifar = ROOT / "src/pelton/data/resnet20_cifar10.onnx"
    pictures = np.random.default_rng(0).uniform(0, 255, (16, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "pictures.npz", image=pictures)
    whole = ["--shapes", "image=1x3x32x32"]
    for name, made, how in (
        ("googlenet", googlenet(), ["--level", "2", "--budget", "20"]),
        ("long", blocks(500), ["--level", "0"]),
        ("evil", evil(), ["--level", "0"]),
        ("resnet20", cifar, ["--level", "1", *whole]),
        (
            "resnet20_int8",
            cifar,
            ["--level", "1", "--precision", "int8", "--calibration", str(folder / "pictures.npz"), *whole],
        ),
    ):
        path = made if isinstance(made, Path) else folder / f"{name}.onnx"
        if path is not made:
            onnx.save(made, path)
        assert main(["build", str(path), "-o", str(folder / f"{name}.pelton"), "-q", *how]) == 0
    engine = {p.stem: str(p) for p in folder.glob("*.pelton")}
    for name, args in (
        ("googlenet", [engine["googlenet"], "--time"]),
        ("tuned", [engine["googlenet"]]),
        ("long", [engine["long"]]),
        ("evil", [engine["evil"]]),
        ("both", [engine["resnet20"], engine["resnet20_int8"], "--time"]),
    ):
        assert main(["view", *args, "-o", str(folder / f"{name}.html"), "-q"]) == 0
    (folder / "own.toml").write_text(
        '[[device]]\nname = "<b>card</b>"\nvendor = "NVIDIA"\nkind = "gpu"\nform = "card"\narchitecture = "Ada"\n'
        "year = 2026\nmemory_gb = 8.0\nbandwidth_gbs = 300.0\nprice = 500.0\n"
        'currency = "USD"\nprice_date = "2026-11"\nprice_kind = "street"\n'
        "[device.dense]\nfp32 = 10.0\n"
    )
    devices = ["--devices", "RTX 40*,L4,*card*", "--catalog", str(folder / "own.toml"), "--batch", "1,32"]
    assert main(["advise", str(cifar), *devices, "--html", str(folder / "advice.html"), "-q"]) == 0
    return {p.stem: p.as_uri() for p in folder.glob("*.html")}


@pytest.fixture(scope="session")
def browser():
    with chromium.launched("test-explorer") as found:
        yield found


@pytest.fixture
def show(browser, pages):
    """Opens a page of `pages` and waits for its graph. At the end nothing may have gone wrong in any, and nothing may
    have been asked of the network."""
    opened, wrong = [], []

    def go(name, width=1440, height=900, ready=True, **how):
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        page = context.new_page()
        page.on("console", lambda m: wrong.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("dialog", lambda d: wrong.append(f"dialog {d.message}"))
        own = pages[name]
        page.on("request", lambda r: None if r.url == own or r.url.startswith("blob:") else wrong.append(r.url))
        page.goto(own)
        if ready:
            page.wait_for_selector("html[data-ready=graph]")
        opened.append(context)
        return page

    go.wrong = wrong
    yield go
    for context in opened:
        context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Where pictures of pages go: into the documents, for `make test-explorer`."""
    given = os.environ.get("SCREENSHOTS")
    return Path(given) if given else tmp_path_factory.mktemp("images")
