package main

import (
	"bufio"
	"io"
	"net/http"
	"os"

	"holdfast/bench/tools"
	"holdfast/jsonrpc"
)

// An era is a server that speaks revisions of one era only, with the tool echo, the least else that
// clients need, and no library: it is cheap, as the gateway in front of it is measured. It serves
// many clients, at /mcp or, with a message on each line, on its stdin.
type era string

// The eras.
const (
	legacy era = "legacy" // 2025-11-25 and earlier
	modern era = "modern" // 2026-07-28
)

// Results of a modern server.
const (
	modernInfo  = `"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench","version":"1.0.0"}}`
	modernCache = `,"ttlMs":0,"cacheScope":"private"`
	discovered  = `{` + modernInfo + modernCache + `,"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
	echoTool    = `"tools":[{"name":"echo","description":"Answers the text.","annotations":{"readOnlyHint":true},` +
		`"inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]`
)

// answer returns the answer to a message; nil: the message needs none.
func (e era) answer(text []byte) []byte {
	m, err := jsonrpc.Parse(text)
	if err != nil {
		return jsonrpc.AppendError(nil, nil, jsonrpc.Errorf(jsonrpc.CodeParse, "%v", err))
	}
	if m.Kind != jsonrpc.Request {
		return nil
	}
	result := func(text string) []byte { return jsonrpc.AppendResult(nil, m.ID, []byte(text)) }
	isModern := e == modern
	switch {
	case m.Method == "initialize" && !isModern:
		return jsonrpc.AppendResult(nil, m.ID, tools.Initialize(m.Params))
	case m.Method == "server/discover" && isModern:
		return result(discovered)
	case m.Method == "ping" && !isModern:
		return result(`{}`)
	case m.Method == "tools/list" && isModern:
		return result(`{` + modernInfo + modernCache + `,` + echoTool + `}`)
	case m.Method == "tools/list":
		return result(`{` + echoTool + `}`)
	case m.Method == "tools/call":
		content := `"content":[{"type":"text","text":` + string(jsonrpc.Field(m.Params, "arguments", "text")) + `}]}`
		if isModern {
			return result(`{` + modernInfo + `,` + content)
		}
		return result(`{` + content)
	}
	return jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "unknown method %q", m.Method))
}

// ServeHTTP implements [http.Handler].
func (e era) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	answer := e.answer(body)
	if answer == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if e == legacy {
		w.Header().Set("Mcp-Session-Id", "bench")
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer)
}

// serveStdio answers the messages on stdin, until stdin ends.
func (e era) serveStdio() error {
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil //nolint:nilerr // the client has closed it
		}
		if answer := e.answer(line); answer != nil {
			_, _ = out.Write(append(answer, '\n'))
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}
