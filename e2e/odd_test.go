package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// An oddAnswer is a server's answer to a tool call: nearly JSON, nearly JSON-RPC, or more than the answer.
type oddAnswer struct {
	text string // lines with a message each; ID stands for the id of the request, and ⏎ for a newline within a message
	want string // a text in the client's response: in its result if the meaning is clear, else in its error
	json string // want if the text is one body of JSON; "": the same
	pipe string // want on stdio; "": the same
}

// on returns the text that the client's response contains. body says that the answer is one body, pipe that it is on stdio.
func (a oddAnswer) on(body, pipe bool) string {
	switch {
	case body && a.json != "":
		return a.json
	case pipe && a.pipe != "":
		return a.pipe
	}
	return a.want
}

// oddAnswers returns the answers of FAILURES 20, by their names.
func oddAnswers() map[string]oddAnswer {
	const fine = `"result":{"content":[{"type":"text","text":"fine"}]}}`
	content := func(text string) string {
		return `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"` + text + `"}]}}`
	}
	const result, unknown, bad = `"result":{"content":[{"type":"text","text":"fine"}]`, "outcome unknown", `"error":{"code":-32602,"message":"bad"`
	return map[string]oddAnswer{
		"Latin-1":                      {text: content("caf\xe9"), want: "caf\uFFFD"},
		"GBK":                          {text: content("fine \xc4\xe3\xba\xc3"), want: "fine "},
		"CESU-8":                       {text: content("fine \xed\xa0\xbd\xed\xb8\x80"), want: "fine "},
		"UTF-8, cut off":               {text: content("fine \xe2\x82"), want: "fine \uFFFD"},
		"half a surrogate":             {text: content(`fine \ud83d`), want: "fine "},
		"a raw tab":                    {text: content("fine\tx"), want: "fine\\u0009x"},
		"a raw escape":                 {text: content("\x1b[1mfine"), want: "\\u001b[1mfine"},
		"a byte order mark":            {text: "\xef\xbb\xbf" + content("fine"), want: result},
		"id 7.0":                       {text: `{"jsonrpc":"2.0","id":ID.0,` + fine, want: result},
		"id 7e0":                       {text: `{"jsonrpc":"2.0","id":IDe0,` + fine, want: result},
		`id "7"`:                       {text: `{"jsonrpc":"2.0","id":"ID",` + fine, want: result},
		"error null":                   {text: `{"jsonrpc":"2.0","id":ID,"error":null,` + fine, want: result},
		"result null beside an error":  {text: `{"jsonrpc":"2.0","id":ID,"result":null,"error":{"code":-32602,"message":"bad"}}`, want: bad},
		"method null":                  {text: `{"jsonrpc":"2.0","id":ID,"method":null,"params":null,` + fine, want: result},
		"an error under id null":       {text: `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad"}}`, want: bad},
		"an error without id":          {text: `{"jsonrpc":"2.0","error":{"code":-32602,"message":"bad"}}`, want: bad},
		"NaN":                          {text: `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"a":NaN}}}`, want: "NaN"},
		"Infinity":                     {text: `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"a":-Infinity}}}`, want: "Infinity"},
		"single quotes":                {text: `{'jsonrpc':'2.0','id':ID,'result':{'content':[]}}`, want: unknown},
		"a comma too many":             {text: `{"jsonrpc":"2.0","id":ID,"result":{"content":[],}}`, want: unknown},
		"cut off":                      {text: `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"te`, want: unknown},
		"text before the message":      {text: `INFO done {"jsonrpc":"2.0","id":ID,` + fine, want: "INFO done"},
		"text after the message":       {text: content("fine") + " done", want: unknown},
		"two messages in a line":       {text: `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}` + content("fine"), want: unknown},
		"over lines":                   {text: `{⏎  "jsonrpc": "2.0",⏎  "id": ID,⏎  "result": {"content": []}⏎}`, want: `"content":`, pipe: unknown},
		"an error that is text":        {text: `{"jsonrpc":"2.0","id":ID,"error":"no luck"}`, want: "no luck"},
		"no jsonrpc":                   {text: `{"id":ID,` + fine, want: unknown},
		"jsonrpc 2":                    {text: `{"jsonrpc":2.0,"id":ID,` + fine, want: unknown},
		"neither result nor error":     {text: `{"jsonrpc":"2.0","id":ID}`, want: unknown},
		"a banner, then the answer":    {text: "Server {v1} is ready\n" + content("fine"), want: result, json: unknown},
		"another id, then the answer":  {text: `{"jsonrpc":"2.0","id":987654,"result":{}}` + "\n" + content("fine"), want: result, json: unknown},
		"id null in a notification":    {text: `{"jsonrpc":"2.0","id":null,"method":"notifications/message","params":{"level":"info","data":"x"}}` + "\n" + content("fine"), want: result, json: unknown},
		"params null in a notice":      {text: `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}` + "\n" + content("fine"), want: result, json: unknown},
		"params null in a request":     {text: `{"jsonrpc":"2.0","id":5,"method":"roots/list","params":null}` + "\n" + content("fine"), want: result, json: unknown},
		"ping under an id of fraction": {text: `{"jsonrpc":"2.0","id":5.0,"method":"ping"}` + "\n" + content("fine"), want: result, json: unknown},
		"an error without a code":      {text: `{"jsonrpc":"2.0","id":ID,"error":{"message":"bad","x":1}}`, want: `"error":{"message":"bad","x":1,"code":-32000}`},
		"an error without a message":   {text: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"data":[1]}}`, want: `"code":-32602,`},
		"an error without anything":    {text: `{"jsonrpc":"2.0","id":ID,"error":{}}`, want: `"code":-32000`},
		"an error whose code is text":  {text: `{"jsonrpc":"2.0","id":ID,"error":{"code":"-32602","message":"bad"}}`, want: bad},
		"an error with a fraction":     {text: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602.0,"message":"bad"}}`, want: bad},
		"result null":                  {text: `{"jsonrpc":"2.0","id":ID,"result":null}`, want: `"result":null`},
		"another result":               {text: `{"jsonrpc":"2.0","id":ID,"result":{"capabilities":{}}}`, want: `"capabilities":{}`},
		"an error that names no call":  {text: `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`, want: `"code":-32700`},
	}
}

// odd is a server with the tools "odd", which gives odd answers, "even" and "silent".
var odd = mcptest.Answers{
	"initialize": func(m jsonrpc.Message, _ func(string)) string {
		return mcptest.Result(m, mcptest.Welcome(m, `{"tools":{},"logging":{}}`))
	},
	"tools/list":      mcptest.Fixed(`{"tools":[{"name":"odd","inputSchema":{"type":"object"}},{"name":"even","inputSchema":{"type":"object"}}]}`),
	"tools/call even": func(m jsonrpc.Message, _ func(string)) string { return mcptest.Text(m, "even") },
	"tools/call silent": func(jsonrpc.Message, func(string)) string {
		fmt.Fprintln(os.Stderr, "it says nothing")
		return ""
	},
	"tools/call": func(m jsonrpc.Message, _ func(string)) string {
		return oddAnswers()[jsonrpc.String(jsonrpc.Field(m.Params, "arguments", "case"))].to(m)
	},
}

// to returns the answer to a request.
func (a oddAnswer) to(m jsonrpc.Message) string {
	return strings.ReplaceAll(a.text, "ID", string(m.ID))
}

// oddStdio makes the test binary an odd server on stdio. If args name a method and an odd answer, requests of that method get
// that answer.
func oddStdio(args []string) {
	mcptest.Stdio(func(m jsonrpc.Message, say func(string)) string {
		switch {
		case m.Kind == jsonrpc.Request && len(args) == 2 && m.Method == args[0]:
			return oddAnswers()[args[1]].to(m)
		case string(m.ID) == "5.0": // the client's answer to the server's request, to show its exact text
			return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"under 5.0: %s"}}`,
				strings.ReplaceAll(string(m.Raw), `"`, "'"))
		}
		return odd.Script(m, say)
	})
}

// serveOdd serves an odd server at the paths of [mcptest.Server].
func serveOdd(t *testing.T) (url string) {
	return mcptest.Serve(t, &mcptest.Server{Open: true, Script: odd.Script})
}
