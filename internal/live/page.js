"use strict";
// Everything that a server or a client said is put in as text, never as HTML.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let source, last, skew = 0, chosen = 0, byHand = false;

function el(name, cls, text) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}
function svg(name, attrs, text) {
  const e = document.createElementNS(SVG, name);
  for (const k in attrs) e.setAttribute(k, attrs[k]);
  if (text !== undefined) e.textContent = text;
  return e;
}
function took(ms) {
  if (ms < 0) ms = 0;
  if (ms < 1000) return Math.round(ms) + " ms";
  if (ms < 60000) return (ms / 1000).toFixed(1) + " s";
  const s = Math.floor(ms / 1000);
  return s < 3600 ? Math.floor(s / 60) + " min " + (s % 60) + " s" : Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
}
const words = (s) => s.replaceAll("_", " ");
const now = () => Date.now() + skew;
const title = (c) => c.tool || c.method;
const who = (c) => [c.principal, c.server && "at " + c.server].filter(Boolean).join(" ") || "–";

// connect asks for the state of the node, with the life of the chosen call.
function connect() {
  if (source) source.close();
  const own = source = new EventSource("/live/events?call=" + chosen);
  own.onmessage = (e) => {
    if (own !== source) return;
    last = JSON.parse(e.data);
    skew = last.at - Date.now();
    if (!chosen && !byHand) {
      const c = (last.calls || []).find((c) => !c.state && c.stream) || (last.calls || []).find((c) => c.stream);
      if (c) return choose(c.id, false);
    }
    show();
  };
  own.onerror = () => {
    if (own !== source) return;
    document.body.classList.add("stale");
    state("bad", last ? "no connection since " + new Date(last.at).toLocaleTimeString() : "no connection");
    if (own.readyState === EventSource.CLOSED) setTimeout(() => own === source && connect(), 2000);
  };
}
function state(cls, text) {
  const s = $("state");
  if (s.textContent !== text) s.textContent = text;
  s.className = "pill " + cls;
}
function choose(id, hand) {
  chosen = id;
  byHand = byHand || hand;
  connect();
}

function show() {
  const v = last;
  document.body.classList.remove("stale");
  state(v.ready ? "bad" : "good", v.ready || "ready");
  $("node").textContent = v.node;
  counted("inflight", v.in_flight, v.in_flight === 1 ? "call in flight" : "calls in flight");
  counted("open", v.open, v.open === 1 ? "session" : "sessions");
  const others = v.others || [];
  counted("count", others.length + 1, others.length ? "nodes" : "node");
  $("nodes").replaceChildren(...[(v.node || "this node") + (v.node ? " (this one)" : "")].concat(others).map((n) => el("li", "mono", n)));
  $("drain").hidden = !v.drain;
  $("more").textContent = v.more ? "and " + v.more + " more in flight, which are not shown" : "";
  const sessions = v.sessions || [];
  $("moresessions").textContent = v.open > sessions.length ? "and " + (v.open - sessions.length) + " more, which are not shown" : "";
  rows($("calls"), v.calls || [], (c) => c.id, callRow, "No call yet.", 7);
  rows($("sessions"), sessions, (s) => s.name, sessionRow, "No session is open.", 6);
  draw();
}

function counted(id, n, what) {
  $(id).textContent = n;
  $(id).nextElementSibling.textContent = what;
}

// rows fills a table, and keeps the focus where it was.
function rows(body, all, key, row, none, columns) {
  const focus = body.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const made = all.map(row);
  if (!made.length) {
    const td = el("td", "dim", none), tr = el("tr");
    td.colSpan = columns;
    tr.append(td);
    made.push(tr);
  }
  body.replaceChildren(...made);
  if (focus) for (const b of body.querySelectorAll("button")) if (b.dataset.key === focus) b.focus({ preventScroll: true });
}
function cell(cls, ...what) {
  const td = el("td", cls);
  td.append(...what);
  return td;
}
const good = { "": "", result: "good" };
function callRow(c) {
  const tr = el("tr", c.id === chosen ? "chosen" : "");
  const b = el("button", "link", title(c));
  b.dataset.key = "c" + c.id;
  b.setAttribute("aria-pressed", c.id === chosen);
  b.onclick = () => choose(c.id, true);
  const p = el("span");
  if (c.total) {
    const bar = el("progress");
    bar.max = c.total;
    bar.value = c.state ? c.total : c.progress;
    bar.setAttribute("aria-label", "progress");
    if (c.state && c.state !== "result") bar.value = c.progress;
    p.append(bar, " ");
  }
  p.append(el("span", "dim", c.message || (c.progress ? String(c.progress) : "")));
  let text = c.state ? words(c.state) : c.reading ? "in flight" : c.stream ? "in flight, nobody reads" : "in flight";
  if (c.task) text += ", a task";
  if (c.handed_off) text += ", handed off";
  const cls = c.state ? (good[c.state] ?? (c.state === "left" ? "" : "bad")) : c.stream && !c.reading ? "" : "run";
  tr.append(cell("", b), cell("", who(c)), cell("", el("span", "pill " + cls, text)), cell("", p),
    cell("num", String(c.entries)), cell("num", String(c.connections)), cell("num", took((c.ended || now()) - c.began)));
  return tr;
}
function sessionRow(s) {
  const tr = el("tr"), act = el("td", "num");
  if (last.actions) {
    const b = el("button", "danger", "End…");
    b.dataset.key = "s" + s.name;
    b.setAttribute("aria-label", "End session " + s.name);
    b.onclick = () => ask("End this session?", "Its calls end with an error, and its client begins a new one.", { action: "end", session: s.name });
    act.append(b);
  }
  const name = el("span", "mono", s.name);
  name.title = s.name;
  tr.append(cell("", name), cell("", s.principal || "–"),
    cell("", [s.server, s.carrier && "(carrier)", s.backend ? "" : "not open"].filter(Boolean).join(" ") || "open"),
    cell("", s.from || "–"), cell("num", took(now() - s.began)), act);
  return tr;
}

// draw draws the life of the chosen call: its log, and the connections that read it.
function draw() {
  const c = last && last.life, can = last && last.actions && c && !c.state && c.stream;
  $("cut").hidden = $("cancel").hidden = !can;
  if (!c) {
    $("life-title").textContent = "The life of a call";
    $("facts").textContent = chosen ? "This call is not kept any more." : "Choose a call in the table below.";
    $("picture").replaceChildren();
    return;
  }
  $("life-title").textContent = "The life of " + title(c);
  const facts = [c.state ? words(c.state) + " after " + took(c.ended - c.began) : "in flight for " + took(now() - c.began),
    c.principal && "called by " + c.principal, c.server && "at " + c.server, "session " + c.session.slice(0, 12) + "…",
    c.entries + (c.entries === 1 ? " entry" : " entries"), c.connections + (c.connections === 1 ? " connection" : " connections"),
    c.from && "taken over from node " + c.from, c.revision && "revision " + c.revision,
    c.hidden && c.hidden + " ticks are left out", c.bars_gone && c.bars_gone + " connections are left out",
    !c.stream && "answered from memory, without a log"].filter(Boolean);
  $("facts").textContent = facts.join(" · ");
  $("picture").replaceChildren(picture(c, facts.join(", ")));
}
function picture(c, label) {
  const bars = c.bars || [], ticks = c.ticks || [];
  const width = Math.max(420, $("picture").clientWidth), left = 150, right = 24, lane = 24, top = 48;
  const height = top + 18 + Math.max(1, bars.length) * lane + 26;
  const from = c.began, late = Math.max(0, ...bars.map((b) => b.went || (c.state ? 0 : now())));
  const to = Math.max(c.state ? c.ended : now(), late, from + 50);
  const x = (t) => left + (width - left - right) * Math.min(1, Math.max(0, (t - from) / (to - from)));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "The life of " + title(c) + ": " + label });
  for (const s of scale(to - from)) {
    root.append(svg("line", { class: "axis", x1: x(from + s), x2: x(from + s), y1: 14, y2: height - 20 }),
      svg("text", { x: x(from + s), y: height - 5, "text-anchor": s ? "middle" : "start" }, took(s)));
  }
  root.append(svg("text", { x: 0, y: top - 10 }, "log"), svg("line", { class: "log", x1: x(from), x2: x(c.state ? c.ended : to), y1: top - 14, y2: top - 14 }));
  for (const t of ticks) {
    const big = t.kind === "response" || t.kind === "request";
    const one = svg("line", { class: "tick t-" + t.kind, x1: x(t.at), x2: x(t.at), y1: top - (big ? 26 : 21), y2: top - (big ? 2 : 7) });
    one.append(svg("title", {}, `entry ${t.seq}: ${t.kind}, after ${took(t.at - from)}`));
    root.append(one);
  }
  if (c.from) {
    const at = x(from);
    root.append(svg("path", { class: "over", d: `M${at} 12 l5 7 l-10 7 l10 7 l-10 7 l5 7` }),
      svg("text", { class: "overtext", x: at + 10, y: 14 }, `taken over from ${c.from}` + (c.first > 1 ? `; entries 1 to ${c.first - 1} were written there` : "")));
  }
  bars.forEach((b, i) => {
    const y = top + 12 + i * lane, end = b.went || (c.state ? c.ended : to), w = Math.max(3, x(end) - x(b.came));
    const rect = svg("rect", { class: "bar", x: x(b.came), y, width: w, height: 13, rx: 3 });
    const how = b.went ? words(b.why) + " at entry " + b.seq : "reads, at entry " + b.seq;
    rect.append(svg("title", {}, `${words(b.door)}: began after entry ${b.after}, ${how}`));
    root.append(svg("text", { x: 0, y: y + 11 }, `${i + 1 + (c.bars_gone || 0)}. ${words(b.door)}`), rect);
    const broke = b.went && b.why !== "finished";
    if (broke) root.append(svg("line", { class: "cut", x1: x(end), x2: x(end), y1: y - 4, y2: y + 17 }));
    const note = (b.after ? `from ${b.after + 1} ` : "") + (b.went ? `to ${b.seq}, ${words(b.why)}` : `to ${b.seq}`);
    const fits = x(end) + 8 + note.length * 6.6 < width, before = x(b.came) - 8 - note.length * 6.6 > left;
    if (fits) root.append(svg("text", { x: x(end) + 8, y: y + 11 }, note));
    else if (before) root.append(svg("text", { x: x(b.came) - 8, y: y + 11, "text-anchor": "end" }, note));
    else root.append(svg("text", { x: x(b.came) + 8, y: y + 11 }, note));
  });
  if (!bars.length) root.append(svg("text", { x: 0, y: top + 23 }, "no connection of its own has read it"));
  if (!c.state) root.append(svg("line", { class: "now", x1: x(to), x2: x(to), y1: 14, y2: height - 20 }));
  return root;
}
// scale returns about six round times.
function scale(all) {
  const steps = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 864e5];
  const step = steps.find((s) => all / s <= 7) || all / 6, at = [];
  for (let t = 0; t <= all * 0.97; t += step) at.push(t);
  return at;
}

// ask has the operator confirm an action, and give the token of the node.
let asked;
function ask(question, text, action) {
  asked = action;
  $("ask-title").textContent = question;
  $("ask-text").textContent = text;
  $("ask-error").textContent = "";
  $("ask").showModal();
  $("token").focus();
}
async function act() {
  $("ask-error").textContent = "";
  try {
    const r = await fetch("/live/action", {
      method: "POST", credentials: "omit", body: JSON.stringify(asked),
      headers: { "Content-Type": "application/json", "Holdfast-Admin-Token": $("token").value },
    });
    if (r.ok) $("ask").close();
    else $("ask-error").textContent = await r.text();
  } catch {
    $("ask-error").textContent = "The node does not answer.";
  }
}
$("yes").onclick = act;
$("token").onkeydown = (e) => { if (e.key === "Enter") { e.preventDefault(); act(); } };
$("cut").onclick = () => ask("Cut the connection?", "The call goes on. Its client is to come back, and misses nothing.", { action: "cut", call: chosen });
$("cancel").onclick = () => ask("Cancel this call?", "Its server is told so. Its client gets no result.", { action: "cancel", call: chosen });
$("drain").onclick = () => ask("Drain this node?", "It hands its sessions over to other nodes, if there are any, and ends.", { action: "drain" });
setInterval(() => { if (last && last.life && !last.life.state && !document.body.classList.contains("stale")) draw(); }, 250);
chosen = Number((location.hash.match(/^#call=(\d+)$/) || [])[1] || 0);
connect();
