package sdk

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Most results of tools are texts. The SDK encodes those in three rounds, each of which
// copies the text of the one before, on a stack that grows meanwhile. That is an eighth of
// the cost of a short call. So such results are written here, as the SDK writes them.

// modernOpening is how a modern result begins; the server's Implementation follows.
const modernOpening = `"resultType":"` + protocol.ResultComplete + `","_meta":{"` + protocol.MetaServerInfo + `":`

// textOf returns the response with the result of a tool that has only texts, or false.
func (c *conn) textOf(id []byte, result mcp.Result) (jsonrpc.Message, bool) {
	r, ok := result.(*mcp.CallToolResult)
	if !ok || r == nil || !isText(r) {
		return jsonrpc.Message{}, false
	}
	var info []byte
	if c.modern != nil {
		info = *c.modern.info.Load()
	}
	room := len(`{"jsonrpc":"2.0","id":,"result":{"content":[],"isError":true}}`)
	if c.modern != nil {
		room += len(modernOpening) + len("},")
	}
	raw := make([]byte, 0, textSize(r)+len(id)+len(info)+room)
	raw = append(append(append(raw, `{"jsonrpc":"2.0","id":`...), id...), `,"result":`...)
	from := len(raw)
	raw = append(raw, '{')
	if c.modern != nil { // see [modern.complete]
		raw = append(raw, modernOpening...)
		raw = append(append(raw, info...), "},"...)
	}
	raw = append(raw, `"content":`...)
	for i, content := range r.Content {
		raw = append(append(raw, "[,"[min(i, 1)]), `{"type":"text","text":`...)
		raw = append(appendText(raw, content.(*mcp.TextContent).Text), '}')
	}
	raw = append(raw, ']')
	if r.IsError {
		raw = append(raw, `,"isError":true`...)
	}
	raw = append(raw, "}}"...)
	return jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Result: raw[from : len(raw)-1 : len(raw)-1], Raw: raw}, true
}

// isText reports whether a result has only texts. Legacy clients do not get the resultType
// that the result of an upstream server has.
func isText(r *mcp.CallToolResult) bool {
	if len(r.Meta) > 0 || r.StructuredContent != nil || r.InputRequests != nil || r.RequestState != "" || r.NeedsInput() {
		return false
	}
	for _, content := range r.Content {
		t, ok := content.(*mcp.TextContent)
		if !ok || t == nil || len(t.Meta) > 0 || t.Annotations != nil {
			return false
		}
	}
	return len(r.Content) > 0
}

// textSize returns how many bytes the texts of a result take, if nothing in them is escaped.
func textSize(r *mcp.CallToolResult) (n int) {
	for _, content := range r.Content {
		n += len(content.(*mcp.TextContent).Text) + len(`,{"type":"text","text":""}`)
	}
	return n
}

// appendText appends a text as JSON, as package json writes it.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, _ := json.Marshal(s) // a string always marshals
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
