// Runs a package that `pelton export --target wasm` wrote, beside it: here, and in workers; prints what is refused.
import fs from "node:fs";
import { load, start } from "./net.mjs";
const read = ({ name }) => {
  const b = fs.readFileSync(`${name}.in`);
  return b.buffer.slice(b.byteOffset, b.byteOffset + b.length);
};
const ARRAYS = { f32: Float32Array, i64: BigInt64Array, i8: Int8Array, u8: Uint8Array };
const write = (engine, outputs, how) => {
  for (const { name } of engine.outputs) fs.writeFileSync(`${name}.${how}`, new Uint8Array(outputs[name].buffer));
};
const engine = await load();
const inputs = Object.fromEntries(engine.inputs.map((p) => [p.name, new ARRAYS[p.type](read(p))]));
write(engine, engine.run(inputs), "here");
const errors = [];
const wrong = async (run) => {
  try {
    await run();
    errors.push("none");
  } catch (e) {
    errors.push(`${e.name}: ${e.message}`);
  }
};
const [first] = engine.inputs;
await wrong(() => engine.run({ ...inputs, [first.name]: [1] }));
await wrong(() => engine.run({ ...inputs, [first.name]: inputs[first.name].slice(1) }));
await wrong(() => engine.run({ ...inputs, more: inputs[first.name] }));
for (const threads of [1, 2]) {
  const remote = await start({ threads });
  const runs = await Promise.all([remote.run(inputs), remote.run(inputs), remote.run(inputs)]);
  write(engine, runs[2], `worker${threads}`);
  await wrong(() => remote.run({}));
  await remote.stop();
  await wrong(() => remote.run(inputs));
}
await wrong(() => start({ threads: 0 }));
console.log(JSON.stringify({ level: engine.level, errors }));
