// The data of the page with what all views need of it: colours, neighbours, search, and what is chosen.
import { duration, ops, tactic, tail } from "./format.js";

// Observable's categorical colours, as in `pelton bench --plot`; the last stands for all other kernels.
const COLOURS = ["#4269d0", "#efb118", "#6cc5b0", "#a463f2", "#3ca951", "#ff8ab7", "#97bbf5", "#9c6b4e", "#d6a06f", "#9498a0"];
export const BAD = "#e5484d";
const SHORT = 1e3; // nanoseconds, about what it takes to start a step on all threads; the same as in cli/roofline.py

const inPage = typeof document !== "undefined"; // not in the worker that places graphs
export const data = inPage ? JSON.parse(document.getElementById("data").textContent) : { engines: [] };
export const peak = data.peak;
export const isBad = (step) => step.kind === "copy" || step.kind === "host";

/** What bounds a step on the measured machine, and the share of that bound that it reaches; null without a peak. */
export function bound(step) {
  if (!peak || step.flops === null || !step.bytes || !step.ns) return null;
  const [compute, memory] = [step.flops / peak.gflops, step.bytes / peak.gbytes];
  const least = Math.max(compute, memory);
  return { by: least < SHORT ? "neither" : memory > compute ? "memory" : "compute", reached: least / step.ns };
}

class Engine {
  constructor(given, number) {
    Object.assign(this, given);
    this.number = number;
    this.file = this.label.split("/").at(-1);
    this.steps.forEach((step, i) => this.#complete(step, i));
    this.layers = new Set(this.steps.flatMap((s) => s.layers)).size;
    this.flops = this.steps.reduce((sum, s) => sum + (s.flops ?? 0), 0);
    this.moved = this.steps.reduce((sum, s) => sum + (s.bytes ?? 0), 0);
    this.next = new Map();
    this.before = new Map();
    for (const [from, to, output] of this.edges) {
      this.next.set(from, [...(this.next.get(from) ?? []), { node: to, output }]);
      this.before.set(to, [...(this.before.get(to) ?? []), { node: from, output }]);
    }
    this.kernels = this.#kernels();
  }

  #complete(step, i) {
    Object.assign(step, { i, id: `s${i}`, title: ops(step.op || step.name), ...tactic(step.tactic) });
    if (step.kind === "control" || step.kind === "host") step.template = step.kind;
    const writes = (step.outputs ?? []).map((t) => t.name).filter(Boolean).join(", ");
    step.where = step.layers.join(", ") || writes || step.name;
    step.short = step.layers.length > 1 ? `${tail(step.layers[0], 32)} +${step.layers.length - 1}` : tail(step.where, 36);
    step.text = [step.name, step.op, step.tactic, ...step.layers, ...(step.outputs ?? []).map((t) => t.name)]
      .join("\n")
      .toLowerCase();
  }

  /** Kernels by their share of the time, with a colour each. */
  #kernels() {
    const found = new Map();
    for (const step of this.steps) {
      const one = found.get(step.template) ?? { name: step.template, ns: 0, count: 0 };
      found.set(step.template, { ...one, ns: one.ns + (step.share === null ? 0 : step.ns), count: one.count + 1 });
    }
    return [...found.values()].sort((a, b) => b.ns - a.ns);
  }

  node(id) {
    if (id[0] === "s") return this.steps[+id.slice(1)];
    return (id[0] === "i" ? this.inputs : this.outputs)[+id.slice(1)];
  }

  /** What an edge carries. */
  value(from, output) {
    return from[0] === "s" ? this.steps[+from.slice(1)].outputs?.[output] : this.node(from);
  }
}

export const engines = data.engines.map((given, i) => new Engine(given, i));

// One colour for a kernel in both engines.
const ranked = new Map();
for (const kernel of engines.flatMap((e) => e.kernels)) ranked.set(kernel.name, (ranked.get(kernel.name) ?? 0) + kernel.ns);
const order = [...ranked].sort((a, b) => b[1] - a[1]).map(([name]) => name).filter((n) => n !== "copy" && n !== "host");
export const colour = (kernel) => {
  if (kernel === "host" || kernel === "copy") return BAD;
  return COLOURS[Math.min(Math.max(order.indexOf(kernel), 0), COLOURS.length - 1)];
};
export const colourOf = (step) => (isBad(step) ? BAD : colour(step.template));

export const MARKED = 0.05; // a difference of less is called the same
/** Where the times of steps come from, if all have one source; null where they are unlike, which cannot be compared. */
function oneSource(steps) {
  const names = new Set(steps.map((step) => step.source));
  return names.size === 1 && !names.has("unknown") ? [...names][0] : null;
}

/** The source that the totals of two engines share; null where they are unlike. */
export const shared = engines.length === 2 && engines[0].timed === engines[1].timed ? engines[0].timed : null;

const sum = (steps) => steps.reduce((total, step) => total + (step.share === null ? 0 : step.ns), 0);

/** Of two engines: the steps of each that come from the same layers, and what the right one makes of it. */
export const rows = (data.rows ?? []).map((row, i) => {
  const sides = [row.left.map((k) => engines[0].steps[k]), row.right.map((k) => engines[1].steps[k])];
  const times = sides.map(sum);
  const alike = sides.some((steps) => !steps.length) || oneSource(sides.flat()) !== null;
  const difference = alike ? times[1] - times[0] : 0;
  let what = "same";
  if (!sides[0].length) what = "only right";
  else if (!sides[1].length) what = "only left";
  else if (!alike) what = "unlike";
  else if (Math.abs(difference) > MARKED * Math.max(...times)) what = difference > 0 ? "slower" : "faster";
  sides.forEach((steps, side) => steps.forEach((step) => (step.versus = versus(what, side, difference))));
  return { i, layers: row.layers, sides, times, difference, what };
});

/** The same, of one side's steps. */
function versus(what, side, difference) {
  const own = side ? difference : -difference;
  if (what.startsWith("only")) return { what: "same", sign: "", said: "the other engine has no such step" };
  if (what === "unlike") return { what: "same", sign: "", said: "cannot be said: the two times are of different kinds" };
  if (what === "same") return { what, sign: "", said: "as fast as in the other engine" };
  const slow = own > 0;
  return { what: slow ? "slower" : "faster", sign: slow ? "▲" : "▼", said: `${duration(Math.abs(own))} ${slow ? "slower" : "faster"} than in the other engine` };
}

/** Steps and ports that have all words of a query in their layers, ops, tactic or values. */
export function search(engine, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  return engine.steps.filter((step) => words.every((w) => step.text.includes(w) || `#${step.i}` === w));
}

export const state = { engine: engines[0], node: null, query: "", tab: data.rows ? "compare" : "graph" };
const listeners = [];

/** Calls a function at every change, with the names of what changed. */
export const watch = (listener) => listeners.push(listener);

export function set(change) {
  const changed = Object.keys(change).filter((k) => state[k] !== change[k]);
  if (!changed.length) return;
  Object.assign(state, change);
  if (changed.includes("engine") && !("node" in change)) [state.node, changed[changed.length]] = [null, "node"];
  listeners.forEach((listener) => listener(changed));
}

const SOURCES = {
  measured: "measured here, now",
  tuned: "as timed when the engine was tuned",
  estimated: "estimated from operations and bytes, not measured",
  unknown: "not known",
};
export const source = (name) => SOURCES[name] ?? name;

/** Where the times of an engine come from, in a word and in a sentence. */
export function sourceOf(engine) {
  const names = Object.keys(engine.sources);
  if (names.length === 1) return { word: names[0], said: source(names[0]) };
  const said = Object.entries(engine.sources).map(([name, n]) => `${n} ${source(name)}`);
  return { word: names.includes("tuned") ? "partly tuned" : "partly known", said: said.join(", ") };
}
