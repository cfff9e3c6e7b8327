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
// and the rest stays. Package holdfast/server explains the doors, and
// ARCHITECTURE.md the house.
package holdfast
