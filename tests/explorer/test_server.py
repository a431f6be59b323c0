"""The server's page in a browser: figures appear and change, nothing overflows, names are text."""

import json
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

EVIL = "</script><img src=x onerror=alert(1)>"
WIDTHS = {"desk": 1400, "phone": 390}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    uvicorn = pytest.importorskip("uvicorn")
    from serve_rest import half_plus_two, line, save, serving

    root = tmp_path_factory.mktemp("models")
    save(root, "half", half_plus_two(), ("1", "3"), "version_policy { all {} }")
    save(root, "a_model_whose_name_is_as_long_as_those_of_exported_networks_often_are", line())
    (root / "broken/1").mkdir(parents=True)
    (root / "broken/1/model.pelton").write_bytes(b"no engine")
    with serving(root, name=EVIL) as client:
        config = uvicorn.Config(client.application, port=0, lifespan="off", log_level="error", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
        server.should_exit = True
        thread.join()


def predict(address, rows):
    body = json.dumps({"instances": [[1, 2]] * rows}).encode()
    with urllib.request.urlopen(f"{address}v1/models/half:predict", body) as answer:
        assert json.load(answer)["predictions"] == [[2.5, 3.0]] * rows


@pytest.fixture
def show_server(browser, address):
    contexts, wrong = [], []

    def go(width, **how):
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        page = context.new_page()
        page.on("console", lambda m: wrong.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("dialog", lambda d: wrong.append(f"dialog {d.message}"))
        page.on("request", lambda r: None if r.url.removeprefix("blob:").startswith(address) else wrong.append(r.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready=models]")
        contexts.append(context)
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", WIDTHS)
def test_the_page_fits_its_window(show_server, address, images, name, scheme):
    predict(address, 4)
    page = show_server(WIDTHS[name], color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[name]
    assert page.locator("h1").inner_text() == EVIL and page.locator("img").count() == 0
    assert page.locator("tbody tr").count() == 4
    assert "model.pelton" in page.locator("tbody tr", has_text="broken").inner_text()
    page.screenshot(path=str(images / f"serve-{name}-{scheme}.png"), full_page=True)


def test_figures_change_as_requests_arrive(show_server, address):
    page = show_server(1400)
    cell = page.locator("tbody tr", has_text="half 3").locator("td").nth(2)
    before = int(cell.inner_text())
    for _ in range(3):
        predict(address, 2)
    page.wait_for_function(
        "n => [...document.querySelectorAll('td')].some((c) => c.textContent === n)", arg=str(before + 3)
    )
    assert int(cell.inner_text()) == before + 3


def test_engines_are_a_click_away(show_server, address):
    page = show_server(1400)
    page.locator("a", has_text="half").first.click()
    page.wait_for_selector("html[data-ready=graph]")
    assert page.url == f"{address}explorer/half/1"
