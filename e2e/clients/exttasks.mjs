// The requester of @modelcontextprotocol/ext-tasks calls tools that become tasks, over the
// TypeScript client 2.x, and reports on stdout, as JSON, what came of each:
//
//   node exttasks.mjs '{"url": "http://…/mcp"}'
//
// It answers the question of a task with {"name": "Ada"}.
//
// HOLDFAST_NPM names the directory whose node_modules holds both.

import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { url } = JSON.parse(process.argv[2]);
const modules = join(process.env.HOLDFAST_NPM, "node_modules");
const load = (file) => import(pathToFileURL(join(modules, "@modelcontextprotocol", file)).href);
const { Client, StreamableHTTPClientTransport } = await load("client/dist/index.mjs"); // that of the requester
const { createTaskSessionFromClient, resultFromTaskOutcome } = await load("ext-tasks/dist/client/index.js");

const clientInfo = { name: "exttasks", version: "1" };
const clientCapabilities = { elicitation: { form: {} } };
const protocolVersion = "2026-07-28";
let count = 0;

// rawDispatch makes a request as it is, because the client knows no results of type "task".
async function rawDispatch(request, options = {}) {
  const { method, params } = request;
  const answer = await fetch(url, {
    method: "POST",
    signal: options.signal,
    headers: {
      ...options.context?.headers,
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": protocolVersion,
      "Mcp-Method": method,
      "Mcp-Name": params.taskId ?? params.name,
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: `raw-${++count}`, method, params }),
  });
  const text = await answer.text();
  const last = answer.headers.get("content-type").startsWith("text/event-stream")
    ? text.split("\n").findLast((line) => line.startsWith("data: ")).slice(6)
    : text;
  const m = JSON.parse(last);
  return m.error ? { kind: "error", error: m.error } : { kind: "result", result: m.result };
}

async function open() {
  const capabilities = { ...clientCapabilities, extensions: { "io.modelcontextprotocol/tasks": {} } };
  const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: { pin: protocolVersion } } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const session = createTaskSessionFromClient(client, {
    endpointId: "holdfast",
    rawDispatch,
    v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
    onInputRequest: async () => ({ action: "accept", content: { name: "Ada" } }),
  });
  return { client, session };
}

const { client, session } = await open();
const said = (outcome) => resultFromTaskOutcome(outcome).content.map((c) => c.text).join("");
const report = {};

// settled calls a tool, and says how: what kind of execution it was, and its result.
async function settled(name, args) {
  const x = await session.callTool(name, args);
  const { outcome } = await x.settle();
  return `${x.kind} ${outcome.status} ${said(outcome)}`;
}

const steps = {
  immediate: () => settled("echo", { message: "hi" }),
  slow: () => settled("slow", { ms: 1500 }),
  input: () => settled("slow", { ms: 1500, ask: true }),
  asked: () => settled("ask", {}),
  failure: async () => {
    const x = await session.callTool("slow", { ms: 1500, fail: true });
    const { outcome } = await x.settle();
    return `${x.kind} ${outcome.status} ${resultFromTaskOutcome(outcome).isError}`;
  },
  cancelled: async () => {
    const x = await session.callTool("wait", { id: "exttasks", ms: 60000 });
    await x.cancel();
    const { outcome } = await x.settle();
    for (let i = 0; i < 1000; i++) {
      if ((await settled("cancelled", { id: "exttasks" })).endsWith(" yes")) break;
      await after(20);
    }
    return `${x.kind} ${outcome.status} ${await settled("cancelled", { id: "exttasks" })}`;
  },
  resumed: async () => {
    const x = await session.callTool("slow", { ms: 2500 });
    let reference;
    await x.handoff((r) => {
      reference = JSON.parse(JSON.stringify(r));
    });
    const other = await open();
    const again = await other.session.resumeTask(reference);
    const { outcome } = await again.settle();
    await other.client.close();
    return `${again.kind} ${outcome.status} ${said(outcome)}`;
  },
};
for (const [name, step] of Object.entries(steps)) {
  report[name] = await step().catch((error) => `error ${error.code ?? ""} ${error.message}`);
}
console.log(JSON.stringify(report));
await session.close();
await client.close();
process.exit(0);
