"""Packages in headless Chromium and from npm's archives (make test-web): packages, a server of files, a browser."""

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import chromium
import numpy as np
import pytest
import web_packages

import pelton

ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


def rows() -> pelton.Network:
    net = pelton.Network("rows")
    w = np.random.default_rng(0).standard_normal((7, 40)).astype(np.float32)
    net.output(net.softmax(net.matmul(net.input("x", "f32[batch, 7]"), w), axis=1), "y")
    return net


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """A folder of packages: a classifier of pictures, and a network with a dynamic size."""
    folder = tmp_path_factory.mktemp("packages")
    web_packages.write(web_packages.CIFAR, folder / "cifar", shapes={"image": (1, 3, 32, 32)}, name="cifar")
    web_packages.write(rows(), folder / "rows", shapes={"batch": "1..4..64"})
    return folder


class Site:
    """A server of a folder's files, by default isolated from other origins; it counts requests by path."""

    def __init__(self, folder: Path, headers=None):
        self.requests: Counter[str] = Counter()
        site, sent = self, ISOLATED if headers is None else headers

        class Handler(SimpleHTTPRequestHandler):
            extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

            def do_GET(self):
                site.requests[self.path] += 1
                super().do_GET()

            def end_headers(self):
                for name, value in {**sent, "Cache-Control": "no-store"}.items():
                    self.send_header(name, value)
                super().end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def count(self, ending: str) -> int:
        """Returns how often files of an ending were asked for."""
        return sum(n for path, n in self.requests.items() if path.partition("?")[0].endswith(ending))


@pytest.fixture
def site(packages, tmp_path):
    """Starts servers of a copy of all packages, which a test may damage."""
    started: list[Site] = []

    def go(headers=None) -> Site:
        folder = tmp_path / str(len(started))
        shutil.copytree(packages, folder)
        started.append(Site(folder, headers))
        started[-1].folder = folder
        return started[-1]

    yield go
    for each in started:
        each.server.shutdown()
        each.server.server_close()


@pytest.fixture(scope="session")
def browser():
    with chromium.launched("test-web") as found:
        yield found


@pytest.fixture
def context(browser) -> Iterator:
    """A profile of its own, with an empty cache."""
    made = browser.new_context()
    yield made
    made.close()
