// race.mjs MODULE: times kernels of a module for WebAssembly, as requests on standard input ask for, one per line. Each
// is answered by a line of JSON. pelton/tuning/measure_wasm.py describes requests and answers.
import fs from "node:fs";
import { createInterface } from "node:readline";

const PAGE = 65536, LINE = 64;
const { instance } = await WebAssembly.instantiate(fs.readFileSync(process.argv[2]), {});
const { memory, __heap_base: heap, ...kernels } = instance.exports;
const now = () => Number(process.hrtime.bigint());

/** Memory behind the module's own: what `allocate` gives is kept until `reset`. */
const first = Math.ceil(heap.value / PAGE) * PAGE;
let end = first;
function allocate(bytes) {
  const at = end;
  end += Math.ceil(Math.max(bytes, 1) / LINE) * LINE;
  const missing = end + PAGE - memory.buffer.byteLength;
  if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
  return at;
}

/** Weights: each use reads other bytes of the pool, as in a network. */
const pool = { at: 0, size: 0, cursor: 0 };
function weights(bytes) {
  if (pool.cursor + bytes > pool.size) pool.cursor = 0;
  const at = pool.at + pool.cursor;
  pool.cursor += Math.ceil(bytes / LINE) * LINE;
  return at;
}

function fillPool(bytes) {
  end = first;
  Object.assign(pool, { at: allocate(bytes), size: bytes, cursor: 0 });
  const numbers = new Float32Array(memory.buffer, pool.at, bytes >> 2);
  for (let i = 0, seed = 1; i < numbers.length; i++) {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    numbers[i] = 0.5 + seed / 2 ** 32;
  }
}

/** Runs one kernel over its first tiles; returns the nanoseconds. */
function run({ symbol, operands, dims, phases, scratch }, tiles, places, words, room) {
  const list = new Int32Array(memory.buffer, words, operands.length + dims.length);
  operands.forEach((o, i) => (list[i] = o.weights === undefined ? places[o.at] + o.offset : weights(o.weights)));
  list.set(dims, operands.length);
  const begin = now();
  kernels[symbol](words, 0, tiles * phases, room);
  return now() - begin;
}

function race({ pool: poolBytes, file, arrays, programs, inputs, rounds, drops, close, finalNs, finalTurns, seconds }) {
  fillPool(poolBytes);
  const contents = fs.readFileSync(file);
  const places = arrays.map(({ bytes }) => allocate(bytes));
  const most = Math.max(...programs.flat().map((k) => k.scratch), 1);
  const words = allocate(4096), room = allocate(most);
  arrays.forEach(({ at, bytes }, i) => new Uint8Array(memory.buffer, places[i], bytes).set(contents.subarray(at, at + bytes)));
  const touch = (i) => {
    const part = new Uint8Array(memory.buffer, places[i], arrays[i].bytes);
    part.set(part); // writes every byte of an input, as the step before would
  };
  const best = programs.map(() => Infinity);
  let alive = programs.map((_, i) => i), turn = 0, roundNs = 0, spent = 0;
  const deadline = seconds === null ? Infinity : now() + seconds * 1e9;
  while (turn < rounds || (alive.length > 1 && turn < rounds * (1 + finalTurns) && spent < Math.max(rounds * finalNs, 2 * roundNs))) {
    roundNs = 0;
    for (const i of alive) {
      const program = programs[i];
      if (turn === 0) program.forEach((k) => run(k, k.tiles, places, words, room));
      inputs[i].forEach(touch);
      let ns = 0;
      for (const k of program) ns += run(k, k.tiles, places, words, room);
      best[i] = Math.min(best[i], ns);
      roundNs += ns;
    }
    turn++;
    if (turn > rounds) spent += roundNs;
    if (turn >= rounds || drops[turn] !== undefined) {
      const limit = Math.min(...best) * (drops[turn] ?? close);
      alive = alive.filter((i) => best[i] <= limit);
    }
    if (now() > deadline) break;
  }
  return best.map(Math.round);
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(race(JSON.parse(line))));
}
