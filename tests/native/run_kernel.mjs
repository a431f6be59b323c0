// run_kernel.mjs MODULE SYMBOL MEMORY: one run of a kernel for WebAssembly, as by run_kernel.c. What lies between
// buffers must stay unchanged: there are no pages without access.
import fs from "node:fs";

const PAGE = 65536, BETWEEN = 0xa5;
const [path, symbol, file] = process.argv.slice(2);
const numbers = fs.readFileSync(0), contents = fs.readFileSync(file);
let read = 0;
const next = () => Number(numbers.readBigInt64LE(8 * read++));

const { instance } = await WebAssembly.instantiate(fs.readFileSync(path), {});
const { memory, __heap_base: heap, [symbol]: kernel } = instance.exports;
let end = Math.ceil(heap.value / PAGE) * PAGE;
const first = end;
const buffers = [];
for (let count = next(); count; count--) {
    const at = next(), size = next();
    buffers.push({ at, size, address: end + PAGE });
    end += Math.ceil(size / PAGE) * PAGE + PAGE;
}
const words = end + PAGE;
memory.grow((words + PAGE - memory.buffer.byteLength) / PAGE);
const bytes = new Uint8Array(memory.buffer);
bytes.fill(BETWEEN, first, words);
for (const { at, size, address } of buffers) bytes.set(contents.subarray(at, at + size), address);
const pointer = () => {
    const buffer = next(), value = next();
    return buffer < 0 ? value : buffers[buffer].address + value;
};
const list = new Int32Array(memory.buffer, words, next());
for (let i = 0; i < list.length; i++) list[i] = pointer();
const scratch = pointer();
for (let count = next(); count; count--) kernel(words, next(), next(), scratch);
let from = first;
for (const { at, size, address } of [...buffers, { at: 0, size: 0, address: words }]) {
    if (bytes.subarray(from, address).some((b) => b !== BETWEEN)) process.kill(process.pid, "SIGKILL");
    contents.set(bytes.subarray(address, address + size), at);
    from = address + size;
}
fs.writeFileSync(file, contents);
