// An MCP server that wants a login, and its authorization server, both made with the official TypeScript
// SDK 1.x: its handlers for metadata, registration, PKCE, tokens and revocation, around a provider in memory that has
// refresh tokens and replaces them each time.
//
//   node oauthserver.mjs '{"expires": 3600, "wait": false}'
//
// "expires" is for how many seconds a token is valid. With "wait", a user is not logged in before POST /test/consent. The server says on stderr on which
// port it is. GET /test/counts tells what was asked for; POST /test/revoke revokes all tokens, POST /test/expire all access tokens.
//
// HOLDFAST_NPM names the directory whose node_modules holds the SDK.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.HOLDFAST_NPM, "package.json"));
const express = require("express");
const { z } = require("zod");
const { mcpAuthRouter, getOAuthProtectedResourceMetadataUrl } = require("@modelcontextprotocol/sdk/server/auth/router.js");
const { requireBearerAuth } = require("@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js");
const { InvalidGrantError, InvalidTokenError } = require("@modelcontextprotocol/sdk/server/auth/errors.js");
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");

const { expires = 3600, wait = false } = JSON.parse(process.argv[2] ?? "{}");
const counts = { registered: 0, authorized: 0, codes: 0, refreshed: 0, calls: 0 };
const clients = new Map();
const codes = new Map();
const access = new Map();
const refresh = new Map();
let consent = () => {};
const consented = wait ? new Promise((resolve) => (consent = resolve)) : Promise.resolve();

// give makes a token.
function give(clientId, scopes, resource) {
  const token = randomUUID();
  const next = randomUUID();
  access.set(token, { token, clientId, scopes, resource, expiresAt: Date.now() / 1000 + expires });
  refresh.set(next, { clientId, scopes, resource });
  return { access_token: token, token_type: "bearer", expires_in: expires, refresh_token: next, scope: scopes.join(" ") };
}

const provider = {
  clientsStore: {
    getClient: (id) => clients.get(id),
    registerClient: (client) => {
      counts.registered++;
      clients.set(client.client_id, client);
      return client;
    },
  },
  async authorize(client, params, res) {
    counts.authorized++;
    await consented;
    const code = randomUUID();
    codes.set(code, { client, params });
    const to = new URL(params.redirectUri);
    to.searchParams.set("code", code);
    if (params.state !== undefined) to.searchParams.set("state", params.state);
    res.redirect(to.href);
  },
  async challengeForAuthorizationCode(_client, code) {
    if (!codes.has(code)) throw new InvalidGrantError("unknown code");
    return codes.get(code).params.codeChallenge;
  },
  async exchangeAuthorizationCode(client, code, _verifier, redirectUri, resource) {
    const known = codes.get(code);
    codes.delete(code);
    if (known?.client.client_id !== client.client_id || known.params.redirectUri !== redirectUri) throw new InvalidGrantError("wrong code");
    if (known.params.resource?.href !== resource?.href || resource?.href !== mcpUrl.href) throw new InvalidGrantError("wrong resource");
    counts.codes++;
    return give(client.client_id, known.params.scopes ?? [], resource);
  },
  async exchangeRefreshToken(client, token, scopes, resource) {
    const known = refresh.get(token);
    if (known?.clientId !== client.client_id) throw new InvalidGrantError("the token was revoked");
    if (resource?.href !== mcpUrl.href) throw new InvalidGrantError("wrong resource");
    refresh.delete(token);
    counts.refreshed++;
    return give(client.client_id, scopes ?? known.scopes, resource);
  },
  async verifyAccessToken(token) {
    const known = access.get(token);
    if (!known || known.expiresAt < Date.now() / 1000) throw new InvalidTokenError("unknown or expired");
    return known;
  },
  async revokeToken(_client, { token }) {
    access.delete(token);
    refresh.delete(token);
  },
};

const app = express();
const server = createServer(app);
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const base = new URL(`http://127.0.0.1:${server.address().port}/`);
const mcpUrl = new URL("/mcp", base);

app.use(
  mcpAuthRouter({
    provider,
    issuerUrl: base,
    resourceServerUrl: mcpUrl,
    scopesSupported: ["mcp"],
    // The tests log in often.
    authorizationOptions: { rateLimit: false },
    clientRegistrationOptions: { rateLimit: false },
    tokenOptions: { rateLimit: false },
  }),
);
app.get("/test/counts", (_, res) => void res.json(counts));
app.post("/test/consent", (_, res) => {
  consent();
  res.end();
});
app.post("/test/expire", (_, res) => {
  access.clear();
  res.end();
});
app.post("/test/revoke", (_, res) => {
  access.clear();
  refresh.clear();
  res.end();
});

const sessions = new Map();
const wanted = requireBearerAuth({ verifier: provider, requiredScopes: ["mcp"], resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(mcpUrl) });
app.all("/mcp", wanted, express.json(), async (req, res) => {
  let transport = sessions.get(req.headers["mcp-session-id"]);
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => void sessions.set(id, transport),
    });
    const s = new McpServer({ name: "oauth", version: "1" });
    s.registerTool("echo", { description: "says it again", inputSchema: { text: z.string() } }, async ({ text }) => {
      counts.calls++;
      return { content: [{ type: "text", text }] };
    });
    await s.connect(transport);
  }
  await transport.handleRequest(req, res, req.body);
});
console.error(`listening url=${mcpUrl.href}`);
