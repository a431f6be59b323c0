// The side panel: everything of the chosen step or port; without one, the engine as a whole.
import { h, iconButton } from "./dom.js";
import { count, duration, percent, plain, rate, shape, size, work } from "./format.js";
import { bound, colour, colourOf, isBad, peak, set, source, state, watch } from "./model.js";

const TIMED = 8; // tactics that are shown at first

export function panel() {
  const body = h("div", { class: "body" });
  const root = h("aside", { class: "panel", "aria-label": "Details", tabindex: "-1" }, body);

  function draw() {
    const { engine, node } = state;
    let found = whole(engine);
    if (node?.[0] === "s") found = stepPanel(engine, engine.node(node));
    else if (node) found = portPanel(engine, node);
    body.replaceChildren(...found.filter(Boolean));
    root.scrollTop = 0;
    root.classList.toggle("open", Boolean(node));
  }
  watch((changed) => (changed.includes("node") || changed.includes("engine")) && draw());
  draw();
  return root;
}

const section = (title, ...children) => h("section", {}, h("h3", {}, title), ...children);
const rows = (pairs) => h("dl", {}, pairs.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));
const meter = (share, background, name = "") =>
  h("span", { class: "meter", title: name }, h("span", { style: { width: `${Math.min(100 * share, 100)}%`, background } }));

export const stepButton = (step, ...more) =>
  h(
    "button",
    { type: "button", class: "step", onclick: () => set({ node: step.id }) },
    h("i", { class: "dot", style: { background: colourOf(step) } }),
    h("span", { class: "no" }, `${step.i}`),
    h("span", { class: "what" }, h("span", {}, step.title), h("small", {}, step.short)),
    more,
  );

// --- the whole engine

function whole(engine) {
  const worst = engine.steps.filter((step) => step.share).sort((a, b) => b.ns - a.ns);
  const bad = engine.steps.filter(isBad);
  const most = engine.kernels[0]?.ns || 1;
  return [
    h("h2", {}, "The whole engine"),
    section(
      "Time by kernel",
      h(
        "ul",
        { class: "bars" },
        engine.kernels.filter((k) => k.name !== "control").map((k) =>
          h(
            "li",
            {},
            h("span", { class: "label" }, k.name, h("small", {}, ` ${count(k.count, "step")}`)),
            h("span", { class: "number" }, engine.total ? percent(k.ns / engine.total) : "–"),
            meter(k.ns / most, colour(k.name)),
          ),
        ),
      ),
    ),
    bad.length
      ? section(
          `Copies and host steps: ${bad.length}`,
          h("ul", { class: "steps" }, bad.slice(0, 40).map((step) => h("li", { class: "bad" }, stepButton(step), h("p", {}, step.reason)))),
          bad.length > 40 && h("p", { class: "quiet" }, `… and ${bad.length - 40} more, in the table of steps.`),
        )
      : section("Copies and host steps", h("p", { class: "good" }, "None: every step is a kernel that computes.")),
    worst.length > 0 &&
      section(
        "Slowest steps",
        h("ol", { class: "steps" }, worst.slice(0, 8).map((step) => h("li", {}, stepButton(step, h("span", { class: "number" }, percent(step.share)))))),
      ),
    peak && boundSection(engine),
    section("Inputs and outputs", rows([...engine.inputs, ...engine.outputs].map((p) => [p.name, h("code", {}, p.type)]))),
    engine.symbols.length > 0 &&
      section(
        "Sizes",
        rows(engine.symbols.map(([name, , value, range]) => [name, `${range}; shown for ${value}`])),
      ),
    section("Engine", rows(facts(engine))),
    ...Object.entries(engine.notes).filter(([title]) => !/host|copies/.test(title)).map(([title, lines]) =>
      h("details", {}, h("summary", {}, `${title}: ${lines.length}`), h("ul", { class: "notes" }, lines.map((line) => h("li", {}, line)))),
    ),
  ];
}

function boundSection(engine) {
  const sums = { compute: 0, memory: 0, neither: 0 };
  let all = 0;
  for (const step of engine.steps) {
    const found = bound(step);
    if (!found || !step.share) continue;
    sums[found.by] += step.ns;
    all += step.ns;
  }
  const said = { compute: "arithmetic", memory: "memory", neither: "neither: under a microsecond of both" };
  return section(
    "What bounds the time",
    h(
      "ul",
      { class: "bars" },
      Object.entries(sums).map(([by, ns]) =>
        h("li", {}, h("span", { class: "label" }, said[by]), h("span", { class: "number" }, percent(ns / (all || 1))), meter(ns / (all || 1), "var(--accent)")),
      ),
    ),
    h("p", { class: "quiet" }, `Measured on this machine: ${rate(peak.gflops)} GFLOP/s, ${rate(peak.gbytes)} GB/s.`),
  );
}

function facts(engine) {
  const { target } = engine;
  return [
    ["file", engine.label],
    ["network", engine.name],
    ["made for", [target.isa ?? target.arch, engine.gpu || target.cpu].filter(Boolean).join(", ")],
    ["threads", engine.threads],
    ["precision", `${engine.precision}${engine.strict ? ", strict" : ""}`],
    ["level", engine.level],
    ["weights", engine.weights.own ? `${size(engine.weights.packed)} packed, ${size(engine.weights.own)} in the model` : size(engine.constants)],
    ["code", size(engine.code)],
    ["made by", [engine.model.producer, engine.model.opsets].filter(Boolean).join(", ")],
  ];
}

// --- one step

function stepPanel(engine, step) {
  const close = iconButton("Close (Escape)", "✕", () => set({ node: null }));
  const move = (by) => () => set({ node: `s${step.i + by}` });
  const back = iconButton("Step before", "‹", move(-1));
  const on = iconButton("Step after", "›", move(1));
  back.disabled = step.i === 0;
  on.disabled = step.i === engine.steps.length - 1;
  return [
    h("div", { class: "heading" }, h("p", { class: "eyebrow" }, `step ${step.i} of ${engine.steps.length}`), back, on, close),
    h("h2", { style: { "--kernel": colourOf(step) } }, step.title),
    step.reason && h("p", { class: isBad(step) ? "callout bad" : "callout" }, h("b", {}, isBad(step) ? `${step.kind}: ` : ""), step.reason),
    timeSection(step),
    section(
      `Fused from ${count(step.layers.length, "layer")}`,
      h("ul", { class: "layers" }, step.layers.map((name) => h("li", {}, name))),
    ),
    step.kind !== "control" && tacticSection(step),
    tensorSection(engine, step),
    step.outputs && section("Work", rows(workOf(step))),
    precisionSection(engine, step),
  ];
}

function timeSection(step) {
  if (step.source === "unknown") return section("Time", h("p", { class: "quiet" }, "Not known: pelton view --time measures it."));
  const found = bound(step);
  const speed = step.flops && step.source !== "estimated" ? `${rate(step.flops / step.ns)} GFLOP/s` : null;
  return section(
    "Time",
    h("p", { class: "big" }, h("b", {}, duration(step.ns)), step.share !== null && h("span", {}, `${percent(step.share)} of the whole`)),
    step.share !== null && meter(step.share, "var(--kernel-now, var(--accent))"),
    h("p", { class: "quiet" }, `${source(step.source)[0].toUpperCase()}${source(step.source).slice(1)}.`),
    rows([
      ["speed", speed],
      ["compared", step.versus?.said],
      ["bound by", found && found.by !== "neither" ? `${found.by === "compute" ? "arithmetic" : "memory"}, ${percent(found.reached)} of that reached` : null],
    ]),
  );
}

function tacticSection(step) {
  const chips = step.params.map(([name, value]) => h("span", { class: "chip" }, `${name} ${value ?? ""}`));
  const list = h("ol", { class: "bars timed" });
  const show = (n) => list.replaceChildren(...step.times.slice(0, n).map(([name, ns]) => timedRow(step, name, ns)));
  show(TIMED);
  const more =
    step.times.length > TIMED &&
    h("button", { type: "button", class: "link", onclick: (e) => (show(step.times.length), e.target.remove()) }, `all ${step.times.length}`);
  const untimed = step.alternatives.filter((name) => !step.times.some(([timed]) => timed === name));
  return section(
    "Tactic",
    h("p", { class: "tactic" }, h("code", {}, step.template), chips),
    step.times.length > 1 && [h("h4", {}, `What it won against, of ${step.times.length} timed`), list, more],
    step.times.length === 1 && h("p", { class: "quiet" }, "The only one that was timed."),
    !step.times.length && step.kind === "kernel" && h("p", { class: "quiet" }, "Guessed: this engine records no times of others."),
    untimed.length > 0 && h("p", { class: "quiet" }, `${count(untimed.length, "other kernel")} in the engine, not timed yet: ${untimed.join(", ")}`),
  );
}

function timedRow(step, name, ns) {
  const slowest = step.times.at(-1)[1] || 1;
  const mine = name === step.tactic;
  const best = step.times.find(([n]) => n === step.tactic)?.[1] ?? step.times[0][1];
  return h(
    "li",
    { class: mine ? "mine" : "" },
    h("span", { class: "label" }, name.split("@")[0].replaceAll(",", ",\u200b"), mine && [" ", h("b", { class: "badge" }, "chosen")]),
    h("span", { class: "number" }, duration(ns), h("small", {}, mine ? "" : ` ${ns >= best ? "+" : "−"}${percent(Math.abs(ns / best - 1))}`)),
    meter(ns / slowest, mine ? "var(--accent)" : "var(--soft)"),
  );
}

function tensorSection(engine, step) {
  const link = (id, value) => {
    const node = engine.node(id);
    const name = id[0] === "s" ? `${node.i} ${node.title}` : node.name;
    return h("li", {}, h("button", { type: "button", class: "link", onclick: () => set({ node: id }) }, name), value?.shape && h("code", {}, shape(value)));
  };
  const reads = engine.before.get(step.id) ?? [];
  const readers = engine.next.get(step.id) ?? [];
  const item = (t) => h("li", {}, h("span", {}, t.name || "–"), h("code", {}, shape(t)), h("small", {}, `${t.layout}, ${size(t.bytes)}`));
  const constant = (c) => h("li", {}, h("span", {}, c.name || "–"), h("small", {}, [c.form, size(c.bytes)].filter(Boolean).join(", ")));
  return section(
    "Data",
    reads.length > 0 && [h("h4", {}, "Reads from"), h("ul", { class: "tensors" }, reads.map((e) => link(e.node, engine.value(e.node, e.output))))],
    step.outputs?.length > 0 && [h("h4", {}, "Writes"), h("ul", { class: "tensors" }, step.outputs.map(item))],
    readers.length > 0 && [h("h4", {}, "Read by"), h("ul", { class: "tensors" }, readers.map((e) => link(e.node, null)))],
    step.constants?.length > 0 && [h("h4", {}, "Constants"), h("ul", { class: "tensors" }, step.constants.map(constant))],
  );
}

function workOf(step) {
  const [tiles, grain, phases, scratch] = step.tiles ?? [];
  return [
    ["operations", work(step.flops)],
    ["bytes read and written", size(step.bytes)],
    ["intensity", step.flops && step.bytes ? `${plain(step.flops / step.bytes)} FLOP per byte` : null],
    ["tiles", step.tiles ? `${tiles}${grain > 1 ? `, ${grain} at once` : ""}${phases > 1 ? `, ${phases} phases` : ""}` : null],
    ["scratch for each thread", scratch ? size(scratch) : null],
    ["wave", `${step.wave}`],
  ];
}

function precisionSection(engine, step) {
  const types = [...new Set((step.outputs ?? []).map((t) => t.dtype))].join(", ");
  const mine = (engine.int8?.layers ?? []).filter((row) => row.layer.split("+").some((name) => step.layers.includes(name)));
  const times = (us) => Object.entries(us).map(([name, value]) => `${name} ${duration(1e3 * value)}`).join(", ");
  return section(
    "Precision",
    rows([
      ["writes", types],
      ["weights", step.weights ? `${step.weights.type}: ${step.weights.reason} ${times(step.weights.us)}` : null],
      ["error when checked", step.error === null || step.error === undefined ? null : `${step.error.toExponential(1)} of its largest value`],
      ...mine.map((row) => [row.precision, `${row.reason}${Object.keys(row.us).length ? ` (${times(row.us)})` : ""}`]),
    ]),
  );
}

// --- a port

function portPanel(engine, id) {
  const port = engine.node(id);
  const links = id[0] === "i" ? engine.next.get(id) : engine.before.get(id);
  return [
    h("div", { class: "heading" }, h("p", { class: "eyebrow" }, id[0] === "i" ? "input" : "output"), iconButton("Close (Escape)", "✕", () => set({ node: null }))),
    h("h2", {}, port.name),
    section("Type", rows([["type", h("code", {}, port.type)], ["shown for", port.shape.join("×")], ["bytes", size(port.bytes)]])),
    section(
      id[0] === "i" ? "Read by" : "Written by",
      h("ul", { class: "steps" }, (links ?? []).filter((e) => e.node[0] === "s").map((e) => h("li", {}, stepButton(engine.node(e.node))))),
    ),
  ];
}
