// A small map of the whole graph, with the part that is seen; one can move it there.
import { h } from "./dom.js";
import { colourOf } from "./model.js";

const WIDTH = 132;
const TALLEST = 420;

export function overview(move) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const frame = h("div", { class: "frame" });
  const root = h("div", { class: "map", "aria-hidden": "true" }, canvas, frame);
  let world = null;
  let k = 1;
  let kx = 1;

  function draw(placed, engine) {
    world = { placed, engine };
    const tallest = Math.min(TALLEST, root.parentElement.clientHeight - 90);
    k = Math.min(WIDTH / placed.width, tallest / placed.height);
    kx = Math.max(k, Math.min(48 / placed.width, WIDTH / placed.width)); // a long thin graph still shows its branches
    const ratio = devicePixelRatio;
    canvas.width = placed.width * kx * ratio;
    canvas.height = placed.height * k * ratio;
    canvas.style.width = `${placed.width * kx}px`;
    canvas.style.height = `${placed.height * k}px`;
    mark(null, null);
  }

  function mark(found, chosen) {
    if (!world) return;
    const context = canvas.getContext("2d");
    const ratio = devicePixelRatio;
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (const [id, at] of Object.entries(world.placed.nodes)) {
      const step = id[0] === "s" ? world.engine.node(id) : null;
      context.globalAlpha = found && !found.has(id) ? 0.15 : 1;
      context.fillStyle = step ? colourOf(step) : "#9498a0";
      if (id === chosen) context.fillStyle = "#ff3d77";
      const [w, h_] = [Math.max(220 * kx, 2), Math.max(64 * k, id === chosen ? 4 : 1)];
      context.fillRect((at.x * kx - w / 2) * ratio, (at.y * k - h_ / 2) * ratio, w * ratio, h_ * ratio);
    }
  }

  function look({ x, y, width, height }) {
    if (!world) return;
    const { placed } = world;
    const clip = (value, end) => Math.min(Math.max(value, 0), end);
    const [left, right] = [clip(x, placed.width) * kx, clip(x + width, placed.width) * kx];
    const [top, bottom] = [clip(y, placed.height) * k, clip(y + height, placed.height) * k];
    Object.assign(frame.style, { left: `${left}px`, top: `${top}px` });
    Object.assign(frame.style, { width: `${Math.max(right - left, 4)}px`, height: `${Math.max(bottom - top, 4)}px` });
  }

  function drag(event) {
    if (!event.buttons || !world) return;
    const { left, top } = canvas.getBoundingClientRect();
    move((event.clientX - left) / kx, (event.clientY - top) / k);
  }
  root.addEventListener("pointerdown", (event) => {
    root.setPointerCapture(event.pointerId);
    drag(event);
  });
  root.addEventListener("pointermove", drag);
  return { root, draw, look, mark };
}
