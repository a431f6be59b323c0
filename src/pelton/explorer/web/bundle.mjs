// Writes explorer/bundle from these sources: one script, one style, the page around them, and all licences.
// Run by `make explorer`, in the folder that has node_modules.
import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const WEB = dirname(fileURLToPath(import.meta.url));
const BUNDLE = join(WEB, "..", "bundle");
const modules = resolve("node_modules");
const esbuild = createRequire(join(modules, "x"))("esbuild");

// What the bundle was made of, so that a test can tell when it is out of date.
const sources = readdirSync(WEB).sort();
const made = createHash("sha256");
for (const name of sources) made.update(`${name}\n`).update(readFileSync(join(WEB, name)));
const banner = `/*! pelton explorer, made by "make explorer" of ${made.digest("hex")}; licences in LICENSES.txt */`;

const options = { bundle: true, minify: true, write: false, target: "es2022", legalComments: "none", nodePaths: [modules], metafile: true };
const script = await esbuild.build({ ...options, entryPoints: [join(WEB, "entry.js")], format: "iife", charset: "ascii" });
const style = await esbuild.build({ ...options, entryPoints: [join(WEB, "style.css")], target: "esnext", charset: "ascii" });
const text = `${banner}\n${script.outputFiles[0].text}`;
for (const ending of ["</script", "<!--"]) if (text.toLowerCase().includes(ending)) throw new Error(`the script has ${ending} in it`);

const used = new Set(Object.keys(script.metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]).filter(Boolean));
const licences = [...used].sort().map((name) => {
  const folder = join(modules, name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((f) => /^licen[cs]e/i.test(f));
  if (!file || !existsSync(join(folder, file))) throw new Error(`${name} has no licence file`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});

writeFileSync(join(BUNDLE, "explorer.js"), text);
writeFileSync(join(BUNDLE, "explorer.css"), style.outputFiles[0].text);
writeFileSync(join(BUNDLE, "page.html"), readFileSync(join(WEB, "page.html")));
writeFileSync(join(BUNDLE, "LICENSES.txt"), `What is in explorer.js besides Pelton's own code:\n\n${licences.join(`\n${"-".repeat(79)}\n\n`)}`);
console.log(`${text.length} bytes of script, ${used.size} packages`);
