// An official TypeScript client in one of its modes does what it is told to, one thing after the
// other, and reports on stdout, as JSON, which revision was used and what it saw:
//
//   node eras.mjs '{"url": "http://…/mcp", "sdk": 2, "mode": "auto", "checks": {…}}'
//
// sdk 1 is @modelcontextprotocol/sdk, and 2 @modelcontextprotocol/client, whose mode is "auto",
// "legacy", or the revision to be pinned. checks has, by the names of `checks` below, the tool
// to call, its arguments and what its result must say; "seen" in the report has by the same
// names "yes", or what went wrong.
//
// With "tasks" the client of sdk 2 declares that it knows tasks. With "refusable" a client that does
// not get a connection reports the revision "refused", and its error.
//
// If "command" is there, an array, the server is that process, on stdio.
//
// The client answers every question with {"name": "Ada"}, has the root file:///home, and a model
// that says "hello".
//
// HOLDFAST_NPM names the directory whose node_modules holds the clients.

import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";

const config = JSON.parse(process.argv[2]);
const require = createRequire(join(process.env.HOLDFAST_NPM, "package.json"));
const modernKey = "io.modelcontextprotocol/";

const answers = {
  "elicitation/create": () => ({ action: "accept", content: { name: "Ada" } }),
  "sampling/createMessage": () => ({ model: "m", role: "assistant", content: { type: "text", text: "hello" } }),
  "roots/list": () => ({ roots: [{ uri: "file:///home" }] }),
};
const extensions = config.tasks ? { extensions: { "io.modelcontextprotocol/tasks": {} } } : {};
const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {}, ...extensions };
const heard = { logs: [], updated: [], lists: 0 };
const hears = {
  "notifications/message": (n) => heard.logs.push(n.params.data),
  "notifications/resources/updated": (n) => heard.updated.push(n.params.uri),
  "notifications/tools/list_changed": () => heard.lists++,
};

// transportOf makes the transport, of either SDK.
function transportOf(HTTP, Stdio) {
  const [command, ...args] = config.command ?? [];
  return command ? new Stdio({ command, args }) : new HTTP(new URL(config.url));
}

function connected() {
  if (config.sdk === 2) {
    const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
    const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");
    const mode = config.mode === "auto" || config.mode === "legacy" ? config.mode : { pin: config.mode };
    const client = new Client({ name: "eras", version: "1" }, { capabilities, versionNegotiation: { mode } });
    for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, async () => answer());
    for (const [method, hear] of Object.entries(hears)) client.setNotificationHandler(method, hear);
    return { client, transport: transportOf(StreamableHTTPClientTransport, StdioClientTransport) };
  }
  const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
  const types = require("@modelcontextprotocol/sdk/types.js");
  const client = new Client({ name: "eras", version: "1" }, { capabilities });
  client.setRequestHandler(types.ElicitRequestSchema, async () => answers["elicitation/create"]());
  client.setRequestHandler(types.CreateMessageRequestSchema, async () => answers["sampling/createMessage"]());
  client.setRequestHandler(types.ListRootsRequestSchema, async () => answers["roots/list"]());
  client.setNotificationHandler(types.LoggingMessageNotificationSchema, hears["notifications/message"]);
  client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, hears["notifications/resources/updated"]);
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, hears["notifications/tools/list_changed"]);
  return { client, transport: transportOf(StreamableHTTPClientTransport, StdioClientTransport) };
}

const { client, transport } = connected();
await client.connect(transport).catch((error) => {
  if (!config.refusable) throw error;
  console.log(JSON.stringify({ revision: "refused", error: error.message }));
  process.exit(0);
});
const revision = config.sdk === 2 ? client.getNegotiatedProtocolVersion() : transport.protocolVersion;
const modern = revision >= "2026";

const text = (result) => (result.content ?? []).map((c) => c.text ?? "").join("");

// call calls a tool, of either client.
function call(name, args, options = {}, meta) {
  const params = { name, arguments: args, ...(meta && { _meta: meta }) };
  options = { timeout: 30_000, ...options };
  return config.sdk === 2 ? client.callTool(params, options) : client.callTool(params, undefined, options);
}

// says calls the tool of a check, and looks at what it says.
async function says(c, options, meta) {
  const said = text(await call(c.tool, c.arguments, options, meta));
  return said.includes(c.want) ? "yes" : `it says ${JSON.stringify(said)}`;
}

// until waits until something is so.
async function until(c, what, is) {
  for (const end = Date.now() + c.patience; Date.now() < end; ) {
    if (await is()) return "yes";
    await after(20);
  }
  return `no ${what}`;
}

const checks = {
  list: async () => ((await client.listTools()).tools.length > 0 ? "yes" : "no tools"),
  call: (c) => says(c),
  elicitation: (c) => says(c),
  sampling: (c) => says(c),
  roots: (c) => says(c),
  header: (c) => says(c),
  meta: (c) => says(c, {}, { traceparent: c.want }),
  progress: async (c) => {
    const steps = [];
    await call(c.tool, c.arguments, { onprogress: (p) => steps.push(p.progress) });
    await after(100); // the client may be told the result first
    const seen = JSON.stringify(steps);
    return seen === c.want || (c.want === "some" && steps.length > 0) ? "yes" : `progress ${seen}`;
  },
  log: async (c) => {
    if (!modern) await client.setLoggingLevel("warning");
    await call(c.tool, c.arguments, {}, modern ? { [`${modernKey}logLevel`]: "warning" } : undefined);
    const seen = await until(c, "message", () => heard.logs.length > 0);
    const all = JSON.stringify(heard.logs);
    return seen === "yes" && all !== c.want ? `messages ${all}` : seen;
  },
  subscription: async (c) => {
    let listen;
    if (modern) {
      listen = await client.listen({ resourceSubscriptions: [c.want] });
      if (!listen.honoredFilter.resourceSubscriptions?.includes(c.want)) return "not acknowledged";
    } else {
      await client.subscribeResource({ uri: c.want });
    }
    await call(c.tool, c.arguments);
    const seen = await until(c, "notification", () => heard.updated.includes(c.want));
    await listen?.close();
    return seen;
  },
  list_changed: async (c) => {
    let listen;
    if (modern) {
      listen = await client.listen({ toolsListChanged: true });
      if (!listen.honoredFilter.toolsListChanged) return "not acknowledged";
    }
    const before = heard.lists;
    await call(c.tool, c.arguments);
    const seen = await until(c, "notification", () => heard.lists > before);
    await listen?.close();
    return seen;
  },
  cancellation: async (c) => {
    const leave = new AbortController();
    const waits = call(c.tool, c.arguments, { signal: leave.signal, onprogress: () => leave.abort("enough") });
    const ended = await waits.then(
      (r) => `it says ${text(r)}`,
      () => "yes",
    );
    if (ended !== "yes") return ended;
    return until(c, "cancellation at the server", async () => text(await call("cancelled", c.arguments)) === "yes");
  },
  ping: async () => (await client.ping(), "yes"),
  failure: async (c) => {
    const r = await call(c.tool, c.arguments);
    return r.isError && text(r).includes(c.want) ? "yes" : `it says ${JSON.stringify(r)}`;
  },
  "unknown tool": async () => {
    try {
      const r = await call("made-up", {});
      return r.isError ? "yes" : `it says ${JSON.stringify(r)}`;
    } catch (error) {
      return error.code === -32602 ? "yes" : `error ${error.code}: ${error.message}`;
    }
  },
  "unknown resource": async () => {
    try {
      return `it says ${JSON.stringify(await client.readResource({ uri: "test://made-up" }))}`;
    } catch (error) {
      return error.code === -32602 || error.code === -32002 ? "yes" : `error ${error.code}: ${error.message}`;
    }
  },
};

const seen = {};
for (const [name, c] of Object.entries(config.checks)) {
  seen[name] = await checks[name](c).catch((error) => `error ${error.code ?? ""}: ${error.message}`);
}
console.log(JSON.stringify({ revision, seen }));
await client.close();
process.exit(0); // a client that was told of an error may hold on to its connections
