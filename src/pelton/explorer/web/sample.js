// What an engine gave for some pictures: a grid of them, as `pelton demo` adds it.
import { h } from "./dom.js";

export function sampleView({ title, lines, pictures }) {
  const figure = (p) => h("figure", { class: p.right ? "right" : "wrong" }, h("img", { src: p.src, alt: p.alt }), h("figcaption", {}, p.caption));
  const root = h("div", { class: "page sample" }, h("section", {}, h("h2", {}, title), h("div", { class: "grid" }, pictures.map(figure)), lines.map((line) => h("pre", {}, line))));
  return { root, draw() {} };
}
