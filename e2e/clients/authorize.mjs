// An official TypeScript client meets a server that wants a token: it follows the challenge to
// the authorization server, gets a code where the user is sent, and a token for the code, and calls a
// tool. It reports on stdout, as JSON, where the user was sent and what the tool said:
//
//   node authorize.mjs '{"url": "http://…/mcp", "sdk": 2, "mode": "auto", "tool": "who", "arguments": {}}'
//
// HOLDFAST_NPM names the directory whose node_modules holds the clients.

import { createRequire } from "node:module";
import { join } from "node:path";

const { url, sdk, mode, tool, arguments: args } = JSON.parse(process.argv[2]);
const require = createRequire(join(process.env.HOLDFAST_NPM, "package.json"));
const { Client, StreamableHTTPClientTransport } =
  sdk === 2
    ? require("@modelcontextprotocol/client")
    : {
        ...require("@modelcontextprotocol/sdk/client/index.js"),
        ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
      };

const kept = {};
const report = {};
const authProvider = {
  redirectUrl: "http://127.0.0.1:1/callback",
  clientMetadata: { client_name: "authorize", redirect_uris: ["http://127.0.0.1:1/callback"], token_endpoint_auth_method: "none" },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  redirectToAuthorization: (to) => (report.authorize = String(to)),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
};

function made() {
  const client = new Client({ name: "authorize", version: "1" }, sdk === 2 ? { versionNegotiation: { mode } } : {});
  return { client, transport: new StreamableHTTPClientTransport(new URL(url), { authProvider }) };
}

const first = made();
try {
  await first.client.connect(first.transport);
} catch (error) {
  report.refused = error.message;
}
if (report.authorize) {
  const seen = await fetch(report.authorize, { redirect: "manual" });
  const answer = new URL(seen.headers.get("location")).searchParams;
  await first.transport.finishAuth(sdk === 2 ? answer : answer.get("code"));
  const { client, transport } = made();
  await client.connect(transport);
  report.said = (await client.callTool({ name: tool, arguments: args })).content[0].text;
  await client.close();
}
console.log(JSON.stringify(report));
process.exit(0);
