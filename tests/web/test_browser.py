"""Packages in headless Chromium: the page, weights that stay in the browser, threads, and files that are damaged."""

import io
import re

import numpy as np
import pytest
from web_packages import CIFAR

import pelton

LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# a module of a package, as JavaScript that pages evaluate; what `expression` of it and `given` is
OF_MODULE = """async ([file, given]) => {
  const { load, start, facts } = await import(file);
  const said = async (run) => { try { await run(); return "none"; } catch (e) { return `${e.name}: ${e.message}`; } };
  return EXPRESSION;
}"""


def evaluate(page, name, expression, given=None):
    return page.evaluate(OF_MODULE.replace("EXPRESSION", expression), [f"/{name}/{name}.mjs", given])


def opened(context, url):
    """A page, what it wrote to the console, and its errors."""
    page, lines, errors = context.new_page(), [], []
    page.on("console", lambda m: lines.append(f"{m.type}: {m.text}"))
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(url)
    return page, lines, errors


def ready(context, url):
    page, lines, errors = opened(context, url)
    page.wait_for_selector("body[data-ready=yes]")
    return page, lines, errors


def picture():
    """A picture that a browser neither scales nor rounds, and its file."""
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed (make test-web)")
    pixels = np.random.default_rng(3).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    return pixels, {"name": "picture.png", "mimeType": "image/png", "buffer": file.getvalue()}


def rows_of(page):
    page.wait_for_selector("#result td")
    return [
        [cell.inner_text() for cell in row.query_selector_all("td")] for row in page.query_selector_all("#result tr")
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_page_classifies_a_picture(context, site, threads):
    page, lines, errors = ready(context, f"{site().url}/cifar/index.html")
    if threads > 1:
        page.fill("#threads", str(threads))
        page.dispatch_event("#threads", "change")
    page.wait_for_function(f"document.getElementById('state').textContent.includes(', {threads} thread')")
    page.select_option("#range", "bytes")
    labels = {"name": "labels.txt", "mimeType": "text/plain", "buffer": "\n".join(LABELS).encode()}
    page.set_input_files("#labels", labels)
    pixels, file = picture()
    page.set_input_files("#file", file)
    found = rows_of(page)
    engine = pelton.build(CIFAR, level=0, threads=1, shapes={"image": (1, 3, 32, 32)})
    (scores,) = engine.run({"image": pixels.transpose(2, 0, 1)[None].astype(np.float32)}).values()
    best = np.argsort(-scores[0], kind="stable")[:5]
    assert [name for name, _ in found] == [LABELS[i] for i in best]
    assert np.allclose([float(score) for _, score in found], scores[0, best], rtol=1e-3, atol=1e-6)
    assert errors == [] and not [
        line for line in lines if "favicon" not in line and not line.startswith("error: Failed")
    ]


def test_page_of_a_dynamic_engine(context, site):
    page, _, errors = ready(context, f"{site().url}/rows/index.html")
    page.click("#random")
    assert len(rows_of(page)) == 5 and errors == []


def test_weights_stay_in_the_browser(context, site):
    """A second page asks for none, also in a worker; progress ends at the file's size."""
    here = site()
    size = (here.folder / "cifar/cifar.bin").stat().st_size
    progress = "(async (seen) => (await load({ progress: (...p) => seen.push(p) }), seen))([])"
    for visit in range(3):
        page, _, errors = ready(context, f"{here.url}/cifar/index.html")
        assert here.count("cifar.bin") == 1, visit
        seen = evaluate(page, "cifar", progress)
        assert seen[-1] == [size, size] and all(a[0] < b[0] for a, b in zip(seen, seen[1:])), visit
        assert errors == []
        page.close()


def test_weights_of_another_export_replace_the_old(context, site):
    here = site()
    page, *_ = ready(context, f"{here.url}/cifar/index.html")
    keys = "caches.open('pelton').then((c) => c.keys()).then((keys) => keys.map((k) => k.url))"
    (before,) = page.evaluate(keys)
    old = before.replace(before[-16:], "0" * 16)
    page.evaluate(
        "async ([old, now]) => { const c = await caches.open('pelton');"
        " await c.put(old, await c.match(now)); await c.delete(now); }",
        [old, before],
    )
    assert evaluate(page, "cifar", "load().then(() => 'loaded')") == "loaded"
    page.wait_for_function(f"{keys}.then((urls) => urls.length === 1 && urls[0] === '{before}')")
    assert here.count("cifar.bin") == 2


def test_damaged_weights_in_the_browser_are_fetched_again(context, site):
    here = site()
    page, *_ = ready(context, f"{here.url}/cifar/index.html")
    page.evaluate(
        "async () => { const c = await caches.open('pelton'), [k] = await c.keys();"
        " const b = new Uint8Array(await (await c.match(k)).arrayBuffer()); b[1000] ^= 1;"
        " await c.put(k, new Response(b)); }"
    )
    for _ in range(2):
        assert evaluate(page, "cifar", "load().then(() => 'loaded')") == "loaded"
    assert here.count("cifar.bin") == 2


INPUTS = "{ image: Float32Array.from({ length: 3072 }, (_, i) => Math.sin(i)) }"


def test_threads_of_isolated_pages(context, site):
    page, lines, errors = ready(context, f"{site().url}/cifar/index.html")
    run = (
        "start({ threads: given }).then(async (r) => {"
        f" const outputs = await r.run({INPUTS}), [{{ name }}] = r.outputs; await r.stop();"
        " return [r.threads, Array.from(outputs[name])]; })"
    )
    found = [evaluate(page, "cifar", run, threads) for threads in (1, 2, 3)]
    assert [threads for threads, _ in found] == [1, 2, 3]
    assert found[0][1] == found[1][1] == found[2][1] and len(found[0][1]) == 10
    assert not [line for line in lines if line.startswith("warning")] and errors == []


def test_other_pages_have_one_thread_and_a_warning(context, site):
    page, lines, errors = ready(context, f"{site({}).url}/cifar/index.html")
    assert not page.evaluate("crossOriginIsolated")
    run = f"start({{ threads: 4 }}).then(async (r) => [r.threads, Object.keys(await r.run({INPUTS})).length])"
    assert evaluate(page, "cifar", run) == [1, 1]
    warnings = [line for line in lines if line.startswith("warning")]
    assert warnings == ["warning: cifar runs on one thread: the page is not cross-origin isolated (README.md)"]
    assert errors == []


BIN, MODULE = r"Error: http://\S+/cifar.bin\?\w{16} ", r"Error: http://\S+/cifar.relaxed(.threads)?.wasm "


@pytest.mark.parametrize(
    "file, change, message",
    [
        ("cifar.bin", None, BIN + "cannot be fetched: 404 .*"),
        ("cifar.bin", lambda data: data[:-1], BIN + r"has \d+ bytes, not \d+: it is damaged, or of another export"),
        (
            "cifar.bin",
            lambda data: b"x" + data[1:],
            BIN + r"has the hash \w+, not \w+: it is damaged, or of another export",
        ),
        ("cifar.relaxed*.wasm", None, MODULE + "cannot be fetched: 404 .*"),
        ("cifar.relaxed*.wasm", lambda _: b"<!doctype html>", MODULE + "is no module of WebAssembly"),
        ("worker.mjs", None, r"Error: the worker of cifar failed: it cannot be loaded"),
        ("worker.mjs", lambda _: b"<!doctype html>", r"Error: the worker of cifar failed: .+"),
    ],
)
def test_damaged_packages(context, site, file, change, message):
    """One error each, in the page's thread and from workers, and nothing damaged stays in the browser."""
    here = site()
    for path in (here.folder / "cifar").glob(file):
        data = path.read_bytes()
        path.unlink() if change is None else path.write_bytes(change(data))
    page, _, errors = opened(context, f"{here.url}/rows/index.html")
    for way in ["start()", "start({ threads: 2 })"] + ["load()"] * ("worker" not in file):
        found = evaluate(page, "cifar", f"said(() => {way})")
        assert re.fullmatch(message, found), found
    assert errors == []
    kept = page.evaluate("caches.open('pelton').then((c) => c.keys()).then((keys) => keys.map((k) => k.url))")
    assert not [url for url in kept if file in url]
