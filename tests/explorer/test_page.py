"""The explorer's page in a browser: its content is visible, searchable and reachable by keyboard, in both themes."""

import re

import pytest

EVIL = "</script><img src=x onerror=alert(1)>"
LIMITS = {"googlenet": 1000, "long": 3000}  # milliseconds to a drawn graph

# the luminance of two colours of the page as a contrast (WCAG 2.2, 1.4.3)
CONTRAST = """(selector) => {
  const rgb = (text) => {
    const pixel = document.createElement("canvas").getContext("2d");
    pixel.fillStyle = text;
    pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data];
  };
  const light = (text) => {
    const [r, g, b] = rgb(text).map((x) => x / 255)
      .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (behind && rgb(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
  const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""

BOXES = """() => [...document.querySelectorAll(".node")].map((n) =>
  [n.dataset.id, n.offsetLeft, n.offsetTop, n.offsetLeft + n.offsetWidth, n.offsetTop + n.offsetHeight])"""


def data(page):
    return page.evaluate("JSON.parse(document.getElementById('data').textContent)")


def focused(page):
    return page.evaluate("document.activeElement.dataset.id ?? document.activeElement.id")


@pytest.mark.parametrize("name", LIMITS)
def test_it_opens_at_once(show, name):
    """The best of three: other users of the machine come and go."""
    drawn = "performance.getEntriesByName('graph drawn')[0].startTime"
    times = [show(name).evaluate(drawn) for _ in range(3)]
    assert min(times) < LIMITS[name], times


@pytest.mark.parametrize("name", ["googlenet", "long", "evil"])
def test_every_step_has_its_place_in_the_graph(show, name):
    page = show(name)
    engine = data(page)["engines"][0]
    boxes = sorted(page.evaluate(BOXES), key=lambda b: b[2])
    wanted = [(k, len(engine[of])) for k, of in (("s", "steps"), ("i", "inputs"), ("o", "outputs"))]
    assert {b[0] for b in boxes} == {f"{k}{i}" for k, n in wanted for i in range(n)}
    for i, (_, left, _, right, bottom) in enumerate(boxes):
        for _, begin, high, end, _ in boxes[i + 1 : i + 40]:
            assert high >= bottom or end <= left or right <= begin
    at = {id: top for id, _, top, _, _ in boxes}
    assert all(at[a] < at[b] for a, b, _ in engine["edges"])
    assert page.locator(".lines path").count() == len({(a, b) for a, b, _ in engine["edges"]})
    assert page.locator(".node.bad").count() == sum(s["kind"] in ("copy", "host") for s in engine["steps"])


def test_search_finds_by_layer_op_and_tactic(show):
    page = show("googlenet")
    steps = data(page)["engines"][0]["steps"]
    said, search = page.locator(".found"), page.get_by_role("searchbox")
    for query, of in (("inception_3a/5x5", "layers"), ("max_pool", "op"), ("winograd", "tactic"), ("zzz", "op")):
        search.fill(query)
        found = [i for i, s in enumerate(steps) if query in str(s[of])]
        assert said.inner_text().startswith(f"{len(found)} step")
        assert page.locator(".node:not(.dim)").count() == len(found)
    search.fill("lrn")
    first, second = [i for i, s in enumerate(steps) if "lrn" in s["op"]]
    for key, chosen in (("Enter", first), ("Enter", second), ("Enter", first), ("Shift+Enter", second)):
        search.press(key)
        assert page.locator(".eyebrow").inner_text() == f"step {chosen} of {len(steps)}"
    search.press("Escape")
    assert search.input_value() == "" and page.locator(".node.dim").count() == 0


def test_everything_is_reached_by_keyboard(show):
    page = show("googlenet")
    page.keyboard.press("Tab")
    assert focused(page) == "" and page.evaluate("document.activeElement.textContent") == "All steps as a table"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className").startswith("node"):
            break
    assert focused(page) == "i0"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert focused(page) == "s1"
    page.keyboard.press("ArrowUp")
    assert focused(page) == "s0"
    page.keyboard.press("Enter")
    assert page.locator(".panel h2").inner_text() == "convolution + relu" and focused(page) == "s0"
    page.keyboard.press("End")
    assert focused(page) == "o0" and in_view(page, "[data-id=o0]")
    page.keyboard.press("]")
    assert page.locator(".eyebrow").inner_text().startswith("step 1 ")
    page.keyboard.press("Escape")
    assert page.locator(".panel h2").inner_text() == "The whole engine"
    page.keyboard.press("/")
    assert focused(page) == "search"
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    assert page.locator(".panel h2").inner_text() == "softmax"
    page.get_by_role("tab", name="Graph").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", selected=True).inner_text() == "Steps" and focused(page) == "tab-steps"
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()


def test_siblings_are_left_and_right(show):
    page = show("googlenet")
    page.locator("[data-id=s9]").focus()
    place = {b[0]: b for b in page.evaluate(BOXES)}
    page.keyboard.press("ArrowLeft")
    other = focused(page)
    assert place[other][2] == place["s9"][2] and place[other][1] < place["s9"][1]
    page.keyboard.press("ArrowRight")
    assert focused(page) == "s9"


def in_view(page, selector):
    outer, inner = (page.locator(s).bounding_box() for s in (".viewport", selector))
    return outer["x"] <= inner["x"] and inner["x"] + inner["width"] <= outer["x"] + outer["width"]


def test_the_graph_is_zoomed_and_fitted(show):
    page = show("googlenet")
    scale = "Number(/scale\\(([^)]+)/.exec(document.querySelector('.world').style.transform)[1])"
    before = page.evaluate(scale)
    page.get_by_role("button", name="Zoom in (+)").click()
    assert page.evaluate(scale) == pytest.approx(1.4 * before, rel=1e-3)
    page.locator("[data-id=s0]").focus()
    page.keyboard.press("f")
    view = page.locator(".viewport").bounding_box()
    for id in ("i0", "o0"):
        box = page.locator(f"[data-id={id}]").bounding_box()
        assert view["y"] <= box["y"] and box["y"] + box["height"] <= view["y"] + view["height"]
    assert page.evaluate(scale) < before


def test_the_panel_says_what_the_data_says(show):
    page = show("tuned")
    steps = data(page)["engines"][0]["steps"]
    timed = next(i for i, s in enumerate(steps) if s["source"] == "tuned" and len(s["times"]) > 2)
    page.evaluate("(i) => document.querySelector(`.node[data-id=s${i}]`).click()", timed)
    panel = page.locator(".panel")
    text = panel.inner_text()
    assert f"of {len(steps[timed]['times'])} timed" in text and "tuned" in text
    assert panel.locator(".timed li").first.inner_text().startswith(steps[timed]["times"][0][0].split("@")[0][:9])
    assert panel.locator(".layers li").all_inner_texts() == steps[timed]["layers"]
    for t in steps[timed]["outputs"]:
        assert t["layout"] in text and "×".join(map(str, t["shape"])) in text


def test_the_table_is_the_alternative_of_the_graph(show):
    page = show("googlenet")
    steps = data(page)["engines"][0]["steps"]
    page.get_by_role("tab", name="Steps").click()
    table = page.get_by_role("table")
    assert table.locator("caption").inner_text() == f"{len(steps)} steps of googlenet.pelton"
    rows = table.locator("tbody tr")
    assert rows.count() == len(steps) and table.locator("tbody th[scope=row]").count() == len(steps)
    page.get_by_role("button", name="time", exact=True).click()
    slowest = max(range(len(steps)), key=lambda i: steps[i]["ns"])
    assert rows.first.get_attribute("data-id") == f"s{slowest}"
    assert table.locator("[aria-sort=descending]").inner_text().startswith("time")
    rows.nth(3).locator("button").press("Enter")
    assert page.locator(".eyebrow").inner_text().startswith(f"step {rows.nth(3).get_attribute('data-id')[1:]} ")


def test_charts_have_every_step(show):
    page = show("googlenet")
    engine = data(page)["engines"][0]
    page.get_by_role("tab", name="Roofline").click()
    dots = page.locator(".dots circle")
    assert dots.count() == sum(bool(s["flops"] and s["bytes"]) for s in engine["steps"])
    assert "GB/s" in page.locator(".roof").text_content()
    dots.first.dispatch_event("click")
    assert page.locator(".dots .chosen").count() == 1
    page.get_by_role("tab", name="Memory").click()
    assert page.locator(".boxes rect").count() == len(engine["memory"][0]["buffers"])
    page.locator("summary", has_text="same as a table").click()
    assert page.locator("#view-memory tbody tr").count() == len(engine["memory"][0]["buffers"])
    page.get_by_role("tab", name="Precision").click()
    assert page.locator(".cells div").count() == len(engine["steps"])


def test_two_engines_side_by_side(show):
    page = show("both")
    found = data(page)
    assert page.get_by_role("tab", selected=True).inner_text() == "Side by side"
    assert page.locator(".rows > li").count() == len(found["rows"])
    left, right = (e["total"] for e in found["engines"])
    marks = {name: page.locator(f".rows > .{name}").count() for name in ("faster", "slower", "same")}
    assert sum(marks.values()) == len(found["rows"])
    for name, count in marks.items():
        assert page.locator(f".counts .{name} b").inner_text() == f"{count}"
    sign = {True: "+", False: "−"}[right > left]
    assert page.locator(".sum .big b").inner_text().startswith(sign)
    page.get_by_label("Order of rows").select_option("worst")
    page.locator(".rows > li").first.locator(".side").nth(1).locator("button").first.click()
    assert page.locator("h1").inner_text() == "resnet20_int8.pelton"
    page.get_by_role("tab", name="Graph").click()
    page.wait_for_selector(".node.chosen")
    assert page.locator(".node .slower, .node .faster").count() > 0
    page.get_by_role("tab", name="Precision").click()
    assert "INT8" in page.locator("#view-precision").inner_text()


def test_names_are_text(show):
    page = show("evil")
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert page.locator("[data-id=o0] b").inner_text().endswith(EVIL[-20:])
    page.locator("[data-id=s0]").click()
    assert EVIL in page.locator(".layers").inner_text()
    page.get_by_role("tab", name="Steps").click()
    assert EVIL in page.get_by_role("table").inner_text()


def test_the_policy_lets_nothing_in_or_out(show):
    page = show("evil")
    blocked = """async () => {
      const seen = [];
      document.addEventListener("securitypolicyviolation", (e) => seen.push(e.effectiveDirective));
      await fetch("https://example.com/").catch(() => 0);
      for (const [tag, at] of [["img", "src"], ["script", "src"], ["iframe", "src"]]) {
        const made = document.createElement(tag);
        made[at] = "https://example.com/x";
        document.body.append(made);
      }
      await new Promise((done) => setTimeout(done, 300));
      return seen;
    }"""
    assert {"connect-src", "img-src", "script-src-elem", "frame-src"} <= set(page.evaluate(blocked))
    assert all("example.com" in line for line in show.wrong)
    show.wrong.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(show, scheme):
    page = show("googlenet", color_scheme=scheme)
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((x) => x < 60)"
    assert page.evaluate(dark) == (scheme == "dark")
    page.locator("[data-id=s4]").click()
    for selector in (
        "h1",
        ".card b",
        ".card dt",
        ".badge",
        ".node b",
        ".node .layer",
        ".panel h3",
        ".panel dd",
        ".quiet",
    ):
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(dark) == (scheme == "light")
    assert page.evaluate(CONTRAST, ".card b") >= 4.5


@pytest.mark.parametrize("name", ["googlenet", "both"])
def test_it_fits_a_telephone(show, name):
    page = show(name, width=390, height=844, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("tab", name="Graph").click()
    assert not page.locator(".panel").is_visible()
    page.evaluate("document.querySelector('.node[data-id=s4]').click()")
    assert page.locator(".panel").is_visible()
    page.wait_for_timeout(100)
    box, panel = (page.locator(s).bounding_box() for s in (".node.chosen", ".panel"))
    assert 0 <= box["x"] and box["x"] + box["width"] <= 390 and box["y"] + box["height"] <= panel["y"] + 1
    page.get_by_role("button", name="Close (Escape)").click()
    assert not page.locator(".panel").is_visible()


def test_without_scripts_there_is_a_table(show):
    page = show("googlenet", ready=False, java_script_enabled=False)
    assert page.locator("table tbody tr").count() == 57 and page.locator("table").is_visible()


def test_headings_and_names_for_screen_readers(show):
    page = show("googlenet")
    assert page.locator("h1").count() == 1 and page.locator("main h2").count() >= 1
    unnamed = """() => [...document.querySelectorAll("button, input, select, a, [role=tabpanel], [role=img], aside")]
      .filter((e) => !(e.ariaLabel || e.getAttribute("aria-labelledby") || e.textContent.trim() || e.labels?.length))
      .map((e) => e.outerHTML)"""
    assert page.evaluate(unnamed) == []
    assert page.evaluate("document.documentElement.lang") == "en"
    said = page.locator("[data-id=s0]").get_attribute("aria-label")
    assert re.match(r"step 0: convolution \+ relu; layers conv1/7x7_s2/conv, .*; conv\w*, [\d.]+ [µm]s · \d+", said)


@pytest.mark.parametrize(
    "picture, name, scheme, tab, step",
    [
        ("explorer-graph", "googlenet", "light", "Graph", "s14"),
        ("explorer-roofline", "googlenet", "dark", "Roofline", None),
        ("explorer-memory", "googlenet", "light", "Memory", "s5"),
        ("explorer-compare", "both", "light", "Side by side", None),
        ("explorer-long", "long", "dark", "Graph", None),
    ],
)
def test_pictures_for_the_documents(show, images, picture, name, scheme, tab, step):
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (make test-explorer)")
    page = show(name, width=1280, height=800, color_scheme=scheme)
    page.get_by_role("tab", name=tab).click()
    if step:
        page.evaluate("(id) => document.querySelector(`.node[data-id=${id}]`).click()", step)
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    images.mkdir(exist_ok=True)
    path = images / f"{picture}.png"
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
    assert 10_000 < path.stat().st_size < 200_000
