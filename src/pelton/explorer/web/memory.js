// Memory over time: which buffers of the arena live at which step, and where they lie.
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { h, pointed, s } from "./dom.js";
import { count, size } from "./format.js";
import { colourOf, set, state, watch } from "./model.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [1040, 380, 84, 40, 14];

export function memoryView() {
  const root = h("div", { class: "page" });
  const draw = () => root.replaceChildren(...state.engine.memory.map((part, i) => partOf(state.engine, part, i)));
  watch((changed) => state.tab === "memory" && (changed.includes("engine") || changed.includes("node")) && draw());
  return { root, draw };
}

function partOf(engine, part, number) {
  const buffers = part.buffers.map(([id, offset, bytes, first, last, what, by]) => ({ id, offset, bytes, first, last, what, by }));
  const held = buffers.reduce((sum, b) => sum + b.bytes, 0);
  const peakAt = busiest(part, buffers);
  const title = engine.memory.length > 1 ? `Memory of part ${number}` : "Memory over a run";
  if (!buffers.length) return h("section", {}, h("h2", {}, title), h("p", {}, "No step needs memory of the arena."));
  const shared = part.arena ? `${(held / part.arena).toFixed(1)} times that, one behind the other` : "";
  return h(
    "section",
    {},
    h("h2", {}, title),
    h(
      "p",
      {},
      `${count(buffers.length, "buffer")} share an arena of `,
      h("b", {}, size(part.arena)),
      `: they would take ${size(held)}, ${shared}. Most is in use at step ${peakAt.step}: ${size(peakAt.bytes)}. `,
      `Each box is a buffer, from the step that writes it to the last that reads it, in the colour of its kernel; the line is what is in use. Inputs and outputs lie in arrays of the caller.`,
    ),
    chart(engine, part, buffers, peakAt),
    h("details", {}, h("summary", {}, "The same as a table"), tableOf(buffers)),
  );
}

function busiest(part, buffers) {
  const change = new Map();
  for (const b of buffers) {
    change.set(b.first, (change.get(b.first) ?? 0) + b.bytes);
    change.set(b.last + 1, (change.get(b.last + 1) ?? 0) - b.bytes);
  }
  const found = { step: part.first, bytes: 0, line: [] };
  let live = 0;
  for (let i = part.first; i < part.first + part.steps; i += 1) {
    live += change.get(i) ?? 0;
    found.line.push([i, live]);
    if (live > found.bytes) Object.assign(found, { step: i, bytes: live });
  }
  return found;
}

function chart(engine, part, buffers, peakAt) {
  const x = scaleLinear([part.first - 0.5, part.first + part.steps - 0.5], [LEFT, WIDTH - 12]);
  const y = scaleLinear([0, part.arena || 1], [HEIGHT - BOTTOM, TOP]);
  const boxes = buffers.map((b) => {
    const step = engine.steps[b.by];
    const lines = () => [b.what, `${size(b.bytes)} at ${b.offset.toLocaleString("en")}`, `steps ${b.first} to ${b.last}`, `written by ${b.by} ${step.title}`];
    const top = y(Math.min(b.offset + b.bytes, part.arena));
    return s("rect", {
      x: x(b.first - 0.5),
      y: top,
      width: Math.max(x(b.last + 0.5) - x(b.first - 0.5) - 0.6, 0.8),
      height: Math.max(y(b.offset) - top - 0.6, 0.8),
      rx: 1.5,
      fill: colourOf(step),
      class: state.node === step.id ? "chosen" : "",
      onclick: () => set({ node: step.id }),
      ...pointed(lines),
    });
  });
  const live = peakAt.line.map(([i, bytes], k) => `${k ? "" : `M${x(i - 0.5)},${y(bytes)}`}H${x(i + 0.5)}${k + 1 < peakAt.line.length ? `V${y(peakAt.line[k + 1][1])}` : ""}`);
  const chosen = state.node?.[0] === "s" ? +state.node.slice(1) : null;
  const inPart = chosen !== null && chosen >= part.first && chosen < part.first + part.steps;
  const svg = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": `Memory over ${part.steps} steps, at most ${size(peakAt.bytes)} at step ${peakAt.step}` },
    s("g", { class: "x" }),
    s("g", { class: "y" }),
    s("g", { class: "boxes" }, boxes),
    s("path", { class: "live", d: live.join("") }),
    inPart ? s("line", { class: "now", x1: x(chosen), x2: x(chosen), y1: TOP, y2: HEIGHT - BOTTOM }) : null,
    s("text", { x: WIDTH / 2, y: HEIGHT - 6, class: "axis" }, "step"),
    s("text", { transform: `translate(14 ${HEIGHT / 2 - 12}) rotate(-90)`, class: "axis" }, "place in the arena"),
  );
  select(svg.querySelector(".x")).attr("transform", `translate(0,${HEIGHT - BOTTOM})`).call(axisBottom(x).ticks(12).tickFormat((d) => (Number.isInteger(d) ? d : "")));
  select(svg.querySelector(".y")).attr("transform", `translate(${LEFT},0)`).call(axisLeft(y).ticks(6).tickFormat(size).tickSize(-(WIDTH - 12 - LEFT)));
  return h("div", { class: "figure" }, svg);
}

const tableOf = (buffers) =>
  h(
    "table",
    { class: "data" },
    h("thead", {}, h("tr", {}, ["holds", "bytes", "at", "from step", "to step"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, [...buffers].sort((a, b) => b.bytes - a.bytes).map((b) =>
      h("tr", {}, h("th", { scope: "row" }, b.what), [size(b.bytes), b.offset, b.first, b.last].map((v) => h("td", { class: "number" }, `${v}`))),
    )),
  );
