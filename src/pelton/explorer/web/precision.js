// Precision: the types that steps write, and of each layer why it has its type and what error was found.
import { h, pointed } from "./dom.js";
import { count, duration, percent, size } from "./format.js";
import { set, state, watch } from "./model.js";

const TYPES = { f64: "#9c6b4e", f32: "#4269d0", tf32: "#97bbf5", f16: "#6cc5b0", bf16: "#3ca951", i8: "#efb118", u8: "#efb118", f8: "#a463f2" };
const SAID = {
  sqnr_db: (x) => `SQNR ${x.toFixed(1)} dB`,
  agreement: (x) => `${(100 * x).toFixed(1)} % of the answers as without INT8`,
  drop: (x) => `${(100 * x).toFixed(1)} % of the samples with another answer`,
};
const colourOf = (type) => TYPES[type] ?? (type.startsWith("f8") ? TYPES.f8 : "#9498a0");

export function precisionView() {
  const root = h("div", { class: "page" });
  const draw = () => root.replaceChildren(...[types(state.engine), layers(state.engine), weights(state.engine), errors(state.engine)].filter(Boolean));
  watch((changed) => state.tab === "precision" && changed.includes("engine") && draw());
  return { root, draw };
}

function types(engine) {
  const bytes = new Map();
  for (const t of engine.steps.flatMap((step) => step.outputs ?? [])) bytes.set(t.dtype, (bytes.get(t.dtype) ?? 0) + t.bytes);
  const all = [...bytes.values()].reduce((a, b) => a + b, 0) || 1;
  const key = [...bytes].sort((a, b) => b[1] - a[1]).map(([type, n]) => h("li", {}, h("i", { class: "dot", style: { background: colourOf(type) } }), h("code", {}, type), ` ${size(n)}, ${percent(n / all)}`));
  const cells = engine.steps.map((step) => {
    const type = step.outputs?.[0]?.dtype ?? "none";
    const lines = () => [`${step.i} ${step.title}`, step.where, `writes ${type}`];
    return h("div", { onclick: () => set({ node: step.id }), style: { background: colourOf(type) }, ...pointed(lines) });
  });
  return h(
    "section",
    {},
    h("h2", {}, "Precision"),
    h("p", {}, `The engine was built for ${engine.precision}${engine.strict ? ", strict" : ""}. What its ${count(engine.steps.length, "step")} write, in their order:`),
    h("div", { class: "cells", "aria-hidden": "true" }, cells),
    h("ul", { class: "key" }, key),
  );
}

/** Of the columns, the last `numbers` have numbers. */
const head = (names, numbers) =>
  h("thead", {}, h("tr", {}, names.map((name, i) => h("th", { scope: "col", class: i < names.length - numbers ? "" : "number" }, name))));
const micros = (value) => (value === undefined ? "–" : duration(1e3 * value));

function layers(engine) {
  const of = engine.int8;
  if (!of) return null;
  const { accuracy, rest } = of;
  const kept = of.layers.filter((row) => row.precision !== "int8");
  const said = Object.entries(accuracy).map(([name, value]) => SAID[name]?.(value) ?? `${name.replaceAll("_", " ")} ${+value.toPrecision(4)}`);
  const row = (x) =>
    h("tr", { class: x.precision === "int8" ? "" : "kept" }, h("th", { scope: "row" }, x.layer), [x.precision, x.reason].map((v) => h("td", {}, v)), [micros(x.us[rest]), micros(x.us.int8), x.macs === null ? "–" : (x.macs / 1e6).toFixed(2)].map((v) => h("td", { class: "number" }, v)));
  return h(
    "section",
    {},
    h("h3", {}, "Layers in INT8, and those that are not"),
    h("p", {}, `${of.layers.length - kept.length} of ${count(of.layers.length, "layer")} compute in INT8, ${kept.length} in ${rest}.`, said.length ? ` Accuracy: ${said.join(", ")}.` : ""),
    h("table", { class: "data" }, head(["layer", "precision", "reason", rest, "int8", "MMAC"], 3), h("tbody", {}, of.layers.map(row))),
  );
}

function weights(engine) {
  const found = engine.steps.filter((step) => step.weights);
  if (!found.length) return null;
  const row = (step) =>
    h("tr", {}, h("th", { scope: "row" }, step.where), h("td", {}, step.weights.type), h("td", {}, step.weights.reason), [step.weights.us.fp32, step.weights.us.half].map((us) => h("td", { class: "number" }, micros(us))));
  return h("section", {}, h("h3", {}, "Weights that may be in half precision"), h("table", { class: "data" }, head(["layers", "weights", "reason", "fp32", "half"], 2), h("tbody", {}, found.map(row))));
}

function errors(engine) {
  const found = engine.steps.filter((step) => typeof step.error === "number").sort((a, b) => b.error - a.error);
  if (!found.length) return h("p", { class: "quiet" }, "The engine records no errors of its steps: pelton build --check finds them, pelton compare those of outputs.");
  const row = (step) => h("tr", { onclick: () => set({ node: step.id }) }, h("th", { scope: "row" }, `${step.i} ${step.title}`), h("td", {}, step.where), h("td", { class: "number" }, step.error.toExponential(1)));
  return h("section", {}, h("h3", {}, "Errors when the build checked them"), h("p", {}, "Relative to the largest value that a step writes."), h("table", { class: "data" }, head(["step", "layers", "error"], 1), h("tbody", {}, found.map(row))));
}
