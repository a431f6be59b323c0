"use strict";
const LABELS = [...document.querySelectorAll("th")].map((th) => th.textContent);
const $ = (id) => document.getElementById(id);
let before = null;

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function duration(seconds, open) {
  if (seconds === null) return "–";
  const text = seconds < 1 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
  return open ? `> ${text}` : text;
}

function uptime(seconds) {
  const [d, h, m] = [seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60].map(Math.floor);
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min` : `${Math.floor(seconds)} s`;
}

function nameOf(model) {
  const cell = element("td"), inner = element("div");
  if (model.explorer) {
    const link = element("a", model.name);
    link.href = `explorer/${encodeURIComponent(model.name)}/${encodeURIComponent(model.version)}`;
    inner.append(link);
  } else inner.append(element("span", model.name));
  if (model.version) inner.append(element("span", ` ${model.version}${model.latest ? "" : " (older)"}`, "soft"));
  cell.append(inner);
  return cell;
}

function stateOf(model) {
  const cell = element("td");
  const inner = element("div", undefined, "reason");
  inner.append(element("span", model.state.toLowerCase(), model.state === "READY" ? "good" : "bad"));
  inner.append(element("span", ` ${model.how || model.reason}`, "soft"));
  cell.append(inner);
  return cell;
}

function batchesOf(model) {
  const cell = element("td"), inner = element("div");
  const most = Math.max(...model.batches.map((b) => b.runs));
  for (const { rows, runs } of model.batches) {
    const line = element("div", undefined, "batch"), bar = element("i"), space = element("span");
    bar.dataset.w = Math.round(10 * runs / most);
    space.append(bar);
    line.append(element("span", rows, "n"), space, element("span", `${runs} ${runs === 1 ? "run" : "runs"}`, "soft"));
    inner.append(line);
  }
  if (!model.batches.length) inner.append(element("span", "–", "soft"));
  cell.append(inner);
  return cell;
}

function row(model, rate) {
  const made = element("tr");
  const faults = Object.entries(model.faults).map(([fault, count]) => `${count} ${fault}`).join(", ");
  made.append(nameOf(model), stateOf(model),
    element("td", model.requests, "n"), element("td", rate, "n"),
    element("td", duration(model.p50, model.p50_open), "n"), element("td", duration(model.p99, model.p99_open), "n"),
    element("td", model.waiting, "n"), batchesOf(model), element("td", faults || "–", faults ? "bad" : "soft"));
  [...made.children].forEach((cell, i) => { cell.dataset.label = LABELS[i]; });
  return made;
}

function show(data) {
  const rates = new Map();
  if (before) for (const m of before.models) rates.set(`${m.name}\n${m.version}`, m.requests);
  const seconds = before ? data.seconds - before.seconds : 0;
  $("models").replaceChildren(...data.models.map((m) => {
    const last = rates.get(`${m.name}\n${m.version}`);
    const known = seconds > 0 && last !== undefined && last <= m.requests;
    return row(m, known ? ((m.requests - last) / seconds).toPrecision(3) : "–");
  }));
  $("none").hidden = data.models.length > 0;
  $("name").textContent = document.title = data.name;
  $("state").textContent = data.ready ? "ready" : "not ready";
  $("state").className = `badge ${data.ready ? "good" : "bad"}`;
  $("facts").textContent =
    `Pelton ${data.version} · up ${uptime(data.seconds)} · requests under way: ${data.under_way}`;
  before = data;
  document.documentElement.dataset.ready = "models";
}

async function poll() {
  try {
    const answer = await fetch("page.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    $("state").textContent = `no answer: ${error.message}`;
    $("state").className = "badge bad";
  }
  setTimeout(poll, 1000);
}
poll();
