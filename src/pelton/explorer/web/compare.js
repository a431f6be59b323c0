// Two engines side by side: rows of steps that come from the same layers, with the difference of their times.
import { h, pointed } from "./dom.js";
import { count, duration, percent, signed } from "./format.js";
import { colourOf, engines, isBad, MARKED, rows, set, shared, source, state, watch } from "./model.js";

export function compareView() {
  const [left, right] = engines;
  const most = Math.max(...rows.map((row) => Math.abs(row.difference)), 1);
  const list = h("ol", { class: "rows" });
  const order = h("select", { "aria-label": "Order of rows" }, [["run", "as they run"], ["worst", "slower first"], ["best", "faster first"], ["size", "largest difference first"]].map(([value, name]) => h("option", { value }, name)));
  const only = h("input", { type: "checkbox" });
  const root = h("div", { class: "page compare" }, summary(rows), h("div", { class: "choose" }, h("label", {}, "Order ", order), h("label", {}, only, " differences alone")), columns(), list);

  function draw() {
    const by = { run: (a, b) => a.i - b.i, worst: (a, b) => b.difference - a.difference, best: (a, b) => a.difference - b.difference, size: (a, b) => Math.abs(b.difference) - Math.abs(a.difference) };
    const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((w) => row.sides.flat().some((step) => step.text.includes(w)));
    const shown = rows.filter((row) => fits(row) && (!only.checked || row.what !== "same")).sort(by[order.value]);
    list.replaceChildren(...shown.map((row) => item(row, most)));
  }
  order.addEventListener("change", draw);
  only.addEventListener("change", draw);
  watch((changed) => {
    if (state.tab !== "compare") return;
    if (changed.includes("query")) draw();
    if (changed.includes("node") || changed.includes("engine")) for (const b of list.querySelectorAll("[data-step]")) b.classList.toggle("chosen", b.dataset.step === `${state.engine.number} ${state.node}`);
  });

  function summary() {
    const total = right.total - left.total;
    const of = (what) => rows.filter((row) => row.what === what);
    const part = (name, found) => h("li", { class: name.replace(" ", "-") }, h("b", {}, `${found.length}`), ` ${name}`, h("span", { class: "number" }, signed(found.reduce((n, row) => n + row.difference, 0))));
    const ratio = left.total / right.total;
    const factor = ratio >= 1 ? `${ratio.toFixed(2)} times as fast` : `${(1 / ratio).toFixed(2)} times as slow`;
    const both = `${right.file} takes ${duration(right.total)}, ${left.file} ${duration(left.total)}`;
    return h(
      "section",
      { class: "sum" },
      h("h2", {}, "Side by side"),
      shared
        ? h("p", { class: "big" }, h("b", { class: total > 0 ? "slow" : "fast" }, signed(total)), h("span", {}, `${both}: ${factor}${shared === "estimated" ? ", by estimates" : ""}`))
        : h("p", { class: "big" }, h("b", {}, "not comparable"), h("span", {}, `${unlike()} Which is faster cannot be said before pelton view --time has measured both.`)),
      h("ul", { class: "counts" }, ["faster", "slower", "same", "only left", "only right", "unlike"].filter((what) => what !== "unlike" || of(what).length).map((what) => part(what, of(what)))),
      h("p", { class: "quiet" }, `Rows are steps that come from the same layers of the model. Faster and slower are of the right one, by more than ${percent(MARKED)}. ${caution()}`),
    );
  }
  return { root, draw };
}

/** What one has to know of the times before one believes in their difference. */
function caution() {
  const names = [...new Set(engines.flatMap((e) => Object.keys(e.sources)))];
  const unmeasured = names.filter((n) => n !== "measured");
  if (!unmeasured.length) return "All times were measured here, one engine after the other.";
  return `Times are ${unmeasured.map(source).join("; or ")}: pelton view --time measures both.`;
}

/** Whose times are of which kind. */
const unlike = () => engines.map((e) => `Times of ${e.file} are ${Object.entries(e.sources).map(([name, n]) => `${name} (${count(n, "step")})`).join(", ")}.`).join(" ");

const columns = () => h("div", { class: "row heads", "aria-hidden": "true" }, h("span", {}, engines[0].file), h("span", {}, "difference"), h("span", {}, engines[1].file));

function item(row, most) {
  const width = `${(50 * Math.abs(row.difference)) / most}%`;
  const bar = h("span", { class: `bar ${row.difference > 0 ? "slow" : "fast"}`, style: { width, [row.difference > 0 ? "left" : "right"]: "50%" } });
  const ratio = row.times[0] && row.times[1] ? ` ${row.difference > 0 ? "+" : "−"}${percent(Math.abs(row.times[1] / row.times[0] - 1))}` : "";
  const middle = h("div", { class: "middle" }, h("b", {}, row.what === "same" ? "same" : row.what === "unlike" ? "–" : signed(row.difference)), h("small", {}, row.what === "same" ? signed(row.difference) : row.what === "unlike" ? "times of two kinds" : row.what.startsWith("only") ? row.what : `${row.what}${ratio}`), h("span", { class: "track" }, bar));
  return h("li", { class: `row ${row.what.replace(" ", "-")}`, ...pointed(() => [count(row.layers.length, "layer"), ...row.layers.slice(0, 12)]) }, side(row, 0), middle, side(row, 1));
}

function side(row, number) {
  const steps = row.sides[number];
  if (!steps.length) return h("div", { class: "side none" }, "no step of its own");
  return h(
    "div",
    { class: "side" },
    steps.map((step) =>
      h(
        "button",
        { type: "button", class: isBad(step) ? "bad" : "", "data-step": `${number} ${step.id}`, style: { "--kernel": colourOf(step) }, onclick: () => set({ engine: engines[number], node: step.id }) },
        h("span", { class: "op" }, h("b", {}, step.title), h("i", {}, step.source === "unknown" ? "–" : duration(step.ns))),
        h("span", { class: "layer" }, step.short),
        h("span", { class: "layer" }, h("code", {}, step.tactic.split("@")[0])),
      ),
    ),
  );
}
