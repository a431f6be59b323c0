// A worker with an engine, and the threads that help it.
import { Engine, bytesOf, load, moduleOf, place } from "./pelton.mjs";

const node = typeof WorkerGlobalScope === "undefined" ? await import("node:worker_threads") : undefined;
const port = node ? node.parentPort : globalThis;
const listen = (receive) => (node ? port.on("message", receive) : (port.onmessage = (event) => receive(event.data)));

let engine, exports;
let helpers = [];

const answers = {
  async load({ facts, base, threads }, progress) {
    if (threads < 2) {
      engine = await load(facts, base, { progress });
      return { level: engine.level, threads: 1 };
    }
    const [{ module, level }, weights] = await Promise.all([
      moduleOf(facts, base, threads),
      bytesOf(new URL(facts.weights, base), progress),
    ]);
    const memory = new WebAssembly.Memory({ initial: facts.pages, maximum: facts.pages, shared: true });
    ({ exports } = await WebAssembly.instantiate(module, { env: { memory } }));
    place(weights, facts, exports, memory);
    engine = new Engine(facts, level, exports, memory);
    const Thread = node ? node.Worker : Worker;
    for (let i = 1; i < threads; i++) {
      const helper = new Thread(new URL("worker.mjs", base), { type: "module" });
      const ready = new Promise((resolve, reject) => {
        if (node) helper.once("message", resolve).once("error", reject);
        else Object.assign(helper, { onmessage: resolve, onerror: reject });
      });
      helper.postMessage({ what: "help", content: { module, memory, thread: i } });
      helpers.push(helper);
      await ready;
    }
    exports.share(threads);
    return { level, threads };
  },

  run: (inputs) => engine.run(inputs),

  async stop() {
    exports?.stop?.();
    await Promise.all(helpers.map((helper) => helper.terminate()));
    helpers = [];
  },
};

listen(async ({ id, what, content }) => {
  if (what === "help") {
    const { module, memory, thread } = content;
    const { exports: own } = await WebAssembly.instantiate(module, { env: { memory } });
    own.__stack_pointer.value = own.stack(thread);
    port.postMessage("ready");
    own.work(thread);
    return;
  }
  try {
    const result = await answers[what](content, (...progress) => port.postMessage({ id, progress }));
    port.postMessage({ id, result });
  } catch (error) {
    port.postMessage({ id, error: error.message, kind: error.name });
  }
});
