// The graph of steps: boxes that one can focus, edges behind them, zoom, pan and a map of the whole.
import { select } from "d3-selection";
import { curveBasis, line } from "d3-shape";
import { zoom, zoomIdentity } from "d3-zoom";
import { h, iconButton, pointed, s } from "./dom.js";
import { duration, percent, shape, size, tail } from "./format.js";
import { NODE, PORT, placeLater } from "./layout.js";
import { colourOf, isBad, search, set, state, watch } from "./model.js";
import { overview } from "./overview.js";

const FAR = 0.42; // zoom from which on text is too small to read
const READABLE = 0.82; // zoom at which one begins
const NEAR = 0.75; // zoom from which on edges say what they carry
const curve = line().curve(curveBasis);

export function graphView() {
  const edges = s("svg", { class: "edges", "aria-hidden": "true" });
  const nodes = h("div", { class: "nodes" });
  const world = h("div", { class: "world" }, edges, nodes);
  const waiting = h("p", { class: "waiting", role: "status" });
  const view = h(
    "div",
    { class: "viewport", role: "group", "aria-label": "Graph of steps. Arrow keys follow the edges, Enter shows a step." },
    world,
    waiting,
  );
  const map = overview((x, y) => centre(x, y));
  const tools = h(
    "div",
    { class: "tools", role: "toolbar", "aria-label": "Zoom" },
    iconButton("Zoom in (+)", "+", () => scale(1.4)),
    iconButton("Zoom out (−)", "−", () => scale(1 / 1.4)),
    iconButton("Fit all (F)", "⤢", () => fit()),
    iconButton("Readable size (0)", "1:1", () => home()),
  );
  const root = h("div", { class: "graph" }, view, tools, map.root);
  let boxes = new Map();
  let current = null; // the box that Tab reaches
  let placed = null;
  let shown = null; // the engine that is drawn

  const zooming = zoom()
    .scaleExtent([0.02, 2.5])
    .on("zoom", ({ transform }) => {
      world.style.transform = `translate(${transform.x}px,${transform.y}px) scale(${transform.k})`;
      root.classList.toggle("far", transform.k < FAR);
      root.classList.toggle("near", transform.k >= NEAR);
      map.look(seen(transform));
    });
  const panel = select(view).call(zooming).on("dblclick.zoom", null);

  const box = () => view.getBoundingClientRect();
  /** What one sees of it: the map lies over its right side, on narrow screens the panel over its lower part. */
  const free = () => {
    const { width, height, bottom } = box();
    const panel = document.querySelector(".panel.open")?.getBoundingClientRect();
    const side = map.root.offsetWidth && map.root.offsetWidth + 20;
    return { width: width - side, height: panel && panel.left < box().right ? height - Math.max(bottom - panel.top, 0) : height };
  };
  const seen = (t) => {
    const { width, height } = box();
    return { x: -t.x / t.k, y: -t.y / t.k, width: width / t.k, height: height / t.k };
  };
  const now = () => view.__zoom ?? zoomIdentity;
  const go = (transform) => panel.call(zooming.transform, transform);
  const scale = (factor) => panel.call(zooming.scaleBy, factor);

  function centre(x, y, k = now().k) {
    const { width, height } = free();
    go(zoomIdentity.translate(width / 2 - x * k, height / 2 - y * k).scale(k));
  }

  function fit() {
    if (!placed) return;
    const { width, height } = free();
    const k = Math.min(width / placed.width, height / placed.height, 1.2);
    centre(placed.width / 2, placed.height / 2, k);
  }

  /** The first steps at a size that can be read; all of them if they fit. */
  function home() {
    const { width, height } = free();
    const all = Math.min(width / placed.width, height / placed.height);
    if (all >= READABLE) return fit();
    const k = Math.min(1, Math.max(READABLE, (width - 40) / placed.width));
    const first = placed.nodes[nodeIds(shown)[0]];
    go(zoomIdentity.translate(width / 2 - first.x * k, 24 - (first.y - 60) * k).scale(k));
  }

  /** Moves the view so that a node is in it, at a size that can be read. */
  function reveal(id) {
    const at = placed?.nodes[id];
    const { width, height } = free();
    if (!at || !width) return;
    const t = now();
    const [x, y] = t.apply([at.x, at.y]);
    const readable = t.k >= FAR;
    const inside = x > 130 && x < width - 130 && y > 60 && y < height - 60;
    if (!readable || !inside) centre(at.x, at.y, readable ? t.k : 0.9);
  }

  async function draw() {
    const engine = state.engine;
    shown = engine;
    placed = null;
    nodes.replaceChildren();
    edges.replaceChildren();
    waiting.textContent = `Placing ${engine.steps.length.toLocaleString("en")} steps …`;
    const pairs = [...new Map(engine.edges.map(([a, b]) => [`${a} ${b}`, [a, b]])).values()];
    const script = [...document.scripts].find((x) => !x.type).textContent;
    const found = await placeLater({ nodes: nodeIds(engine), edges: pairs }, script);
    if (shown !== engine) return; // another was chosen meanwhile
    placed = found;
    waiting.textContent = "";
    edges.setAttribute("width", placed.width);
    edges.setAttribute("height", placed.height);
    drawEdges(engine, pairs);
    boxes = new Map(nodeIds(engine).map((id) => [id, nodeBox(engine, id)]));
    for (const [id, node] of boxes) put(node, placed.nodes[id], id[0] === "s" ? NODE : PORT);
    nodes.append(...boxes.values());
    arrive();
    mark();
    performance.mark("graph drawn");
    document.documentElement.dataset.ready = "graph";
  }

  /** Where one begins; also when a graph that was drawn out of sight is seen for the first time. */
  function arrive() {
    if (!placed || !box().width) return;
    map.draw(placed, state.engine);
    home();
  }

  function drawEdges(engine, pairs) {
    const said = new Set();
    const lines = pairs.map(([from, to], i) => {
      const points = placed.edges[i];
      return s("path", { d: curve(points), "data-from": from, "data-to": to, "marker-end": "url(#arrow)" });
    });
    const labels = pairs.flatMap(([from, to], i) => {
      const output = engine.next.get(from).find((e) => e.node === to).output;
      const value = engine.value(from, output);
      if (!value?.shape || said.has(`${from} ${output}`)) return [];
      said.add(`${from} ${output}`);
      const [x, y] = placed.edges[i][0];
      return s("text", { x: x + 8, y: y + 17 }, shape(value));
    });
    const arrow = s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" });
    arrow.append(s("path", { d: "M0,0.5L8,4L0,7.5z" }));
    edges.append(s("defs", {}, arrow), s("g", { class: "lines" }, lines), s("g", { class: "labels" }, labels));
  }

  function nodeBox(engine, id) {
    const node = id[0] === "s" ? stepBox(engine.node(id)) : portBox(engine, id);
    node.dataset.id = id;
    node.tabIndex = -1;
    node.addEventListener("click", () => set({ node: id }));
    node.addEventListener("focus", () => focusOn(id));
    return node;
  }

  function focusOn(id) {
    boxes.get(current)?.setAttribute("tabindex", "-1");
    current = id;
    boxes.get(id).tabIndex = 0;
    view.scrollTo(0, 0); // browsers scroll to what has the focus; here the zoom does
    reveal(id);
  }

  function focus(id) {
    boxes.get(id)?.focus({ preventScroll: true });
  }

  /** What is chosen, its neighbours, and what a search has found. */
  function mark() {
    const engine = state.engine;
    const found = state.query ? new Set(search(engine, state.query).map((step) => step.id)) : null;
    const near = new Set([...(engine.next.get(state.node) ?? []), ...(engine.before.get(state.node) ?? [])].map((e) => e.node));
    for (const [id, node] of boxes) {
      node.classList.toggle("chosen", id === state.node);
      node.classList.toggle("beside", near.has(id));
      node.classList.toggle("dim", found !== null && !found.has(id));
      node.setAttribute("aria-pressed", id === state.node);
    }
    for (const path of edges.querySelectorAll(".lines path")) {
      path.classList.toggle("in", path.dataset.to === state.node);
      path.classList.toggle("out", path.dataset.from === state.node);
    }
    const start = boxes.has(state.node) ? state.node : current && boxes.has(current) ? current : boxes.keys().next().value;
    if (start && boxes.get(start).tabIndex !== 0) {
      boxes.get(current)?.setAttribute("tabindex", "-1");
      current = start;
      boxes.get(start).tabIndex = 0;
    }
    const first = found && !found.has(state.node) ? found.values().next().value : null;
    requestAnimationFrame(() => reveal(first ?? state.node)); // when the panel is there
    map.mark(found, state.node);
  }

  function neighbour(key) {
    const engine = state.engine;
    if (key === "ArrowDown") return engine.next.get(current)?.[0].node;
    if (key === "ArrowUp") return engine.before.get(current)?.[0].node;
    const here = placed.nodes[current];
    const way = key === "ArrowRight" ? 1 : -1;
    return [...boxes.keys()]
      .filter((id) => Math.abs(placed.nodes[id].y - here.y) < NODE.height && (placed.nodes[id].x - here.x) * way > 1)
      .sort((a, b) => Math.abs(placed.nodes[a].x - here.x) - Math.abs(placed.nodes[b].x - here.x))[0];
  }

  view.addEventListener("keydown", (event) => {
    if (!placed || event.ctrlKey || event.metaKey || event.altKey) return;
    const ids = [...boxes.keys()];
    const keys = {
      Home: () => focus(ids[0]),
      End: () => focus(ids.at(-1)),
      "+": () => scale(1.4),
      "=": () => scale(1.4),
      "-": () => scale(1 / 1.4),
      0: home,
      f: fit,
    };
    if (event.key.startsWith("Arrow")) focus(neighbour(event.key));
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  view.addEventListener("scroll", () => view.scrollTo(0, 0));

  let width = 0;
  new ResizeObserver(() => {
    const appears = !width && box().width;
    width = box().width;
    if (!placed || !width) return;
    if (appears) arrive();
    else map.look(seen(now()));
    if (appears) reveal(state.node);
  }).observe(view);

  watch((changed) => {
    if (changed.includes("engine")) draw();
    else if (placed && (changed.includes("node") || changed.includes("query"))) mark();
  });
  return { root, draw, fit };
}

const nodeIds = (engine) => [
  ...engine.inputs.map((_, i) => `i${i}`),
  ...engine.steps.map((step) => step.id),
  ...engine.outputs.map((_, i) => `o${i}`),
];

function put(node, at, { width, height }) {
  node.style.left = `${at.x - width / 2}px`;
  node.style.top = `${at.y - height / 2}px`;
  node.style.width = `${width}px`;
  node.style.height = `${height}px`;
}

function stepBox(step) {
  const time = step.source === "unknown" ? "no time" : `${duration(step.ns)} · ${percent(step.share ?? 0)}`;
  const about = [`step ${step.i}: ${step.title}`, `layers ${step.where}`, `${step.template}, ${time}`];
  if (step.reason) about.push(step.reason);
  if (step.versus) about.push(step.versus.said);
  const node = h(
    "button",
    { type: "button", class: `node${isBad(step) ? " bad" : ""}`, "aria-label": about.join("; "), ...pointed(() => about) },
    h("span", { class: "op" }, h("b", {}, step.title), h("i", {}, `${step.i}`)),
    h("span", { class: "layer" }, step.short),
    h("span", { class: "say" }, h("em", {}, step.template), h("span", {}, time, versus(step))),
    h("span", { class: "share", style: { width: `${Math.min(100 * (step.share ?? 0) * 4, 100)}%` } }),
  );
  node.style.setProperty("--kernel", colourOf(step));
  return node;
}

/** How the other engine does the same layers. */
const versus = (step) => step.versus && step.versus.what !== "same" && h("b", { class: step.versus.what }, ` ${step.versus.sign}`);

function portBox(engine, id) {
  const port = engine.node(id);
  const what = id[0] === "i" ? "input" : "output";
  const said = `${what} ${port.name}: ${port.type}, ${size(port.bytes)}`;
  return h(
    "button",
    { type: "button", class: "node port", "aria-label": said, ...pointed(() => [said]) },
    h("b", {}, tail(port.name, 26)),
    h("span", { class: "layer" }, `${what} · ${port.type}`),
  );
}
