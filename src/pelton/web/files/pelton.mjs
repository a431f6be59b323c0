// Runs an engine that `pelton export --target wasm` wrote, in this thread.

const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array, bool: Uint8Array,
  i64: BigInt64Array, u64: BigUint64Array, i32: Int32Array, u32: Uint32Array,
  i16: Int16Array, u16: Uint16Array, i8: Int8Array, u8: Uint8Array,
};
const CACHE = "pelton";
const MODULE = [0, 0x61, 0x73, 0x6d]; // the first bytes of a module: WebAssembly Core Specification 5.5.16

/** Returns the bytes of a file beside this module; progress(loaded) is called as they arrive. */
async function bytesOf(url, progress) {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    const bytes = await readFile(url).catch((error) => {
      throw new Error(`${url.href} cannot be read: ${error.message}`);
    });
    progress?.(bytes.length);
    return bytes;
  }
  const answer = await fetch(url).catch((error) => {
    throw new Error(`${url.href} cannot be fetched: ${error.message}`);
  });
  if (!answer.ok) throw new Error(`${url.href} cannot be fetched: ${answer.status} ${answer.statusText}`);
  return bodyOf(answer, progress);
}

async function bodyOf(answer, progress) {
  const parts = [];
  let loaded = 0;
  for (const reader = answer.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    loaded += value.length;
    progress?.(loaded);
  }
  const bytes = new Uint8Array(loaded);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** Why these bytes are not the weights of an engine; undefined if they are. */
async function wrong(bytes, facts) {
  if (bytes.length !== facts.weightBytes) return `has ${bytes.length} bytes, not ${facts.weightBytes}`;
  const { subtle } = globalThis.crypto ?? {}; // pages of http: have none
  if (!subtle) return undefined;
  const digest = new Uint8Array(await subtle.digest("SHA-256", bytes));
  const hash = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hash === facts.sha256 ? undefined : `has the hash ${hash.slice(0, 16)}, not ${facts.sha256.slice(0, 16)}`;
}

/** Returns the weights: those in the browser's cache, else the file's, which are then kept there. */
export async function weightsOf(facts, base, progress) {
  const url = new URL(facts.weights, base), seen = progress && ((loaded) => progress(loaded, facts.weightBytes));
  const isFile = url.protocol === "file:";
  const cache = isFile ? null : await globalThis.caches?.open(CACHE).catch(() => null); // not in private windows
  const kept = await cache?.match(url.href);
  if (kept) {
    const bytes = await bodyOf(kept, seen);
    if (!(await wrong(bytes, facts))) return bytes;
  }
  const bytes = await bytesOf(url, seen), why = await wrong(bytes, facts);
  if (why) throw new Error(`${url.href} ${why}: it is damaged, or of another export`);
  if (cache) {
    await discardOthers(cache, url);
    cache.put(url.href, new Response(bytes)).catch(() => null); // a full disk costs time later, nothing now
  }
  return bytes;
}

/** Drops what earlier exports of the same engine left: their URLs differ in the hash alone. */
async function discardOthers(cache, url) {
  for (const request of await cache.keys()) {
    const old = new URL(request.url);
    if (old.origin === url.origin && old.pathname === url.pathname && old.search !== url.search) await cache.delete(request);
  }
}

/** Returns a compiled module and its level: the best of those that this machine runs. */
export async function moduleOf(facts, base, threads) {
  const files = threads > 1 ? facts.shared : facts.modules;
  for (const [level, file] of Object.entries(files)) {
    const url = new URL(file, base), bytes = await bytesOf(url);
    if (MODULE.some((byte, i) => bytes[i] !== byte)) throw new Error(`${url.href} is no module of WebAssembly`);
    if (WebAssembly.validate(bytes)) return { module: await WebAssembly.compile(bytes), level };
  }
  const names = Object.values(files).join(" nor ");
  throw new Error(`neither ${names} is valid here: this machine lacks 128-bit vectors, or the files are damaged`);
}

/** An engine in this thread. */
export class Engine {
  #exports;
  #memory;
  #dynamic;
  #views;
  #shapes; // of all inputs, that the engine is prepared for
  #dims; // of each output
  #trap; // what ended a run, and left memory as it was then

  constructor(facts, level, exports, memory) {
    Object.assign(this, { name: facts.name, inputs: facts.inputs, outputs: facts.outputs, level });
    this.#exports = exports;
    this.#memory = memory;
    this.#dynamic = facts.dynamic;
    if (!facts.dynamic) this.#look([...facts.inputs, ...facts.outputs].map(({ elements }) => elements));
    else if (!exports.open()) throw new Error(`${facts.name} cannot run here: ${this.#why()}`);
  }

  /** Runs the network once: { name: array } of inputs, to the same of outputs, in row-major order. An input may be
   * { data, dims }, and is where more than one of its sizes is dynamic; outputs with dynamic sizes are. Undefined if a
   * thread that helped has failed. */
  run(inputs) {
    if (inputs === null || typeof inputs !== "object") throw new TypeError(`inputs are { name: array }, got ${inputs}`);
    const unknown = Object.keys(inputs).find((name) => !this.inputs.some((port) => port.name === name));
    if (unknown !== undefined) throw new TypeError(`there is no input ${unknown}; inputs: ${this.inputs.map((p) => p.name).join(", ")}`);
    const given = this.inputs.map((port) => checked(port, inputs[port.name]));
    if (this.#dynamic) this.#prepare(given);
    given.forEach(({ data }, i) => this.#views[i].set(data));
    if (!this.#runs()) return undefined;
    const first = this.inputs.length;
    const results = this.outputs.map((port, i) => {
      const data = this.#views[first + i].slice();
      return [port.name, port.optimum ? { data, dims: this.#dims[i] } : data];
    });
    return Object.fromEntries(results);
  }

  #runs() {
    if (this.#trap) throw new Error(`${this.name} failed in an earlier run, and has to be loaded again: ${this.#trap.message}`);
    try {
      return !this.#exports.run();
    } catch (error) {
      throw (this.#trap = error);
    }
  }

  /** Prepares runs on inputs of these shapes: those of outputs follow, and memory may grow. */
  #prepare(given) {
    const shapes = given.map(({ dims }) => dims.join()).join(";");
    if (shapes === this.#shapes) return;
    this.#shapes = undefined;
    const flat = given.flatMap(({ dims }) => dims), ranks = this.outputs.map(({ shape }) => shape.length);
    const rank = ranks.reduce((a, b) => a + b, 0);
    const sizes = () => new BigInt64Array(this.#memory.buffer, this.#exports.sizes(), flat.length + rank);
    sizes().set(flat.map(BigInt));
    if (!this.#exports.prepare()) throw new RangeError(this.#why());
    const found = Array.from(sizes().subarray(flat.length), Number);
    this.#dims = ranks.map((of) => found.splice(0, of));
    this.#look([...given.map(({ dims }) => product(dims)), ...this.#dims.map(product)]);
    this.#shapes = shapes;
  }

  #look(elements) {
    const ports = [...this.inputs, ...this.outputs];
    this.#views = ports.map(({ type }, i) => new ARRAYS[type](this.#memory.buffer, this.#exports.port(i), elements[i]));
  }

  #why() {
    const bytes = new Uint8Array(this.#memory.buffer, this.#exports.why(), 512);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
}

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const isWhole = (d) => Number.isInteger(d) && d >= 0;

/** An input as { data, dims }. Throws a TypeError or a RangeError for what it does not take. */
function checked(port, given) {
  const wanted = ARRAYS[port.type], { name, shape } = port, hasDims = Boolean(given?.dims);
  const data = hasDims ? given.data : given;
  const found = data?.constructor?.name ?? typeof data;
  if (!(data instanceof wanted)) throw new TypeError(`input ${name} is a ${wanted.name} (${port.type}), got ${found}`);
  const dims = hasDims ? [...given.dims] : inferred(port, data.length);
  const fits = dims.length === shape.length && dims.every((d, i) => isWhole(d) && (typeof shape[i] === "string" || d === shape[i]));
  if (!fits) throw new RangeError(`input ${name} is of shape [${shape}], got [${dims}]`);
  if (data.length !== product(dims)) throw new RangeError(`input ${name} has ${product(dims)} elements [${dims}], got ${data.length}`);
  if (port.indices) checkIndices(port, data);
  return { data, dims };
}

/** The shape of an input, from the number of its elements where one size is dynamic. */
function inferred({ name, shape, optimum }, length) {
  if (!optimum) return shape;
  const open = shape.filter((d) => typeof d === "string");
  if (open.length > 1) throw new TypeError(`input ${name} has the dynamic sizes ${open.join(" and ")}: pass { data, dims }`);
  const rest = product(shape.filter((d) => typeof d !== "string")), size = length / rest;
  if (!isWhole(size)) throw new RangeError(`input ${name} has a multiple of ${rest} elements [${shape}], got ${length}`);
  return shape.map((d) => (typeof d === "string" ? size : d));
}

function checkIndices({ name, indices: { low, high, layer } }, data) {
  const isOutside = data.some((index) => index < low || index > high);
  if (isOutside) throw new RangeError(`input ${name} has an index out of bounds: layer ${layer} takes ${low} to ${high}`);
}

/** Loads an engine into this thread. */
export async function load(facts, base, { progress } = {}) {
  const [{ module, level }, weights] = await Promise.all([moduleOf(facts, base, 1), weightsOf(facts, base, progress)]);
  const { exports } = await WebAssembly.instantiate(module, {});
  place(weights, exports, exports.memory);
  return new Engine(facts, level, exports, exports.memory);
}

export function place(weights, exports, memory) {
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
  await remote.load({ facts, base, threads: Math.min(threads, facts.mostThreads) });
  return remote;
}

/** An engine in a worker. */
export class Remote {
  #worker;
  #waiting = new Map();
  #calls = 0;
  #over; // why there are no more answers
  #stopped;

  constructor(facts, worker, progress) {
    Object.assign(this, { name: facts.name, inputs: facts.inputs, outputs: facts.outputs, level: undefined, threads: 1 });
    this.#worker = worker;
    const receive = ({ id, progress: seen, result, error, kind }) => {
      if (seen) return progress?.(...seen);
      const { resolve, reject } = this.#waiting.get(id) ?? {};
      this.#waiting.delete(id);
      if (error !== undefined) reject?.(new (globalThis[kind] ?? WebAssembly[kind] ?? Error)(error));
      else resolve?.(result);
    };
    const fail = ({ message }) => this.#end(`the worker of ${this.name} failed: ${message || "it cannot be loaded"}`);
    if (worker.on) {
      worker.on("message", receive).on("error", fail).on("messageerror", fail);
      worker.on("exit", (status) => this.#end(`the worker of ${this.name} ended with status ${status}`));
    } else Object.assign(worker, { onmessage: (event) => receive(event.data), onerror: fail, onmessageerror: fail });
  }

  /** Rejects all calls, those that wait and those to come. */
  #end(why) {
    this.#over ??= why;
    for (const { reject } of this.#waiting.values()) reject(new Error(this.#over));
    this.#waiting.clear();
  }

  async #call(what, content) {
    if (this.#over) throw new Error(this.#over);
    const id = this.#calls++;
    const answer = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    try {
      this.#worker.postMessage({ id, what, content });
    } catch (error) {
      this.#waiting.delete(id);
      throw new TypeError(`inputs cannot be sent to a worker: ${error.message}`);
    }
    return answer;
  }

  /** What `start` waits for. */
  async load(content) {
    try {
      Object.assign(this, await this.#call("load", content));
    } catch (error) {
      this.#end(error.message);
      await this.#worker.terminate();
      throw error;
    }
  }

  /** Runs the network once, as Engine.run does; runs wait for each other. */
  async run(inputs) {
    if (this.#stopped) throw new Error(`${this.name} is stopped`);
    return this.#call("run", inputs);
  }

  /** Ends the worker and its threads, after the runs that it was asked for. */
  stop() {
    this.#stopped ??= this.#call("stop").catch(() => null).then(() => {
      this.#over ??= `${this.name} is stopped`;
      return this.#worker.terminate();
    }).then(() => undefined);
    return this.#stopped;
  }
}
