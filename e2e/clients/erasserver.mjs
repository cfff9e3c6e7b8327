// A server made with the official TypeScript SDK 2.x, with the tools that eras_test.go has the
// clients call. It speaks both eras, or 2026-07-28 alone:
//
//   node erasserver.mjs stdio|http both|modern
//
// Over HTTP it says on stderr on which port.
//
// HOLDFAST_NPM names the directory whose node_modules holds the SDK.

import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.HOLDFAST_NPM, "package.json"));
const { McpServer, createMcpHandler, fromJsonSchema, inputRequired, inputResponse } = require("@modelcontextprotocol/server");
const { serveStdio } = require("@modelcontextprotocol/server/stdio");

const [transport, eras] = process.argv.slice(2);
const legacy = eras === "both" ? undefined : "reject";
const watched = "test://watched";
const cancelled = new Set();
let grown = 0;
let http; // the handler

function server() {
  const s = new McpServer(
    { name: "eras", version: "1" },
    { capabilities: { logging: {}, tools: { listChanged: true }, resources: { subscribe: true, listChanged: true } } },
  );
  s.registerResource("watched", watched, { mimeType: "text/plain" }, async () => ({ contents: [{ uri: watched, text: "x" }] }));
  s.server.setRequestHandler("resources/subscribe", async () => ({}));
  s.server.setRequestHandler("resources/unsubscribe", async () => ({}));
  const said = (text) => ({ content: [{ type: "text", text }] });
  const add = (name, properties, run) =>
    s.registerTool(name, { description: name, inputSchema: fromJsonSchema({ type: "object", properties }) }, run);
  const asks = (name, request, read) =>
    add(name, {}, async (_, ctx) => {
      const answer = inputResponse(ctx.mcpReq.inputResponses, "who");
      return answer.kind === "missing" ? inputRequired({ inputRequests: { who: request } }) : said(read(answer));
    });
  const string = { type: "string" };
  const progress = (ctx, progress, total) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    return progressToken === undefined
      ? undefined
      : ctx.mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, total } });
  };

  add("echo", { message: string }, async ({ message }) => said(message));
  add("meta", {}, async (_, ctx) => said(JSON.stringify(ctx.mcpReq._meta ?? {})));
  add("region", { region: { type: "string", "x-mcp-header": "Region" } }, async ({ region }) => said(region));
  add("fail", {}, async () => ({ ...said("no luck"), isError: true }));
  add("count", {}, async (_, ctx) => {
    for (let i = 1; i <= 3; i++) await progress(ctx, i, 3);
    return said("counted");
  });
  add("log", {}, async (_, ctx) => {
    await ctx.mcpReq.log("debug", "low");
    await ctx.mcpReq.log("warning", "high");
    return said("logged");
  });
  const question = inputRequired.elicit({ message: "Who?", requestedSchema: { type: "object", properties: { name: string } } });
  asks("ask", question, (a) => a.content?.name ?? JSON.stringify(a));
  asks(
    "sample",
    inputRequired.createMessage({ messages: [{ role: "user", content: { type: "text", text: "hi" } }], maxTokens: 10 }),
    (a) => JSON.stringify(a),
  );
  asks("roots", inputRequired.listRoots(), (a) => JSON.stringify(a));
  add("wait", { id: string, ms: { type: "integer" } }, async ({ id, ms }, ctx) => {
    await progress(ctx, 1, 2);
    await new Promise((resolve) => {
      ctx.mcpReq.signal.addEventListener("abort", () => resolve(cancelled.add(id)));
      setTimeout(resolve, ms).unref();
    });
    return said("waited");
  });
  const flags = { ms: { type: "integer" }, ask: { type: "boolean" }, fail: { type: "boolean" } };
  add("slow", flags, async ({ ms, ask, fail }, ctx) => {
    const answer = inputResponse(ctx.mcpReq.inputResponses, "who");
    if (answer.kind === "missing") {
      await new Promise((resolve) => setTimeout(resolve, ms));
      if (fail) throw new Error("no luck");
      if (ask) return inputRequired({ inputRequests: { who: question } });
    }
    return said(ask ? answer.content.name : "slept");
  });
  add("cancelled", { id: string }, async ({ id }) => said(cancelled.has(id) ? "yes" : "no"));
  add("touch", {}, async () => {
    http?.notify.resourceUpdated(watched);
    if (!http) await s.server.sendResourceUpdated({ uri: watched });
    return said("touched");
  });
  add("grow", {}, async () => {
    http?.notify.toolsChanged();
    if (!http) add(`grown-${++grown}`, {}, async () => said("new"));
    return said("grown");
  });
  return s;
}

if (transport === "stdio") {
  serveStdio(server, { legacy });
} else {
  http = createMcpHandler(server, { legacy });
  const web = createServer(async (req, res) => {
    const gone = new AbortController();
    res.on("close", () => gone.abort());
    const body = [];
    for await (const chunk of req) body.push(chunk);
    const answer = await http.fetch(
      new Request(`http://${req.headers.host}${req.url}`, {
        method: req.method,
        headers: req.headers,
        body: body.length > 0 ? Buffer.concat(body) : undefined,
        signal: gone.signal,
      }),
    );
    res.writeHead(answer.status, Object.fromEntries(answer.headers));
    res.flushHeaders();
    try {
      for await (const chunk of answer.body ?? []) res.write(chunk);
    } catch {
      // the client has left
    }
    res.end();
  });
  web.listen(0, "127.0.0.1", () => console.error(`on port ${web.address().port}`));
}
