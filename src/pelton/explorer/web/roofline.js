// The roofline (Williams et al. 2009): every step by its arithmetic intensity and its speed, under what was measured.
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLog } from "d3-scale";
import { select } from "d3-selection";
import { h, pointed, s } from "./dom.js";
import { count, duration, percent, plain, rate, work } from "./format.js";
import { bound, colourOf, peak, search, set, state, watch } from "./model.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [1040, 560, 76, 52, 20, 20];
const AREA = 26000; // square pixels that all dots have together
const SMALLEST = 3; // radius in pixels

export function rooflineView() {
  const root = h("div", { class: "page" });
  const draw = () => root.replaceChildren(plot(state.engine));
  watch((changed) => state.tab === "roofline" && draw(changed));
  return { root, draw };
}

function plot(engine) {
  let drawn = engine.steps.filter((x) => x.flops > 0 && x.bytes > 0 && x.ns > 0).sort((a, b) => b.ns - a.ns);
  const timed = drawn.some((x) => x.source !== "estimated");
  if (timed) drawn = drawn.filter((x) => x.source !== "estimated");
  if (!drawn.length) return h("section", {}, h("h2", {}, "Roofline"), h("p", {}, "No step has operations that are counted."));
  const of = timed ? (x) => x.flops / x.ns : (x) => x.flops / 1e9;
  const roof = timed && peak;
  const left = engine.steps.length - drawn.length;
  return h(
    "section",
    {},
    h("h2", {}, timed ? "Roofline" : "Arithmetic intensity"),
    h("p", {}, intro(timed, roof), " A dot's area is its share of the time.", left > 0 && ` Without ${count(left, "step")} that no operations are counted of, such as copies${timed && engine.sources.estimated ? ", or whose time is estimated" : ""}.`),
    h("div", { class: "figure" }, chart(drawn, of, timed, roof, engine)),
    h("p", { class: "quiet" }, "The same numbers are in the table of steps."),
  );
}

function intro(timed, roof) {
  if (roof) return `Measured on this machine: ${rate(peak.gflops)} GFLOP/s and ${rate(peak.gbytes)} GB/s. A step cannot be above the line, but for what its caches hold and for algorithms that need fewer operations (Winograd).`;
  if (timed) return "There is no roof: pelton view --time measures the machine's peak, of CPUs, with the compiler of pip install 'pelton[build]'.";
  return "Times are estimated, so there are no speeds to show: steps are at their operations. pelton view --time measures speeds, and the roof.";
}

function chart(drawn, of, timed, roof, engine) {
  const intensities = drawn.map((x) => x.flops / x.bytes);
  const values = drawn.map(of);
  const ridge = roof ? peak.gflops / peak.gbytes : intensities[0];
  const x = scaleLog([Math.min(...intensities, ridge / 6) / 1.5, Math.max(...intensities, ridge * 6) * 1.5], [LEFT, WIDTH - RIGHT]);
  const y = scaleLog([Math.min(...values, roof ? peak.gflops / 40 : Infinity) / 1.6, Math.max(...values, roof ? peak.gflops : 0) * 1.7], [HEIGHT - BOTTOM, TOP]);
  const found = state.query ? new Set(search(engine, state.query)) : null;
  const dots = drawn.map((step) => {
    const lines = () => about(step, timed);
    return s("circle", {
      cx: x(step.flops / step.bytes),
      cy: y(of(step)),
      r: Math.max(SMALLEST, Math.sqrt(((step.share ?? 0) * AREA) / Math.PI)),
      fill: colourOf(step),
      class: `${step.id === state.node ? "chosen" : ""}${found && !found.has(step) ? " dim" : ""}`,
      onclick: () => set({ node: step.id }),
      ...pointed(lines),
    });
  });
  const svg = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart roofline", role: "img", "aria-label": `${drawn.length} steps by operations per byte and ${timed ? "speed" : "operations"}` },
    s("g", { class: "x grid" }),
    s("g", { class: "y grid" }),
    roof ? roofOf(x, y) : null,
    s("g", { class: "dots" }, dots),
    s("text", { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8 }, "operations per byte read or written"),
    s("text", { class: "axis", transform: `translate(16 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)` }, timed ? "GFLOP/s" : "GFLOP in a run"),
  );
  const ticks = (d) => (/^[125]/.test(d.toExponential()) ? rateOf(d) : "");
  select(svg.querySelector(".x")).attr("transform", `translate(0,${HEIGHT - BOTTOM})`).call(axisBottom(x).tickFormat(ticks).tickSize(-(HEIGHT - BOTTOM - TOP)).tickPadding(8));
  select(svg.querySelector(".y")).attr("transform", `translate(${LEFT},0)`).call(axisLeft(y).tickFormat(ticks).tickSize(-(WIDTH - RIGHT - LEFT)).tickPadding(8));
  return svg;
}

const rateOf = (d) => `${+d.toPrecision(2)}`;

function roofOf(x, y) {
  const ridge = peak.gflops / peak.gbytes;
  const [low, high] = x.domain();
  const start = Math.max(low, y.domain()[0] / peak.gbytes);
  const points = [[x(start), y(start * peak.gbytes)], [x(ridge), y(peak.gflops)], [x(high), y(peak.gflops)]];
  const angle = (Math.atan2(points[1][1] - points[0][1], points[1][0] - points[0][0]) * 180) / Math.PI;
  const middle = [(points[0][0] + points[1][0]) / 2, (points[0][1] + points[1][1]) / 2 - 8];
  return s(
    "g",
    { class: "roof" },
    s("path", { class: "under", d: `M${points.join("L")}V${y.range()[0]}H${points[0][0]}Z` }),
    s("path", { d: `M${points.join("L")}` }),
    s("text", { transform: `translate(${middle}) rotate(${angle})`, "text-anchor": "middle" }, `${rate(peak.gbytes)} GB/s`),
    s("text", { x: points[2][0] - 4, y: points[2][1] - 8, "text-anchor": "end" }, `${rate(peak.gflops)} GFLOP/s`),
  );
}

function about(step, timed) {
  const found = bound(step);
  return [
    `${step.i} ${step.title}`,
    step.where,
    `${step.template}, ${duration(step.ns)}, ${percent(step.share ?? 0)} of the time`,
    `${timed ? `${rate(step.flops / step.ns)} GFLOP/s` : work(step.flops)}, ${plain(step.flops / step.bytes)} operations per byte`,
    ...(found && found.by !== "neither" ? [`bound by ${found.by === "compute" ? "arithmetic" : "memory"}, ${percent(found.reached)} of that reached`] : []),
  ];
}
