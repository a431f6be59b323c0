// Numbers and names for people.

const scaled = (value, units, step) => {
  let i = 0;
  while (value >= step && i < units.length - 1) [value, i] = [value / step, i + 1];
  const digits = i === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[i]}`;
};

export const duration = (ns) => scaled(ns, ["ns", "µs", "ms", "s"], 1000);
export const signed = (ns) => `${ns > 0 ? "+" : ns < 0 ? "−" : ""}${duration(Math.abs(ns))}`;
export const size = (bytes) => (bytes === null ? "–" : scaled(bytes, ["B", "kB", "MB", "GB", "TB"], 1000));
export const work = (flops) => (flops ? scaled(flops, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 1000) : "–");
export const percent = (share) => (share >= 0.0995 ? `${(100 * share).toFixed(0)} %` : `${(100 * share).toFixed(1)} %`);
export const rate = (value) => `${+value.toPrecision(value >= 1000 ? 4 : 3)}`;
export const plain = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export const count = (n, noun, nouns = `${noun}s`) => `${n.toLocaleString("en")} ${n === 1 ? noun : nouns}`;
export const shape = (t) => `${t.dtype} [${t.shape.join("×")}]`;

/** "convolution+relu+slice+slice" → "convolution + relu + 2 × slice". */
export function ops(text) {
  const parts = [];
  for (const name of text.split("+")) {
    const last = parts.at(-1);
    if (last?.name === name) last.times += 1;
    else parts.push({ name, times: 1 });
  }
  return parts.map((p) => (p.times > 1 ? `${p.times} × ${p.name}` : p.name)).join(" + ");
}

/** "conv:MR=6,NV=2@x86_64_v4" → {template, params: [[name, value]], isa}. */
export function tactic(text) {
  const [rest, isa = ""] = text.split("@");
  const [template, params = ""] = rest.split(/:(.*)/s);
  return { template, params: params ? params.split(",").map((p) => p.split(/=(.*)/s).slice(0, 2)) : [], isa };
}

/** The end of a long path, which tells layers apart better than its beginning. */
export const tail = (text, width) => (text.length <= width ? text : `…${text.slice(text.length - width + 1)}`);
