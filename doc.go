// Package holdfast keeps every MCP request alive. It goes under the official
// go-sdk: an mcp.Server stays as it is, and its Streamable HTTP transport becomes
// one on which no call is lost, doubled or hung when a connection is cut,
// wherever it is cut.
//
// Where a server was served with
//
//	handler := mcp.NewStreamableHTTPHandler(getServer, nil)
//
// it is now served with
//
//	handler := holdfast.NewHandler(getServer, nil)
//
// and the rest stays. So it is with an mcp.Client: where it connected over an
// mcp.StreamableClientTransport, it connects over [NewClientTransport], and a call
// that it makes is not lost with a connection, whatever the server is, as far as
// that server lets it.
//
// Packages holdfast/internal/server and holdfast/client explain the two sides, and
// ARCHITECTURE.md the house.
package holdfast
