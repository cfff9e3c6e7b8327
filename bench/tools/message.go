package tools

import (
	"bytes"
	"strconv"
	"time"

	"holdfast/backend/message"
	"holdfast/jsonrpc"
)

// The answers that never change.
var (
	pong     = []byte("{}")
	toolList = []byte(`{"tools":[` +
		`{"name":"echo","description":"Answers the text.","annotations":{"readOnlyHint":true},"inputSchema":` + echoSchema + `},` +
		`{"name":"progress","description":"Reports progress n times.","inputSchema":` + progressSchema + `},` +
		`{"name":"slow","description":"Answers after ms milliseconds.","inputSchema":` + slowSchema + `}]}`)
)

// revisions are those of the protocol, newest first, as raw JSON.
var revisions = []string{`"2025-11-25"`, `"2025-06-18"`, `"2025-03-26"`, `"2024-11-05"`}

// Answer serves the tools as raw JSON-RPC, as a gateway would: about the cheapest backend that
// Holdfast can have.
func Answer(x *message.Exchange) {
	if x.Kind != jsonrpc.Request {
		return
	}
	switch x.Method {
	case "initialize":
		x.Result(Initialize(x.Params))
	case "ping":
		x.Result(pong)
	case "tools/list":
		x.Result(toolList)
	case "tools/call":
		callTool(x)
	default:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "unknown method %q", x.Method))
	}
}

// Initialize returns the result of initialize.
func Initialize(params []byte) []byte {
	revision := revisions[0]
	asked := string(jsonrpc.Field(params, "protocolVersion"))
	for _, r := range revisions {
		if r == asked {
			revision = r
		}
	}
	return []byte(`{"protocolVersion":` + revision +
		`,"capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1.0.0"}}`)
}

func callTool(x *message.Exchange) {
	args := jsonrpc.Field(x.Params, "arguments")
	switch string(jsonrpc.Field(x.Params, "name")) {
	case `"echo"`:
		said := jsonrpc.Field(args, "text")
		if len(said) == 0 || said[0] != '"' {
			x.Error(jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "echo: no text"))
			return
		}
		x.Result(textResult(said)) // raw as it came, quotes and all
	case `"progress"`:
		go progress(x, ParseRun(args))
	case `"slow"`:
		slow(x, Millis(args))
	default:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "unknown tool"))
	}
}

// textResult returns the result of a tool with one text, which is a raw JSON string.
func textResult(raw []byte) []byte {
	const head, tail = `{"content":[{"type":"text","text":`, `}]}`
	b := make([]byte, 0, len(head)+len(raw)+len(tail))
	b = append(b, head...)
	b = append(b, raw...)
	return append(b, tail...)
}

func progress(x *message.Exchange, run Run) {
	token := jsonrpc.Field(x.Params, "_meta", "progressToken")
	head := append([]byte(`{"progressToken":`), token...)
	head = append(head, `,"progress":`...)
	tail := strconv.AppendInt([]byte(`,"total":`), int64(run.N), 10)
	tail = append(tail, `,"message":"`...)
	tail = append(tail, bytes.Repeat([]byte("x"), run.Size)...)
	tail = append(tail, `"}`...)

	for i := 1; i <= run.N && token != nil; i++ {
		// Notify keeps its bytes: each notification needs its own.
		b := append(make([]byte, 0, len(head)+20+len(tail)), head...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, tail...)
		x.Notify("notifications/progress", b)
		run.Rest(i)
	}
	x.Result(textResult(strconv.AppendQuote(nil, "done "+strconv.Itoa(run.N))))
}

// slow answers from a timer, so that a call that waits costs no goroutine.
func slow(x *message.Exchange, ms int) {
	x.Context, x.Header = nil, nil // they would keep the whole HTTP request
	time.AfterFunc(time.Duration(ms)*time.Millisecond, func() {
		x.Result(textResult(strconv.AppendQuote(nil, "slept "+strconv.Itoa(ms))))
	})
}
