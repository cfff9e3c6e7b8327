// Calls tools through one of the official TypeScript clients and reports, as JSON
// on stdout, everything that the transport heard about each call.
//
//   node call.mjs '{"sdk": 1, "url": "http://…/mcp", "calls": [{"name": …, "arguments": …}]}'
//
// Each of the report's calls has either result or error, and heard: "progress N"
// and "response" in the order of arrival.
//
// sdk       1: @modelcontextprotocol/sdk; 2: @modelcontextprotocol/client
// door      "http" (default); "sse", the pair of revision 2024-11-05; "eventsource",
//           the same pair through a plain EventSource, because the clients' own
//           transport drops the Last-Event-ID header when it reconnects
// revision  what to ask for, in place of the client's own latest
// retries   how often a reconnection may fail; by default the client's own choice
// probe     begin as a client of revision 2026-07-28 does, with server/discover
// answer    what to answer when asked (elicitation)
// timeout   how long a call may take, in ms, before it is cancelled; by default 30,000
// linger    how long the client stays after that, in ms
//
// HOLDFAST_NPM names the directory whose node_modules holds the clients.

import { createRequire } from "node:module";
import { join } from "node:path";

const config = JSON.parse(process.argv[2]);
const require = createRequire(join(process.env.HOLDFAST_NPM, "package.json"));

function load() {
  if (config.sdk === 2) {
    const { Client, SSEClientTransport, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
    return {
      Client,
      SSEClientTransport,
      StreamableHTTPClientTransport,
      elicitation: "elicitation/create",
      call: (client, params, options) => client.callTool(params, options),
    };
  }
  const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
  const { SSEClientTransport } = require("@modelcontextprotocol/sdk/client/sse.js");
  const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { ElicitRequestSchema } = require("@modelcontextprotocol/sdk/types.js");
  return {
    Client,
    SSEClientTransport,
    StreamableHTTPClientTransport,
    elicitation: ElicitRequestSchema,
    call: (client, params, options) => client.callTool(params, undefined, options),
  };
}

// Neither client lets its user choose the revision.
async function fetchOlder(url, init) {
  if (init?.method === "POST" && init.body.includes('"initialize"')) {
    const message = JSON.parse(init.body);
    if (message.method === "initialize") {
      message.params.protocolVersion = config.revision;
      init = { ...init, body: JSON.stringify(message) };
    }
  }
  return fetch(url, init);
}

// A transport for the pair of revision 2024-11-05 as its specification has it.
class EventSourceTransport {
  constructor(url) {
    this.url = url;
  }
  start() {
    const { EventSource } = require("eventsource");
    this.source = new EventSource(this.url);
    this.source.addEventListener("message", (event) => this.onmessage?.(JSON.parse(event.data)));
    this.source.addEventListener("error", (event) => this.onerror?.(new Error(event.message ?? "EventSource error")));
    return new Promise((resolve) => {
      this.source.addEventListener("endpoint", (event) => {
        this.endpoint = new URL(event.data, this.url);
        resolve();
      });
    });
  }
  async send(message) {
    const response = await fetch(this.endpoint, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(message),
    });
    await response.text();
    if (!response.ok) {
      throw new Error(`POST: ${response.status}`);
    }
  }
  async close() {
    this.source.close();
    this.onclose?.();
  }
}

function newTransport() {
  const url = new URL(config.url);
  if (config.door === "eventsource") {
    return new EventSourceTransport(url);
  }
  const options = {};
  if (config.revision) {
    options.fetch = fetchOlder;
  }
  if (config.door === "sse") {
    return new sdk.SSEClientTransport(url, options);
  }
  if (config.retries) {
    options.reconnectionOptions = {
      initialReconnectionDelay: 50,
      maxReconnectionDelay: 500,
      reconnectionDelayGrowFactor: 1.5,
      maxRetries: config.retries,
    };
  }
  return new sdk.StreamableHTTPClientTransport(url, options);
}

const sdk = load();
const report = { revision: "", asked: [], calls: [], errors: [] };
const transport = newTransport();
const client = new sdk.Client(
  { name: "holdfast-e2e", version: "1.0.0" },
  {
    capabilities: config.answer === undefined ? {} : { elicitation: {} },
    ...(config.probe ? { versionNegotiation: { mode: "auto" } } : {}),
  },
);
client.onerror = (error) => report.errors.push(String(error));
if (config.answer !== undefined) {
  client.setRequestHandler(sdk.elicitation, (request) => {
    report.asked.push(request.params.message);
    return { action: "accept", content: { answer: config.answer } };
  });
}
await client.connect(transport);
report.revision = transport.protocolVersion ?? "";

// From here on every message is noted before the client sees it.
const heard = [];
const onmessage = transport.onmessage;
transport.onmessage = (message, extra) => {
  heard.push(message);
  onmessage(message, extra);
};
const ids = [];
const send = transport.send.bind(transport);
transport.send = (message, options) => {
  if (message.method === "tools/call") {
    ids.push(message.id);
  }
  return send(message, options);
};

const calls = config.calls.map((params) =>
  sdk.call(client, params, { onprogress: () => {}, timeout: config.timeout ?? 30_000 }).then(
    (result) => ({ result }),
    (error) => ({ error: String(error) }),
  ),
);
function about(id, message) {
  if (message.method === "notifications/progress" && message.params.progressToken === id) {
    return [`progress ${message.params.progress}`];
  }
  return message.method === undefined && message.id === id ? ["response"] : [];
}
for (const [i, outcome] of (await Promise.all(calls)).entries()) {
  report.calls.push({ ...outcome, heard: heard.flatMap((message) => about(ids[i], message)) });
}
await new Promise((resolve) => setTimeout(resolve, config.linger ?? 0));
await transport.terminateSession?.();
await client.close();
console.log(JSON.stringify(report));
process.exit(0); // whatever timers the client still holds
