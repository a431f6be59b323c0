// Places nodes and edges of a graph in layers, with dagre, piece by piece: dagre is recursive, and lets long graphs drift.
import dagre from "@dagrejs/dagre";

export const NODE = { width: 248, height: 74 };
export const PORT = { width: 200, height: 40 };
const STRAIGHT = 6; // the weight of edges between steps that run one after the other
const [LEAST, MOST] = [16, 240]; // nodes of a piece
const [BELOW, MARGIN] = [46, 40]; // pixels between layers, and around it all

const sizeOf = (id) => (id[0] === "s" ? NODE : PORT);

/** nodes: ids; edges: [from, to], each pair once. Gives {nodes: {id: {x, y}}, edges: [points], width, height}; x and y are
 *  centres, edges are in the order of those given. */
export function place({ nodes, edges }) {
  const order = inOrder(nodes, edges);
  const turn = new Map(order.map((id, i) => [id, i]));
  const at = {};
  const lines = new Map();
  const known = new Map();
  let bottom = MARGIN - BELOW;
  for (const [start, end] of pieces(order, edges, turn)) {
    const inside = (id) => turn.get(id) >= start && turn.get(id) < end;
    const own = edges.filter(([from, to]) => inside(to) && turn.get(from) < end);
    const joints = [...new Set(own.map(([from]) => from).filter((id) => !inside(id)))];
    const graph = arrange([...joints, ...order.slice(start, end)], own, known);
    const placed = order.slice(start, end).map((id) => [id, graph.node(id)]);
    // what comes from above stays where it is: the piece moves to it
    const across = joints.length ? joints.reduce((sum, id) => sum + at[id].x - graph.node(id).x, 0) / joints.length : 0;
    const down = bottom + BELOW - Math.min(...placed.map(([id, p]) => p.y - sizeOf(id).height / 2));
    for (const [id, p] of placed) at[id] = { x: p.x + across, y: p.y + down };
    for (const [from, to] of own) {
      const points = graph.edge(from, to).map((p) => [p.x + across, p.y + down]);
      if (!inside(from)) points[0] = [at[from].x, at[from].y + sizeOf(from).height / 2];
      lines.set(`${from} ${to}`, points);
    }
    bottom = Math.max(...placed.map(([id]) => at[id].y + sizeOf(id).height / 2));
  }
  return framed(at, edges.map(([from, to]) => lines.get(`${from} ${to}`) ?? straight(at[from], at[to])), bottom);
}

/** Where dagre puts the nodes of a piece and the points of its edges. Networks repeat themselves: pieces of one shape are
 *  placed once, and look alike. */
function arrange(nodes, edges, known) {
  const number = new Map(nodes.map((id, i) => [id, i]));
  const pairs = edges.map(([from, to]) => [number.get(from), number.get(to)]);
  const key = `${nodes.map((id) => (id[0] === "s" ? "s" : "p")).join("")} ${pairs.join(" ")}`;
  if (!known.has(key)) known.set(key, dagrePlaces(nodes.map(sizeOf), pairs));
  const graph = known.get(key);
  const line = new Map(edges.map(([from, to], i) => [`${from} ${to}`, graph.edge(...pairs[i]).points]));
  return { node: (id) => graph.node(number.get(id)), edge: (from, to) => line.get(`${from} ${to}`) };
}

function dagrePlaces(sizes, pairs) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 26, edgesep: 14, ranksep: BELOW, ranker: "tight-tree" });
  graph.setDefaultEdgeLabel(() => ({}));
  sizes.forEach((size, i) => graph.setNode(i, { ...size }));
  for (const [from, to] of pairs) graph.setEdge(from, to, { weight: to - from === 1 ? STRAIGHT : 1 });
  dagre.layout(graph);
  return graph;
}

/** The nodes so that edges lead forward, in the order of the run where that leaves a choice; inputs come before their first
 *  reader, outputs behind what writes them. */
function inOrder(nodes, edges) {
  const number = (id) => +id.slice(1);
  const key = new Map(nodes.map((id) => [id, id[0] === "s" ? number(id) : id[0] === "i" ? Infinity : -1]));
  for (const [from, to] of edges) {
    if (from[0] === "i" && to[0] === "s") key.set(from, Math.min(key.get(from), number(to) - 0.5));
    if (to[0] === "o" && from[0] === "s") key.set(to, Math.max(key.get(to), number(from) + 0.5));
  }
  const missing = new Map(nodes.map((id) => [id, 0]));
  const next = new Map(nodes.map((id) => [id, []]));
  for (const [from, to] of edges) {
    missing.set(to, missing.get(to) + 1);
    next.get(from).push(to);
  }
  const waiting = new Set([...nodes].sort((a, b) => key.get(a) - key.get(b)));
  const found = [];
  while (waiting.size) {
    let id = null;
    for (const one of waiting) if (missing.get(one) <= 0 && ((id = one), true)) break;
    id ??= waiting.values().next().value; // a circle, of a part that a script runs twice
    waiting.delete(id);
    found.push(id);
    for (const to of next.get(id)) missing.set(to, missing.get(to) - 1);
  }
  return found;
}

/** [start, end) of pieces: cut where a single node is all that is read further on; where there is none, at the best place. */
function pieces(order, edges, turn) {
  const until = order.map((_, i) => i);
  for (const [from, to] of edges) until[turn.get(from)] = Math.max(until[turn.get(from)], turn.get(to));
  const change = new Array(order.length + 1).fill(0);
  until.forEach((end, i) => ((change[i] += 1), (change[end] -= 1)));
  let alive = 0;
  const open = order.map((_, i) => (alive += change[i])); // nodes up to i that are read behind it
  const found = [];
  for (let start = 0; start < order.length; ) {
    const last = Math.min(start + MOST, order.length);
    let end = order.length - start > MOST ? 0 : order.length;
    for (let i = start + LEAST; i < last && order.length - i > LEAST; i += 1) {
      if (open[i - 1] <= 1) [end, i] = [i, last];
      else if (order.length - start > MOST && i > start + MOST / 2 && (!end || open[i - 1] < open[end - 1])) end = i;
    }
    found.push([start, end || last]);
    start = end || last;
  }
  return found;
}

const straight = (from, to) => [[from.x, from.y], [(from.x + to.x) / 2, (from.y + to.y) / 2], [to.x, to.y]];

/** Moves all so that it begins at the margin. */
function framed(at, lines, bottom) {
  const ids = Object.keys(at);
  let [left, right] = [Infinity, 0];
  const reach = (from, to) => ([left, right] = [Math.min(left, from), Math.max(right, to)]);
  for (const id of ids) reach(at[id].x - sizeOf(id).width / 2, at[id].x + sizeOf(id).width / 2);
  for (const points of lines) for (const p of points) reach(p[0], p[0]);
  left -= MARGIN;
  for (const id of ids) at[id].x -= left;
  for (const points of lines) for (const p of points) p[0] -= left;
  return { nodes: at, edges: lines, width: ids.length ? right - left + MARGIN : 1, height: ids.length ? bottom + MARGIN : 1 };
}

/** The same, later; in this thread where the browser refuses workers (frames without rights). */
export function placeLater(graph, script) {
  return new Promise((done) => {
    const here = () => done(place(graph));
    let url;
    try {
      url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      const worker = new Worker(url);
      worker.onmessage = (event) => {
        worker.terminate();
        URL.revokeObjectURL(url);
        done(event.data);
      };
      worker.onerror = here;
      worker.postMessage(graph);
    } catch {
      here();
    }
  });
}
