// The run as a strip: every step in its order, as wide as its share of the time.
import { h, pointed } from "./dom.js";
import { duration, percent } from "./format.js";
import { colourOf, set, source, state, watch } from "./model.js";

export function strip() {
  const bar = h("div", { class: "bar" });
  const root = h("div", { class: "strip", "aria-hidden": "true" }, bar);
  let parts = [];

  function draw() {
    const timed = state.engine.steps.filter((step) => step.share);
    parts = timed.map((step) => {
      const lines = () => [
        `${step.i} ${step.title}`,
        step.where,
        `${duration(step.ns)}, ${percent(step.share)}, ${source(step.source)}`,
      ];
      const part = h("div", { onclick: () => set({ node: step.id }), ...pointed(lines) });
      Object.assign(part.style, { flexGrow: `${step.share}`, background: colourOf(step) });
      return { part, step };
    });
    bar.replaceChildren(...parts.map((p) => p.part));
    root.hidden = !timed.length;
    mark();
  }

  function mark() {
    for (const { part, step } of parts) part.classList.toggle("chosen", step.id === state.node);
  }
  watch((changed) => (changed.includes("engine") ? draw() : mark()));
  draw();
  return root;
}
