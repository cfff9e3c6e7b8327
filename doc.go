// Package holdfast serves the Model Context Protocol so that calls survive: a call is not
// lost, run twice or left hanging when a connection is cut, a server restarts or a node is
// lost.
//
// # Server
//
// A server built with the official go-sdk stays as it is. Its handler,
//
//	handler := mcp.NewStreamableHTTPHandler(getServer, nil)
//
// becomes
//
//	handler := holdfast.NewHandler(getServer, nil)
//
// Clients need no change, and keep their sessions: they resume with the means of the protocol, such
// as Last-Event-ID. docs/go-sdk.md has the counterpart of each option of the go-sdk's handler.
// [NewBackendHandler] serves other backends: commands that speak MCP on stdio, or functions that
// answer raw messages. [Options] has the limits, the store, authorization and webhooks. If the
// outcome of a call cannot be known, because its server was lost while it ran, the call fails with
// an error that says so.
//
// # Client
//
// An mcp.Client connects over [NewClientTransport] in the place of an
// mcp.StreamableClientTransport. Its calls then survive cut connections too, as far
// as the server, which may be any MCP server, offers a way to resume them.
// [OutcomeUnknown] reports whether a call that failed may have run.
//
// # More packages
//
// holdfast/engine opens stores that outlive the process, and that several nodes share; a program imports the engines
// that it needs. holdfast/metrics counts calls for Prometheus, and holdfast/traces makes spans for OpenTelemetry.
// holdfast/backend is the contract of a backend. holdfast/client is a client for raw messages. docs/versions.md in
// the repository has the promises of versions, and ARCHITECTURE.md explains the inside.
package holdfast
