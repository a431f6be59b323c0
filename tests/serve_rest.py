"""A server in this process for tests of its REST interfaces, and its models."""

import asyncio
import contextlib

import httpx
import numpy as np
from onnx import helper
from onnx_models import model

import pelton
from pelton.serve.http import Application
from pelton.serve.options import ServeOptions
from pelton.serve.server import Server

HALF, SHIFT = 0.5, 2.0
WEIGHTS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def half_plus_two():
    """x, f32[batch, 2] → y = x / 2 + 2: TensorFlow Serving's own example."""
    net = pelton.Network("half_plus_two")
    x = net.input("x", "f32[batch, 2]")
    net.output(net.add(net.mul(x, np.float32(HALF)), np.float32(SHIFT)), "y")
    return net


def line():
    """x, f32[batch] → y = x / 2 + 2: one number for each row."""
    net = pelton.Network("line")
    x = net.input("x", "f32[batch]")
    net.output(net.add(net.mul(x, np.float32(HALF)), np.float32(SHIFT)), "y")
    return net


def scores():
    """x, f32[batch, 4] → scores of three classes."""
    net = pelton.Network("scores")
    net.output(net.softmax(net.linear(net.input("x", "f32[batch, 4]"), WEIGHTS)), "scores")
    return net


def types():
    """A tensor of each kind, handed through, and doubled floats."""
    kinds = {"whole": "i32", "small": "u8", "large": "u64", "flag": "bool", "exact": "f64", "near": "f16"}
    nodes = [helper.make_node("Identity", [name], [name + "_out"]) for name in (*kinds, "text", "raw")]
    nodes.append(helper.make_node("Identity", ["raw"], ["raw_bytes"]))
    shapes = {name: f"{dtype}[batch, 2]" for name, dtype in kinds.items()}
    return model(
        nodes[:-2] + nodes[-1:],
        {**shapes, "text": "string[batch, 2]", "raw": "string[batch, 2]"},
        [*(name + "_out" for name in (*kinds, "text")), "raw_bytes"],
        {},
        opset=20,
    )


def texts():
    """text, string[batch, 1] → text_out, the same with a mark behind."""
    nodes = [helper.make_node("StringConcat", ["text", "mark"], ["text_out"])]
    return model(nodes, {"text": "string[batch, 1]"}, ["text_out"], {"mark": np.array("!", object)}, opset=20)


def save(root, name, source, versions=("1",), config=""):
    """Builds a model into a repository."""
    engine = pelton.build(source, level=0, threads=1)
    for version in versions:
        folder = root / name / version
        folder.mkdir(parents=True, exist_ok=True)
        engine.save(folder / "model.pelton")
    if config:
        (root / name / "config.pbtxt").write_text(config)


class Client:
    """A client of an application in this process: `get` and `post` return httpx's responses."""

    def __init__(self, server):
        self.server, self.application = server, Application(server)

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, content=b"", **options):
        return self.request("POST", path, content=content, **options)

    def request(self, method, path, **options):
        async def send():
            transport = httpx.ASGITransport(self.application)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())


@contextlib.contextmanager
def serving(root, **options):
    """Yields a client of a server of a repository; `client.server` is that server."""
    server = Server(ServeOptions((root,), **{"control": "none", "threads": 1, "jobs": 1, **options}))
    server.start()
    try:
        yield Client(server)
    finally:
        server.close()
