// A worker with an engine, and the threads that help it.
import { Engine, load, moduleOf, place, weightsOf } from "./pelton.mjs";

const node = typeof WorkerGlobalScope === "undefined" ? await import("node:worker_threads") : undefined;
const port = node ? node.parentPort : globalThis;
const listen = (receive) => (node ? port.on("message", receive) : (port.onmessage = (event) => receive(event.data)));

let engine, exports;
let helpers = [];
let failed, fail; // of a helper: the error, and what reports it
const failure = new Promise((_, reject) => (fail = (error) => reject((failed ??= error))));
failure.catch(() => null); // those who wait for it see it

/** Starts a thread that helps, and waits until it does. */
function startHelper(base, content) {
  const Thread = node ? node.Worker : Worker;
  const helper = new Thread(new URL("worker.mjs", base), { type: "module" });
  helpers.push(helper);
  const end = (message) => fail(new Error(`thread ${content.thread} failed: ${message || "it cannot be loaded"}`));
  const ready = new Promise((resolve) => {
    const receive = ({ error }) => (error === undefined ? resolve() : end(error));
    if (node) helper.on("message", receive).on("error", (error) => end(error.message)).on("exit", () => end("it has ended"));
    else Object.assign(helper, { onmessage: (event) => receive(event.data), onerror: (event) => end(event.message) });
  });
  helper.postMessage({ what: "help", content });
  return Promise.race([ready, failure]);
}

/** Takes part in the runs of another thread, until it stops. */
async function help({ module, memory, thread }) {
  let own;
  try {
    ({ exports: own } = await WebAssembly.instantiate(module, { env: { memory } }));
    own.__stack_pointer.value = own.stack(thread);
    port.postMessage({});
    own.work(thread);
  } catch (error) {
    own?.fail();
    port.postMessage({ error: error.message });
  }
}

const answers = {
  async load({ facts, base, threads }, progress) {
    if (threads < 2) {
      engine = await load(facts, base, { progress });
      return { level: engine.level, threads: 1 };
    }
    const [{ module, level }, weights] = await Promise.all([
      moduleOf(facts, base, threads),
      weightsOf(facts, base, progress),
    ]);
    const memory = new WebAssembly.Memory({ initial: facts.pages, maximum: facts.mostPages, shared: true });
    ({ exports } = await WebAssembly.instantiate(module, { env: { memory } }));
    place(weights, exports, memory);
    exports.share(threads);
    engine = new Engine(facts, level, exports, memory);
    await Promise.all(Array.from({ length: threads - 1 }, (_, i) => startHelper(base, { module, memory, thread: i + 1 })));
    return { level, threads };
  },

  run(inputs) {
    if (failed) throw failed;
    const outputs = engine.run(inputs);
    return outputs ?? failure; // which says why, once its message arrives
  },

  async stop() {
    exports?.stop?.();
    await Promise.all(helpers.map((helper) => helper.terminate()));
    helpers = [];
  },
};

listen(async ({ id, what, content }) => {
  if (what === "help") return help(content);
  try {
    const result = await answers[what](content, (...progress) => port.postMessage({ id, progress }));
    port.postMessage({ id, result });
  } catch (error) {
    port.postMessage({ id, error: error.message, kind: error.name });
  }
});
