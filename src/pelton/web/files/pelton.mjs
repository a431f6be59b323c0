// Runs an engine that `pelton export --target wasm` wrote, in this thread.

const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array, bool: Uint8Array,
  i64: BigInt64Array, u64: BigUint64Array, i32: Int32Array, u32: Uint32Array,
  i16: Int16Array, u16: Uint16Array, i8: Int8Array, u8: Uint8Array,
};
const CACHE = "pelton";

/** Returns the bytes of a file beside this module; progress(loaded, total) is called as they arrive. */
export async function bytesOf(url, progress) {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    const bytes = await readFile(url);
    progress?.(bytes.length, bytes.length);
    return bytes;
  }
  const kept = globalThis.caches && (await caches.open(CACHE).catch(() => null)); // not in private windows
  let answer = await kept?.match(url.href);
  const isKept = Boolean(answer);
  answer ??= await fetch(url);
  if (!answer.ok) throw new Error(`${url.href} cannot be fetched: ${answer.status} ${answer.statusText}`);
  if (kept && !isKept) {
    await discardOthers(kept, url);
    kept.put(url.href, answer.clone()).catch(() => null); // a full disk costs time later, nothing now
  }
  const total = Number(answer.headers.get("content-length")) || 0;
  const parts = [];
  let loaded = 0;
  for (const reader = answer.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    loaded += value.length;
    progress?.(loaded, Math.max(total, loaded));
  }
  const bytes = new Uint8Array(loaded);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** Drops what earlier exports of the same engine left: their URLs differ in the hash alone. */
async function discardOthers(kept, url) {
  for (const request of await kept.keys()) {
    const old = new URL(request.url);
    if (old.origin === url.origin && old.pathname === url.pathname && old.search !== url.search) await kept.delete(request);
  }
}

/** Returns a compiled module and its level: the best of those that this machine runs. */
export async function moduleOf(facts, base, threads) {
  for (const [level, file] of Object.entries(threads > 1 ? facts.shared : facts.modules)) {
    const bytes = await bytesOf(new URL(file, base));
    if (WebAssembly.validate(bytes)) return { module: await WebAssembly.compile(bytes), level };
  }
  throw new Error(`${facts.name} needs WebAssembly with 128-bit vectors, which this browser lacks`);
}

/** An engine in this thread. */
export class Engine {
  #exports;
  #views;

  constructor(facts, level, exports, memory) {
    this.name = facts.name;
    this.inputs = facts.inputs;
    this.outputs = facts.outputs;
    this.level = level;
    this.#exports = exports;
    const view = ({ type, elements }, i) => new ARRAYS[type](memory.buffer, exports.port(i), elements);
    this.#views = [...facts.inputs, ...facts.outputs].map(view);
  }

  /** Runs the network once: { name: array } of inputs, to the same of outputs, in row-major order. */
  run(inputs) {
    this.inputs.forEach((port, i) => this.#views[i].set(checked(port, inputs[port.name])));
    const unknown = Object.keys(inputs).find((name) => !this.inputs.some((port) => port.name === name));
    if (unknown !== undefined) throw new TypeError(`there is no input ${unknown}; inputs: ${this.inputs.map((p) => p.name).join(", ")}`);
    this.#exports.run();
    const first = this.inputs.length;
    return Object.fromEntries(this.outputs.map((port, i) => [port.name, this.#views[first + i].slice()]));
  }
}

function checked(port, array) {
  const wanted = ARRAYS[port.type];
  const given = array?.constructor?.name ?? typeof array;
  if (!(array instanceof wanted)) throw new TypeError(`input ${port.name} is a ${wanted.name} (${port.type}), got ${given}`);
  if (array.length !== port.elements) {
    throw new RangeError(`input ${port.name} has ${port.elements} elements [${port.shape}], got ${array.length}`);
  }
  return array;
}

/** Loads an engine into this thread. */
export async function load(facts, base, { progress } = {}) {
  const [{ module, level }, weights] = await Promise.all([
    moduleOf(facts, base, 1),
    bytesOf(new URL(facts.weights, base), progress),
  ]);
  const { exports } = await WebAssembly.instantiate(module, {});
  place(weights, facts, exports, exports.memory);
  return new Engine(facts, level, exports, exports.memory);
}

export function place(weights, facts, exports, memory) {
  if (weights.length !== facts.weightBytes) {
    throw new Error(`${facts.weights} has ${weights.length} bytes, not ${facts.weightBytes}: it is of another export`);
  }
  new Uint8Array(memory.buffer, exports.weights(), weights.length).set(weights);
}

/** Starts a worker with an engine, whose runs leave this thread free. */
export async function start(facts, base, { threads = 1, progress } = {}) {
  const inNode = base.startsWith("file:");
  const Thread = inNode ? (await import("node:worker_threads")).Worker : Worker;
  if (!Number.isInteger(threads) || threads < 1) throw new RangeError(`threads is a positive integer, got ${threads}`);
  if (threads > 1 && !inNode && !globalThis.crossOriginIsolated) {
    console.warn(`${facts.name} runs on one thread: the page is not cross-origin isolated (README.md)`);
    threads = 1;
  }
  const worker = new Thread(new URL("worker.mjs", base), { type: "module" });
  const remote = new Remote(facts, worker, progress);
  await remote.call("load", { facts, base, threads: Math.min(threads, facts.mostThreads) });
  return remote;
}

/** An engine in a worker. */
export class Remote {
  #worker;
  #waiting = new Map();
  #calls = 0;

  constructor(facts, worker, progress) {
    Object.assign(this, { name: facts.name, inputs: facts.inputs, outputs: facts.outputs, level: undefined, threads: 1 });
    this.#worker = worker;
    const receive = ({ id, progress: seen, result, error, kind }) => {
      if (seen) return progress?.(...seen);
      const { resolve, reject } = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) reject(new (globalThis[kind] ?? Error)(error));
      else resolve(result);
    };
    const fail = (event) => {
      for (const { reject } of this.#waiting.values()) reject(new Error(event.message ?? "the worker failed"));
      this.#waiting.clear();
    };
    if (worker.on) worker.on("message", receive).on("error", fail);
    else Object.assign(worker, { onmessage: (event) => receive(event.data), onerror: fail });
  }

  /** Sends a request, and returns a promise of the answer. */
  async call(what, content, transfer = []) {
    if (!this.#worker) throw new Error(`${this.name} is stopped`);
    const id = this.#calls++;
    const answer = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    this.#worker.postMessage({ id, what, content }, transfer);
    const result = await answer;
    if (what === "load") Object.assign(this, result);
    return result;
  }

  /** Runs the network once, as Engine.run does; runs wait for each other. */
  run(inputs) {
    return this.call("run", inputs);
  }

  /** Ends the worker and its threads. */
  async stop() {
    const worker = this.#worker;
    if (!worker) return;
    await this.call("stop");
    this.#worker = undefined;
    await worker.terminate();
  }
}
