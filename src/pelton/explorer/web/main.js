// Puts the page together: header, tabs, search, theme and keys. In a worker, the same script places graphs.
import { compareView } from "./compare.js";
import { sampleView } from "./sample.js";
import { h, iconButton } from "./dom.js";
import { count, duration, percent, rate, size, work } from "./format.js";
import { graphView } from "./graph.js";
import { memoryView } from "./memory.js";
import { data, engines, isBad, peak, search, set, sourceOf, state, watch } from "./model.js";
import { panel } from "./panel.js";
import { precisionView } from "./precision.js";
import { rooflineView } from "./roofline.js";
import { strip } from "./strip.js";
import { tableView } from "./table.js";

const KEYS = [
  ["/", "search"],
  ["Enter, Shift Enter", "in the search: the next, or the one before"],
  ["arrows", "in the graph: along the edges, and to neighbours"],
  ["Enter", "in the graph: choose a step"],
  ["[ and ]", "the step before, and after"],
  ["Escape", "close the panel, empty the search"],
  ["+ and −", "zoom the graph"],
  ["F and 0", "fit the graph; readable size"],
  ["1 to 6", "the tabs"],
];

function card(name, value, more, tone = "") {
  return h("div", { class: `card ${tone}` }, h("dt", {}, name), h("dd", {}, h("b", {}, value), more && h("small", {}, more)));
}

function cards() {
  const e = state.engine;
  const time = sourceOf(e);
  const bad = e.steps.filter(isBad);
  const speed = e.sources.estimated ? "" : `${rate(e.flops / (e.total || 1))} GFLOP/s`;
  const precision = [...new Set(e.steps.flatMap((s) => (s.outputs ?? []).map((t) => t.dtype)))].slice(0, 3).join(", ");
  const unknown = e.sources.unknown ? `, ${count(e.sources.unknown, "step")} without` : "";
  return [
    card("time in steps", e.total ? duration(e.total) : "–", h("span", { class: `badge ${time.word.replace(" ", "-")}`, title: time.said }, time.word + unknown)),
    card("steps", `${e.steps.length}`, `of ${count(e.layers, "layer")}`),
    card("operations", work(e.flops), speed),
    card("arena", size(e.arena), `weights ${size(e.constants)}`),
    card("precision", e.precision, precision),
    card("copies and host steps", `${bad.length}`, bad.length ? `${percent(bad.reduce((n, x) => n + x.ns, 0) / (e.total || 1))} of the time` : "none", bad.length ? "bad" : ""),
    card("made for", e.target.isa ?? e.target.arch ?? "any", e.gpu || e.target.cpu || ""),
  ];
}

function header() {
  const facts = h("dl", { class: "cards" });
  const title = h("h1", {});
  const drawFacts = () => {
    title.textContent = state.engine.file;
    title.title = state.engine.label;
    facts.replaceChildren(...cards());
  };
  watch((changed) => changed.includes("engine") && drawFacts());
  drawFacts();
  const top = h("div", { class: "top" }, h("span", { class: "brand", "aria-hidden": "true" }, "Pelton"), title, engines.length > 1 && switcher(), searchBox(), themeButton(), helpButton());
  return h("header", {}, top, facts, strip());
}

function switcher() {
  const buttons = engines.map((engine) => h("button", { type: "button", title: engine.label, onclick: () => set({ engine }) }, h("b", {}, "AB"[engine.number]), ` ${engine.file}`));
  const mark = () => buttons.forEach((b, i) => b.setAttribute("aria-pressed", engines[i] === state.engine));
  watch(mark);
  mark();
  return h("div", { class: "switch", role: "group", "aria-label": "Engine" }, buttons);
}

function searchBox() {
  const said = h("output", { class: "found", for: "search" });
  const input = h("input", { id: "search", type: "search", placeholder: "Search layers, ops, tactics", "aria-label": "Search layers, ops, tactics", autocomplete: "off", spellcheck: "false" });
  const go = (by) => {
    const found = search(state.engine, state.query);
    if (!found.length) return;
    const at = found.findIndex((step) => step.id === state.node);
    const next = at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length;
    set({ node: found[next].id });
  };
  const tell = () => {
    const found = search(state.engine, state.query);
    const at = found.findIndex((step) => step.id === state.node);
    said.textContent = state.query ? `${at >= 0 ? `${at + 1} of ` : ""}${count(found.length, "step")}` : "";
  };
  input.addEventListener("input", () => set({ query: input.value.trim() }));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    if (event.key !== "Escape") return;
    event.stopPropagation();
    if (input.value) [input.value] = [""];
    else input.blur();
    set({ query: "" });
  });
  watch(tell);
  return h("div", { class: "search", role: "search" }, input, said, h("kbd", { "aria-hidden": "true" }, "/"));
}

function themeButton() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = iconButton("Dark", "◐", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    button.setAttribute("aria-pressed", dark());
  });
  button.setAttribute("aria-pressed", dark());
  button.id = "theme";
  return button;
}

function helpButton() {
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const keys = h("dl", {}, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]));
  const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"), keys, h("p", { class: "quiet" }, `Written by pelton ${data.version}. The page fetches nothing.`), close);
  document.body.append(dialog);
  return iconButton("Keys and help (?)", "?", () => dialog.showModal());
}

function tabs(views) {
  const names = Object.keys(views);
  const buttons = names.map((name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, onclick: () => set({ tab: name }) }, views[name].title));
  const panels = names.map((name) => h("div", { role: "tabpanel", id: `view-${name}`, "aria-labelledby": `tab-${name}` }, views[name].root));
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, buttons);
  const drawn = new Set(["graph"]);
  list.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    set({ tab: names[(names.indexOf(state.tab) + way + names.length) % names.length] });
    buttons[names.indexOf(state.tab)].focus();
  });
  const show = () => {
    names.forEach((name, i) => {
      buttons[i].setAttribute("aria-selected", name === state.tab);
      buttons[i].tabIndex = name === state.tab ? 0 : -1;
      panels[i].classList.toggle("shown", name === state.tab);
    });
    if (state.tab !== "graph") views[state.tab].draw();
    drawn.add(state.tab);
  };
  watch((changed) => changed.includes("tab") && show());
  return { list, panels, show, names };
}

export function start() {
  const views = {
    graph: { title: "Graph", ...graphView() },
    steps: { title: "Steps", ...tableView() },
    memory: { title: "Memory", ...memoryView() },
    roofline: { title: peak ? "Roofline" : "Intensity", ...rooflineView() },
    precision: { title: "Precision", ...precisionView() },
  };
  if (data.rows) views.compare = { title: "Side by side", ...compareView() };
  if (data.sample) views.sample = { title: "Pictures", ...sampleView(data.sample) };
  const { list, panels, show, names } = tabs(views);
  const details = panel();
  const skip = h("a", { class: "skip", href: "#tab-steps", onclick: (e) => (e.preventDefault(), set({ tab: "steps" }), document.getElementById("tab-steps").focus()) }, "All steps as a table");
  document.getElementById("app").replaceChildren(skip, header(), list, h("main", {}, panels, details));
  show();
  views.graph.draw();

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches?.("input, select, textarea");
    if (event.key === "Escape") {
      if (state.node) set({ node: null });
      else set({ query: (document.getElementById("search").value = "") });
    } else if (typing) return;
    else if (event.key === "/") document.getElementById("search").focus();
    else if (event.key === "?") document.querySelector("dialog").showModal();
    else if (event.key === "[" || event.key === "]") move(event.key === "]" ? 1 : -1);
    else if (names[+event.key - 1] && !event.target.closest?.(".viewport")) set({ tab: names[+event.key - 1] });
    else return;
    event.preventDefault();
  });
}

/** To the step before or after the chosen one. */
function move(by) {
  const { engine, node } = state;
  const at = node?.[0] === "s" ? +node.slice(1) + by : 0;
  if (engine.steps[at]) set({ node: `s${at}` });
}
