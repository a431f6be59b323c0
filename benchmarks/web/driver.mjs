// Serves the page, the models and the packages on loopback, and runs the page in headless Chromium. Reads a request of
// one line of JSON for each network from standard input, and answers each by a line; __main__.py describes both.
//   node driver.mjs FOLDER CHROMIUM, FOLDER with node_modules, models and pelton.
import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const [folder, executablePath] = process.argv.slice(2);
const { chromium } = createRequire(path.resolve(folder, "package.json"))("playwright-core");
const FOLDERS = {
  page: path.dirname(fileURLToPath(import.meta.url)),
  npm: path.resolve(folder, "node_modules"),
  models: path.resolve(folder, "models"),
  pelton: path.resolve(folder, "pelton"),
};
const TYPES = { ".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json" };
const ISOLATED = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };
const CODE = { ".wasm": "wasm", ".mjs": "scripts", ".js": "scripts" };

let fetched = new Set(); // files of code, but the page's own
const server = http.createServer((request, response) => {
  const [, first, ...rest] = new URL(request.url, "http://localhost").pathname.split("/");
  const file = path.join(FOLDERS[first] ?? FOLDERS.page, ...rest), ending = path.extname(file);
  fs.readFile(file, (error, data) => {
    if (!error && first !== "page" && ending in CODE) fetched.add(file);
    const type = { "content-type": TYPES[ending] ?? "application/octet-stream", "cache-control": "no-store" };
    response.writeHead(error ? 404 : 200, { ...type, ...ISOLATED, "content-length": data?.length ?? 0 });
    response.end(data);
  });
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}/page/page.html`;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

/** Calls a function of a page that nothing has run in. */
async function inNewPage(name, args) {
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    const failure = new Promise((_, reject) => page.on("pageerror", reject).on("crash", () => reject(new Error("the page crashed"))));
    failure.catch(() => null);
    await page.goto(url);
    await Promise.race([page.waitForFunction(() => window.ready === true), failure]);
    if (!(await page.evaluate(() => crossOriginIsolated))) throw new Error("the page is not cross-origin isolated");
    return await Promise.race([page.evaluate(([f, a]) => window[f](...a), [name, args]), failure]);
  } finally {
    await context.close();
  }
}

/** Bytes of the code that pages have fetched. */
function codeBytes() {
  const sizes = { wasm: { raw: 0, gzip: 0 }, scripts: { raw: 0, gzip: 0 } };
  for (const file of fetched) {
    const data = fs.readFileSync(file), of = sizes[CODE[path.extname(file)]];
    of.raw += data.length;
    of.gzip += gzipSync(data, { level: 9 }).length;
  }
  return sizes;
}

async function answer({ network, runtimes, rounds, loads }) {
  const load = {}, code = {};
  for (const runtime of runtimes) {
    fetched = new Set();
    load[runtime] = [];
    for (let i = 0; i < loads; i++) load[runtime].push(await inNewPage("load", [network, runtime]));
    code[runtime] = codeBytes();
  }
  return { ...(await inNewPage("measure", [network, runtimes, rounds])), load, code, chromium: browser.version() };
}

for await (const line of createInterface({ input: process.stdin })) {
  let result;
  try {
    result = await answer(JSON.parse(line));
  } catch (error) {
    result = { error: error.message };
  }
  console.log(JSON.stringify(result));
}
await browser.close();
server.close();
