// Calls a tool through the official TypeScript client 2.x in one of its modes, and
// reports on stdout, as JSON, which revision was used and what the tool said.
//
//   node eras.mjs '{"url": "http://…/mcp", "mode": "auto", "tool": …, "arguments": …}'
//
// mode is "auto", "legacy", or the revision to be pinned. The client answers every
// question with {"name": "Ada"}.
//
// HOLDFAST_NPM names the directory whose node_modules holds the client.

import { createRequire } from "node:module";
import { join } from "node:path";

const config = JSON.parse(process.argv[2]);
const require = createRequire(join(process.env.HOLDFAST_NPM, "package.json"));
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");

const mode = config.mode === "auto" || config.mode === "legacy" ? config.mode : { pin: config.mode };
const client = new Client(
  { name: "eras", version: "1" },
  { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode } },
);
client.setRequestHandler("elicitation/create", async () => ({ action: "accept", content: { name: "Ada" } }));
await client.connect(new StreamableHTTPClientTransport(new URL(config.url)));
const { tools } = await client.listTools();
const result = await client.callTool({ name: config.tool, arguments: config.arguments });
console.log(
  JSON.stringify({
    revision: client.getNegotiatedProtocolVersion(),
    tools: tools.length,
    text: result.content.map((c) => c.text ?? "").join(""),
  }),
);
await client.close();
