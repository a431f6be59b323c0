// All steps as a table: what the graph shows, for sorting, copying, and screen readers.
import { h } from "./dom.js";
import { count, duration, percent, plain, shape, size, work } from "./format.js";
import { bound, colourOf, isBad, peak, search, set, source, state, watch } from "./model.js";

const COLUMNS = [
  { name: "step", of: (x) => x.i, number: true },
  { name: "does", of: (x) => x.title },
  { name: "layers", of: (x) => x.where, say: (x) => h("span", { title: x.where }, x.where) },
  { name: "time", of: (x) => x.ns, say: (x) => (x.source === "unknown" ? "–" : duration(x.ns)), number: true },
  { name: "share", of: (x) => x.share ?? -1, say: (x) => (x.share === null || x.source === "unknown" ? "–" : percent(x.share)), number: true },
  { name: "time is", of: (x) => x.source, say: (x) => h("span", { title: source(x.source) }, x.source) },
  { name: "tactic", of: (x) => x.tactic, say: (x) => h("code", {}, x.tactic.split("@")[0]) },
  { name: "writes", of: (x) => x.outputs?.[0]?.bytes ?? 0, say: (x) => h("code", {}, (x.outputs ?? []).map(shape).join(", ")) },
  { name: "layout", of: (x) => x.outputs?.[0]?.layout ?? "", say: (x) => [...new Set((x.outputs ?? []).map((t) => t.layout))].join(", ") },
  { name: "operations", of: (x) => x.flops ?? 0, say: (x) => work(x.flops), number: true },
  { name: "bytes", of: (x) => x.bytes ?? 0, say: (x) => size(x.bytes), number: true },
  { name: "FLOP/byte", of: (x) => (x.bytes ? x.flops / x.bytes : 0), say: (x) => (x.flops && x.bytes ? plain(x.flops / x.bytes) : "–"), number: true },
  { name: "bound by", of: (x) => bound(x)?.by ?? "", roof: true },
  { name: "of it", of: (x) => bound(x)?.reached ?? 0, say: (x) => (bound(x) && bound(x).by !== "neither" ? percent(bound(x).reached) : "–"), number: true, roof: true },
  { name: "why", of: (x) => x.reason },
];

export function tableView() {
  const columns = COLUMNS.filter((c) => (!c.roof || peak) && true);
  const caption = h("caption");
  const head = h("tr");
  const body = h("tbody");
  const root = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of steps" }, h("table", { class: "data" }, caption, h("thead", {}, head), body));
  let sorted = { column: columns[0], down: false };

  const heads = columns.map((column) => {
    const sort = () => {
      sorted = { column, down: sorted.column === column ? !sorted.down : Boolean(column.number && column.name !== "step") };
      draw();
    };
    return h("th", { scope: "col", class: column.number ? "number" : "" }, h("button", { type: "button", onclick: sort }, column.name));
  });
  head.append(...heads);

  function draw() {
    const steps = state.query ? search(state.engine, state.query) : [...state.engine.steps];
    const { column, down } = sorted;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    steps.sort((a, b) => (down ? -1 : 1) * compare(column.of(a), column.of(b)) || a.i - b.i);
    caption.textContent = `${count(steps.length, "step")} of ${state.engine.file}${state.query ? ` with “${state.query}”` : ""}`;
    const order = down ? "descending" : "ascending";
    heads.forEach((th, i) => th.setAttribute("aria-sort", columns[i] === column ? order : "none"));
    body.replaceChildren(...steps.map((step) => row(step)));
  }

  function row(step) {
    const cells = columns.map((c) => {
      const said = c.say ? c.say(step) : `${c.of(step)}`;
      if (c.name !== "does") return h("td", { class: c.number ? "number" : c.name === "layers" ? "layers" : "" }, said);
      const choose = h("button", { type: "button", class: "link" }, said);
      return h("th", { scope: "row" }, h("i", { class: "dot", style: { background: colourOf(step) } }), choose);
    });
    return h("tr", { class: `${isBad(step) ? "bad" : ""}${step.id === state.node ? " chosen" : ""}`, "data-id": step.id, onclick: () => set({ node: step.id }) }, cells);
  }

  watch((changed) => {
    if (state.tab !== "steps") return;
    if (changed.includes("engine") || changed.includes("query")) draw();
    if (changed.includes("node")) for (const tr of body.children) tr.classList.toggle("chosen", tr.dataset.id === state.node);
  });
  return { root, draw };
}
