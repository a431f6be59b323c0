// Runs a network by Pelton, ONNX Runtime Web and TF.js in this page. driver.mjs calls `measure` and `load` of `window`.
import { channelsFirst, compile } from "./tfjs.mjs";

const NPM = "/npm/";
const WARM_MS = 1000, ROUND_MS = 50, RUNS = 5; // rounds and warm-ups are as long as this, and have as many runs
const ARRAYS = { float32: Float32Array, int64: BigInt64Array };

const median = (numbers) => {
  const sorted = numbers.toSorted((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

async function bytes(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

function script(url) {
  return new Promise((resolve, reject) => {
    const element = Object.assign(document.createElement("script"), { src: url, onload: resolve });
    element.onerror = () => reject(new Error(`${url} does not load`));
    document.head.append(element);
  });
}

/** Inputs by name: { type, shape, array }. */
async function read({ name, inputs }) {
  const entries = inputs.map(async (input, i) => {
    const array = new ARRAYS[input.type](await bytes(`/models/${name}.${i}.bin`));
    return [input.name, { ...input, array }];
  });
  return Object.fromEntries(await Promise.all(entries));
}

/** Runtimes: each returns a function that runs the network once and gives { name: array } of outputs. */
const RUNTIMES = {
  async pelton({ name }, inputs) {
    const engine = await (await import(`/pelton/${name}/${name}.mjs`)).load();
    if (engine.level !== "relaxed") throw new Error(`Pelton's engine has the level ${engine.level}, not relaxed`);
    const arrays = arraysOf(inputs);
    return () => engine.run(arrays);
  },
  async onnxruntime({ name }, inputs) {
    await script(`${NPM}onnxruntime-web/dist/ort.wasm.min.js`);
    Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: new URL(`${NPM}onnxruntime-web/dist/`, location).href });
    const how = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
    const session = await ort.InferenceSession.create(`/models/${name}.onnx`, how);
    return async () => {
      const feeds = {};
      for (const port in inputs) feeds[port] = new ort.Tensor(inputs[port].type, inputs[port].array, inputs[port].shape);
      const outputs = await session.run(feeds), arrays = {};
      for (const port in outputs) arrays[port] = outputs[port].data;
      return arrays;
    };
  },
  async tfjs({ name }, inputs) {
    await script(`${NPM}@tensorflow/tfjs-core/dist/tf-core.min.js`);
    await script(`${NPM}@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.min.js`);
    tf.wasm.setWasmPaths(`${NPM}@tensorflow/tfjs-backend-wasm/dist/`);
    tf.wasm.setThreadsCount(1);
    await tf.setBackend("wasm");
    await tf.ready();
    const program = JSON.parse(new TextDecoder().decode(await bytes(`/models/${name}.tfjs.json`)));
    const run = compile(tf, program, await bytes(`/models/${name}.tfjs.bin`));
    const [{ array, shape }] = Object.values(inputs);
    const pixels = channelsLast(array, shape);
    const timed = () => run(pixels);
    timed.comparable = (outputs) => {
      const first = Object.entries(outputs).map(([port, a]) => [port, program.shapes[port] ? channelsFirst(a, program.shapes[port]) : a]);
      return Object.fromEntries(first);
    };
    return timed;
  },
};

const arraysOf = (inputs) => Object.fromEntries(Object.entries(inputs).map(([port, { array }]) => [port, array]));

function channelsLast(array, [batch, channels, rows, columns]) {
  return channelsFirst(array, [batch, rows * columns, channels, 1]);
}

/** Runs each function in turns: { name: median of the rounds' medians in ms }. */
async function inTurns(runs, rounds) {
  const names = Object.keys(runs), times = Object.fromEntries(names.map((name) => [name, []]));
  for (const name of names) await many(runs[name], WARM_MS);
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < names.length; i++) {
      const name = names[(round + i) % names.length];
      times[name].push(median(await many(runs[name], ROUND_MS)));
    }
  }
  return Object.fromEntries(names.map((name) => [name, { ms: median(times[name]), rounds: times[name] }]));
}

async function many(run, least) {
  const times = [], begin = performance.now();
  while (times.length < RUNS || performance.now() - begin < least) {
    const before = performance.now();
    await run();
    times.push(performance.now() - before);
  }
  return times;
}

/** The largest difference of outputs relative to the largest magnitude, over all outputs. */
function difference(outputs, expected) {
  let worst = 0;
  const names = Object.keys(expected);
  if (Object.keys(outputs).length !== names.length) throw new Error(`outputs: ${Object.keys(outputs)}, not ${names}`);
  for (const name of names) {
    const a = outputs[name], b = expected[name];
    if (a?.length !== b.length) throw new Error(`output ${name} has ${a?.length} elements, not ${b.length}`);
    let off = 0, largest = 0;
    for (let i = 0; i < b.length; i++) {
      const d = Math.abs(a[i] - b[i]);
      if (!(d <= off)) off = d; // NaN stays
      largest = Math.max(largest, Math.abs(b[i]));
    }
    if (!(off / largest <= worst)) worst = off / largest;
  }
  return Number.isFinite(worst) ? worst : String(worst);
}

/** Times a network by runtimes of this page in turns, then Pelton's workers with one thread and with two. */
window.measure = async (network, runtimes, rounds) => {
  const inputs = await read(network), runs = {};
  for (const runtime of runtimes) runs[runtime] = await RUNTIMES[runtime](network, inputs);
  const off = {}, expected = await runs.onnxruntime();
  for (const runtime of runtimes) {
    const outputs = await runs[runtime]();
    off[runtime] = difference(runs[runtime].comparable?.(outputs) ?? outputs, expected);
  }
  const times = await inTurns(runs, rounds);
  const workers = {}, remotes = [], { start } = await import(`/pelton/${network.name}/${network.name}.mjs`);
  for (const threads of [1, 2]) {
    const remote = await start({ threads }), arrays = arraysOf(inputs);
    if (remote.threads !== threads) throw new Error(`Pelton's worker has ${remote.threads} threads, not ${threads}`);
    remotes.push(remote);
    workers[threads] = () => remote.run(arrays);
    off[`${threads} threads`] = difference(await workers[threads](), expected);
  }
  const threads = await inTurns(workers, rounds);
  for (const remote of remotes) await remote.stop();
  return { off, times, threads };
};

/** The ms from nothing, scripts included, to the first outputs. */
window.load = async (network, runtime) => {
  const inputs = await read(network), begin = performance.now();
  await (await RUNTIMES[runtime](network, inputs))();
  return performance.now() - begin;
};

window.ready = true;
