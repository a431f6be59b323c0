// Runs an engine on zeros and prints its first outputs: node run.mjs LIBRARY ENGINE. Needs `npm install koffi`.
import koffi from "koffi";

const [library, path] = process.argv.slice(2);
const pelton = koffi.load(library);
koffi.struct("pelton_port", {
  name: "const char *",
  dtype: "int",
  rank: "int",
  shape: koffi.array("int64_t", 8),
  bytes: "size_t",
});
const error = pelton.func("const char *pelton_error()");
const load = pelton.func("void *pelton_load(const char *path)");
const engineFree = pelton.func("void pelton_engine_free(void *engine)");
const inputs = pelton.func("int pelton_inputs(void *engine)");
const input = pelton.func("pelton_port *pelton_input(void *engine, int i)");
const contextNew = pelton.func("void *pelton_context_new(void *engine, int threads)");
const contextFree = pelton.func("void pelton_context_free(void *context)");
const setShapes = pelton.func("int pelton_set_shapes(void *context, void **shapes)");
const run = pelton.func("int pelton_run(void *context, void *inputs, void *outputs)");
const output = pelton.func("pelton_port *pelton_context_output(void *context, int i)");
const outputData = pelton.func("void *pelton_output_data(void *context, int i)");

function check(found, failed = !found) {
  if (failed) throw new Error(error());
  return found;
}

const engine = check(load(path));
const context = check(contextNew(engine, 0));
const shapes = [];
for (let i = 0; i < inputs(engine); i++) {
  const shape = koffi.decode(input(engine, i), "pelton_port").shape;
  shapes.push(new BigInt64Array(Array.from(shape, (size) => BigInt(Math.max(Number(size), 1))))); // dynamic: -1
}
check(0, setShapes(context, shapes) !== 0);
check(0, run(context, null, null) !== 0);
const port = koffi.decode(output(context, 0), "pelton_port");
const count = Math.min(Number(port.bytes) / 4, 4);
console.log(port.name, koffi.decode(outputData(context, 0), koffi.array("float", count)));
contextFree(context);
engineFree(engine);
