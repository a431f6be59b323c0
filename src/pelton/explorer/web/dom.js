// Makes elements. Text becomes text nodes, never HTML, whatever the model calls its layers.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

/** An HTML element: h("p", {class: "quiet"}, "text", child). */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A button with an icon, whose name is read aloud and shown when one points at it. */
export const iconButton = (name, icon, onclick) =>
  h("button", { type: "button", class: "icon", "aria-label": name, title: name, onclick }, icon);

let bubble = null;

/** Shows lines beside the pointer, or hides them; screen readers have them from labels. */
export function tip(event, lines) {
  bubble ??= document.body.appendChild(h("div", { class: "tip", "aria-hidden": "true" }));
  bubble.hidden = !lines;
  if (!lines) return;
  bubble.replaceChildren(...lines.map((line, i) => h("div", { class: i ? "" : "first" }, line)));
  const { width, height } = bubble.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - width - 8);
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  bubble.style.left = `${Math.max(8, x)}px`;
  bubble.style.top = `${Math.max(8, y)}px`;
}

/** Events that show `lines()` while one points at an element. */
export const pointed = (lines) => ({
  onpointermove: (event) => tip(event, lines()),
  onpointerleave: () => tip(null, null),
});
