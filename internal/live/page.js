"use strict";
// Everything that a server or a client said is put in as text, never as HTML.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let source, last, skew = 0, chosen = "", byHand = false, token = "";

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

// connect asks for the state of the node, with the life of the chosen call. An operator who has given the token has a
// place before others.
function connect() {
  if (source) source.abort();
  const own = source = new AbortController();
  read(own, token ? { "Holdfast-Admin-Token": token } : {}).catch(() => "no connection").then((why) => {
    if (own !== source) return;
    document.body.classList.add("stale");
    state("bad", why + (last ? " since " + new Date(last.at).toLocaleTimeString() : ""));
    setTimeout(() => own === source && connect(), 2000);
  });
}
// read shows what the node sends until it sends no more, and returns why that is.
async function read(own, headers) {
  const r = await fetch("/live/events?call=" + encodeURIComponent(chosen), { signal: own.signal, credentials: "omit", cache: "no-store", headers });
  $("enter").hidden = r.status !== 503;
  if (r.status === 403) token = "";
  if (!r.ok) return { 503: "too many pages are open", 429: "too many wrong tokens came from this address: wait a minute" }[r.status] || "refused";
  const body = r.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await body.read();
    if (done) return "no connection";
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) if (own === source) heard(JSON.parse(text.slice("data: ".length, end)));
  }
}
// heard takes in what the node has sent.
function heard(v) {
  last = v;
  skew = last.at - Date.now();
  const c = byHand ? undefined : pick(last.calls || []);
  if (c && c.uid !== chosen) return choose(c.uid, false);
  show();
}
// pick returns the call that is shown while nobody has chosen one: one in flight, of a tool if there is
// one. What has ended stays for a while.
function pick(calls) {
  const shown = calls.find((c) => c.uid === chosen);
  if (shown && shown.tool && (!shown.state || now() - shown.ended < 10000)) return shown;
  const live = calls.filter((c) => !c.state && c.stream);
  return live.find((c) => c.tool) || live[0] || (shown && shown.tool ? shown : calls.find((c) => c.stream && c.tool)) || shown || calls.find((c) => c.stream);
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
  const v = last, nodes = v.nodes || [], self = nodes.find((n) => n.self) || {};
  document.body.classList.remove("stale");
  state(self.ready ? "bad" : "good", self.ready || "ready");
  $("node").textContent = v.node;
  counted("inflight", v.in_flight, v.in_flight === 1 ? "call in flight" : "calls in flight");
  counted("open", v.open, v.open === 1 ? "session" : "sessions");
  const live = nodes.filter((n) => n.state !== "node_lost" && n.state !== "ended").length;
  counted("count", live, (live === 1 ? "node" : "nodes") + (v.unheard ? "; the calls of " + v.unheard + " are not known, and not counted" : ""));
  $("more").textContent = v.more ? "and " + v.more + " more in flight, which are not shown" : "";
  const sessions = v.sessions || [];
  $("moresessions").textContent = [v.open > sessions.length && "and " + (v.open - sessions.length) + " more, which are not shown",
    v.asleep && "asleep: " + v.asleep + (v.asleep === 1 ? " time" : " times")].filter(Boolean).join("; ");
  $("nodescard").hidden = nodes.length < 2;
  document.body.classList.toggle("alone", nodes.length < 2);
  document.body.classList.toggle("anonymous", ![...(v.calls || []), ...(v.sessions || [])].some((x) => x.principal || x.server));
  $("drain").hidden = nodes.length > 1 || !self.drain;
  rows($("nodes"), nodes, (n) => n.name, nodeRow, "", 7);
  rows($("calls"), v.calls || [], (c) => c.uid, callRow, "No call yet.", 8);
  rows($("sessions"), sessions, (s) => s.name + " " + s.node, sessionRow, "No session is open.", 7);
  draw();
}

// A node that does not answer is not shown as if it did.
const nodeStates = {
  ok: ["good", "answers"], asked: ["", "is asked"], node_silent: ["", "does not answer"], node_lost: ["bad", "lost"], ended: ["", "has ended"], no_details: ["", "no details"],
};
const whyNot = { older_build: "it is of an older build", no_page: "it has no --admin" };
function nodeRow(n) {
  const tr = el("tr"), act = el("td", "num"), st = nodeStates[n.state] || ["", words(n.state)];
  if (n.drain) {
    const b = el("button", "danger", "Drain…");
    b.dataset.key = "n" + n.name;
    b.setAttribute("aria-label", "Drain node " + n.name);
    b.onclick = () => ask("Drain node " + n.name + "?", "It hands its sessions over to other nodes, if there are any, and ends.", { action: "drain", node: n.name });
    act.append(b);
  }
  const told = n.state === "ok";
  const text = n.ready && told ? n.ready : st[1] + (n.why ? ": " + (whyNot[n.why] || n.why) : "");
  tr.append(cell("", el("span", "mono", n.name + (n.self ? " (this one)" : ""))), cell("", n.role || (n.heard ? "both" : "–")),
    cell("", el("span", "pill " + (n.ready && told ? "bad" : st[0]), text)), cell("num", told ? String(n.in_flight) : "–"), cell("num", told ? String(n.open) : "–"),
    cell("num", n.self ? "now" : n.heard ? age(n.heard) : "never"), act);
  return tr;
}
// age says how old something is that was told.
const age = (at) => now() - at < 1500 ? "now" : took(now() - at) + " ago";

function counted(id, n, what) {
  $(id).textContent = n;
  $(id).nextElementSibling.textContent = what;
}

// rows fills a table. What has not changed stays in the document, for who reads it with a screen reader
// or has the focus in it.
function rows(body, all, key, row, none, columns) {
  const focus = body.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const made = all.map((x) => {
    const tr = row(x);
    tr.dataset.row = key(x);
    return tr;
  });
  if (!made.length) {
    const td = el("td", "dim", none), tr = el("tr");
    td.colSpan = columns;
    tr.append(td);
    made.push(tr);
  }
  const old = new Map([...body.children].map((tr) => [tr.dataset.row, tr]));
  const next = made.map((tr) => (tr.dataset.row && old.has(tr.dataset.row) ? patched(old.get(tr.dataset.row), tr) : tr));
  for (const tr of [...body.children]) if (!next.includes(tr)) tr.remove();
  next.forEach((tr, i) => { if (body.children[i] !== tr) body.insertBefore(tr, body.children[i] || null); });
  if (focus && !body.contains(document.activeElement)) for (const b of body.querySelectorAll("button")) if (b.dataset.key === focus) b.focus({ preventScroll: true });
}
// patched puts the cells of a new row that differ into the old one.
function patched(old, tr) {
  old.className = tr.className;
  [...tr.children].forEach((td, i) => { if (!old.children[i].isEqualNode(td)) old.children[i].replaceWith(td); });
  return old;
}
function cell(cls, ...what) {
  const td = el("td", cls);
  td.append(...what);
  return td;
}
const good = { "": "", result: "good" };
const silent = (c) => c.state === "node_silent" || c.state === "node_lost";
function callRow(c) {
  const mine = last.life && last.life.uid === c.uid;
  const tr = el("tr", mine ? "chosen" : "");
  const b = el("button", "link", title(c));
  b.dataset.key = "c" + c.uid;
  b.setAttribute("aria-pressed", Boolean(mine));
  b.onclick = () => choose(c.uid, true);
  const p = el("span");
  if (c.total) {
    const bar = el("progress");
    bar.max = c.total;
    bar.value = c.state === "result" ? c.total : c.progress;
    bar.setAttribute("aria-label", "progress");
    p.append(bar, " ");
  }
  p.append(el("span", "dim", c.message || (c.progress ? String(c.progress) : "")));
  let text = c.state ? words(c.state) : c.reading ? "in flight" : c.stream ? "in flight, nobody reads" : "in flight";
  if (silent(c)) text += ", known " + age(c.heard);
  if (c.task) text += ", a task";
  if (c.handed_off) text += ", handed off";
  if (c.attached) text += ", attached: " + c.attached;
  if (c.from) text += ", taken over";
  const cls = c.state ? (good[c.state] ?? (c.state === "left" || c.state === "node_silent" ? "" : "bad")) : c.stream && !c.reading ? "" : "run";
  tr.append(cell("", b), cell("c-who", who(c)), nodeCell(c), cell("", el("span", "pill " + cls, text)), cell("", p),
    cell("num", String(c.entries)), cell("num", String(c.connections)), cell("num", took((c.ended || (silent(c) ? c.heard : now())) - c.began)));
  return tr;
}
// nodeCell says where something is. The names of nodes differ at their ends.
function nodeCell(c) {
  const td = cell("mono c-node", c.node ? "…" + c.node.slice(-8) : "–");
  td.title = c.node;
  if (c.node && c.node.length <= 12) td.textContent = c.node;
  return td;
}
function sessionRow(s) {
  const tr = el("tr"), act = el("td", "num");
  if (last.actions && !s.state) {
    const b = el("button", "danger", "End…");
    b.dataset.key = "s" + s.name;
    b.setAttribute("aria-label", "End session " + s.name);
    b.onclick = () => ask("End this session?", "Its calls end with an error, and its client begins a new one.", { action: "end", node: s.node, session: s.name });
    act.append(b);
  }
  const name = el("span", "mono", s.name);
  name.title = s.name;
  tr.append(cell("", name), cell("c-who", s.principal || "–"), nodeCell(s),
    cell("", s.state ? words(s.state) + ", known " + age(s.heard) : [s.server, s.carrier && "(carrier)", s.backend ? "" : "not open"].filter(Boolean).join(" ") || "open"),
    cell("c-node", s.from || "–"), cell("num", took(now() - s.began)), act);
  return tr;
}

// draw draws the life of the chosen call: its log, and the connections that read it.
function draw() {
  const c = last && last.life, can = last && last.actions && c && !c.state;
  $("cut").hidden = !can || !c.stream;
  $("cancel").hidden = !can;
  if (!c) {
    $("life-title").textContent = "The life of a call";
    $("facts").textContent = chosen ? "This call is not kept any more." : last && (last.calls || []).length ? "Choose a call in the table below."
      : "No call yet. The next one that a client makes is drawn here while it runs.";
    tell("", []);
    $("picture").replaceChildren();
    return;
  }
  $("life-title").textContent = "The life of " + title(c);
  const facts = [silent(c) ? words(c.state) + ": was in flight for " + took(c.heard - c.began) + ", known " + age(c.heard)
    : c.state ? words(c.state) + " after " + took(c.ended - c.began) : "in flight for " + took(now() - c.began),
    c.principal && "called by " + c.principal, c.server && "at " + c.server, "session " + c.session.slice(0, 12) + "…",
    c.entries + (c.entries === 1 ? " entry" : " entries"), c.connections + (c.connections === 1 ? " connection" : " connections"),
    c.node && "on node " + c.node, c.from && "taken over from node " + c.from, c.revision && "revision " + c.revision,
    c.hidden && c.hidden + " ticks are left out", c.bars_gone && c.bars_gone + " connections are left out",
    !c.stream && "answered from memory, without a log"].filter(Boolean);
  $("facts").textContent = facts.join(" · ");
  tell(story(c), c.bars || [], c.bars_gone || 0);
  $("picture").replaceChildren(picture(c, facts.join(", ")));
}
// tell puts the story of a call into words, and what the bars show into a list for screen readers.
function tell(text, bars, gone) {
  if ($("story").textContent !== text) $("story").textContent = text;
  rows($("readers"), bars.map((b, i) => ({ b, i: i + 1 + gone })), (r) => String(r.i), ({ b, i }) => {
    const tr = el("tr");
    tr.append(cell("", String(i)), cell("", doors[b.door] || words(b.door)), cell("", noteOf(b) || "nothing yet"), cell("", b.went ? words(b.why) : "reads"));
    return tr;
  }, "None.", 4);
}
// story says in a sentence what became of a call whose connection was cut.
function story(c) {
  const bars = c.bars || [], cuts = bars.filter((b) => b.why === "cut").length, reads = bars.some((b) => !b.went);
  if (!c.stream || !bars.length || silent(c)) return "";
  const done = bars.some((b) => b.why === "finished");
  if (c.state && !done && !reads) return "Nobody has read it to its end yet. It is kept for its client to come back.";
  const over = c.from ? " Another node has taken it over." : "";
  if (!cuts) return over.trim();
  const often = "Its connection was cut " + (cuts === 1 ? "once" : cuts === 2 ? "twice" : cuts + " times") + ". ";
  if (done) return often + "The call went on meanwhile, and its client has read it to the end." + over;
  return often + (reads ? "The call went on meanwhile, and its client reads on where it had stopped." : "The call goes on, and what its server says is kept until the client is back.") + over;
}
// By what a connection came to a call.
const doors = {
  post: "request", last_event_id: "resumed, event id", stream_url: "resumed, stream URL", session_id: "resumed, session id", resume_token: "resumed, token",
  idempotency_key: "resumed, same key", listen: "listens", input: "input", task: "task", sse: "HTTP+SSE", websocket: "WebSocket", pipe: "pipe",
};
// noteOf says which entries a connection has read.
const noteOf = (b) => b.seq > b.after ? (b.seq > b.after + 1 ? "entries " + (b.after + 1) + " to " + b.seq : "entry " + b.seq) : "";
// gaps returns when nobody read a call, since its first connection.
function gaps(bars, end) {
  const all = [];
  let at = Infinity;
  for (const b of [...bars].sort((a, b) => a.came - b.came)) {
    if (b.came > at) all.push([at, Math.min(b.came, end)]);
    at = Math.max(at === Infinity ? 0 : at, b.went || Infinity);
  }
  if (at < end) all.push([at, end]);
  return all.filter(([from, to]) => to > from);
}
function picture(c, label) {
  const bars = c.bars || [], ticks = c.ticks || [], moves = c.moves || [];
  const width = Math.max(340, $("picture").clientWidth), left = width < 560 ? 142 : 170, right = 24, lane = 24, top = 48;
  const height = top + 18 + Math.max(1, bars.length) * lane + 26;
  const open = silent(c) ? c.heard : now(); // to when something is known of a call that has not ended
  const from = c.began, end = c.state && !silent(c) ? c.ended : open, late = Math.max(0, ...bars.map((b) => b.went || (c.state ? 0 : open)));
  const to = Math.max(end, late, from + 50);
  const x = (t) => left + (width - left - right) * Math.min(1, Math.max(0, (t - from) / (to - from)));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "The life of " + title(c) + ": " + label });
  for (const [a, b] of c.bars_gone ? [] : gaps(bars, end)) {
    const kept = ticks.filter((t) => t.at > a && t.at <= b).length, wide = x(b) - x(a);
    const note = ["nobody reads" + (kept ? ", " + kept + " kept" : ""), kept ? kept + " kept" : "nobody", ""].find((n) => n.length * 6.6 < wide);
    root.append(svg("rect", { class: "gap", x: x(a), y: 14, width: wide, height: height - 34 }), svg("text", { class: "gaptext", x: (x(a) + x(b)) / 2, y: height - 25, "text-anchor": "middle" }, note));
  }
  for (const s of scale(to - from, (width - left - right) / 80)) {
    root.append(svg("line", { class: "axis", x1: x(from + s), x2: x(from + s), y1: 14, y2: height - 20 }),
      svg("text", { x: x(from + s), y: height - 5, "text-anchor": s ? "middle" : "start" }, took(s)));
  }
  root.append(svg("text", { x: 0, y: top - 10 }, "log"), svg("line", { class: "log", x1: x(from), x2: x(end), y1: top - 14, y2: top - 14 }));
  for (const t of ticks) {
    const big = t.kind === "response" || t.kind === "request";
    const one = svg("line", { class: "tick t-" + t.kind, x1: x(t.at), x2: x(t.at), y1: top - (big ? 26 : 21), y2: top - (big ? 2 : 7) });
    one.append(svg("title", {}, `entry ${t.seq}: ${t.kind}, after ${took(t.at - from)}`));
    root.append(one);
  }
  for (const m of moves) {
    const at = x(m.at), gone = ticks.filter((t) => t.at < m.at).pop(), before = bars.filter((b) => b.came < m.at).map((b) => b.went);
    const since = Math.max(gone ? gone.at : from, ...before.filter((t) => t && t <= m.at));
    if (!m.unknown && m.at > since) root.append(svg("line", { class: "break", x1: x(since), x2: at, y1: top - 14, y2: top - 14 }));
    const note = `taken over from ${m.from}` + (m.unknown && m.first > 1 ? `; entries 1 to ${m.first - 1} were written there` : "");
    const fits = at + 10 + note.length * 6.6 < width;
    root.append(svg("path", { class: "over", d: `M${at} 12 l5 7 l-10 7 l10 7 l-10 7 l5 7` }),
      svg("text", { class: "overtext", x: fits ? at + 10 : at - 10, y: 14, "text-anchor": fits ? "start" : "end" }, note));
  }
  bars.forEach((b, i) => {
    const y = top + 12 + i * lane, end = b.went || (c.state && !silent(c) ? c.ended : to), w = Math.max(3, x(end) - x(b.came));
    const rect = svg("rect", { class: "bar", x: x(b.came), y, width: w, height: 13, rx: 3 });
    const how = b.went ? words(b.why) + " at entry " + b.seq : "reads, at entry " + b.seq, door = doors[b.door] || words(b.door);
    rect.append(svg("title", {}, `${door}: began after entry ${b.after}, ${how}`));
    root.append(svg("text", { x: 0, y: y + 11 }, `${i + 1 + (c.bars_gone || 0)}. ${door}`), rect);
    const broke = b.went && b.why !== "finished";
    if (broke) root.append(svg("line", { class: "cut", x1: x(end), x2: x(end), y1: y - 4, y2: y + 17 }));
    const note = [noteOf(b), b.went && words(b.why)].filter(Boolean).join(", ");
    const fits = x(end) + 8 + note.length * 6.6 < width, before = x(b.came) - 8 - note.length * 6.6 > left;
    if (fits) root.append(svg("text", { x: x(end) + 8, y: y + 11 }, note));
    else if (before) root.append(svg("text", { x: x(b.came) - 8, y: y + 11, "text-anchor": "end" }, note));
    else if (note.length * 6.6 < w - 16) root.append(svg("text", { class: "onbar", x: x(b.came) + 8, y: y + 11 }, note));
  });
  if (!bars.length) root.append(svg("text", { x: 0, y: top + 23 }, "no connection of its own has read it"));
  if (!c.state) root.append(svg("line", { class: "now", x1: x(to), x2: x(to), y1: 14, y2: height - 20 }));
  return root;
}
// scale returns some round times, of at most most.
function scale(all, most) {
  const steps = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 864e5];
  const step = steps.find((s) => all / s <= Math.min(7, most)) || all / 6, at = [];
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
  if (asked.action === "enter") {
    token = $("token").value;
    $("ask").close();
    return connect();
  }
  try {
    const r = await fetch("/live/action", {
      method: "POST", credentials: "omit", body: JSON.stringify(asked),
      headers: { "Content-Type": "application/json", "Holdfast-Admin-Token": $("token").value },
    });
    if (r.ok) {
      token = $("token").value;
      $("ask").close();
    }
    else $("ask-error").textContent = await r.text();
  } catch {
    $("ask-error").textContent = "The node does not answer.";
  }
}
$("yes").onclick = act;
$("token").onkeydown = (e) => { if (e.key === "Enter") { e.preventDefault(); act(); } };
$("cut").onclick = () => ask("Cut the connection?", "The call goes on. Its client is to come back, and misses nothing.", { action: "cut", call: last.life.uid });
$("cancel").onclick = () => ask("Cancel this call?", "Its server is told so, and its client that an operator has cancelled it.", { action: "cancel", call: last.life.uid });
$("enter").onclick = () => ask("Too many pages are open", "With the token this page gets a place. The oldest page without it is sent away.", { action: "enter" });
$("drain").onclick = () => ask("Drain this node?", "It hands its sessions over to other nodes, if there are any, and ends.", { action: "drain" });
setInterval(() => { if (last && last.life && !last.life.state && !document.body.classList.contains("stale")) draw(); }, 250);
chosen = decodeURIComponent((location.hash.match(/^#call=([^&]+)$/) || [])[1] || "");
byHand = chosen !== "";
connect();
