package protocol

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/jsonrpc"
)

// A message that a server could read differently from Holdfast is refused, and no other.
func TestCheckClear(t *testing.T) {
	t.Parallel()
	const clear, invalid, params = 0, jsonrpc.CodeInvalidRequest, jsonrpc.CodeInvalidParams
	request := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	}
	notice := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
	}
	for text, want := range map[string]int{
		// The members of vendors and tools are not checked.
		request("tools/call", `{"name":"a","arguments":{"Name":"b","name":"c","RequestId":1,"_Meta":{},"_meta":1}}`): clear,
		request("vendor/thing", `{"name":"a","Name":"b","requestId":{},"RequestId":1}`):                              clear,
		request("vendor/thing", `[1]`): clear,
		request("tools/call", `{"name":"a","_meta":{"vendor/RequestId":1,"requestid":2,"com.x":{"progresstoken":1}}}`): clear,
		request("tools/call", `{"name":"a","_meta":null}`):                                                             clear,
		request("tools/call", `{"name":"a","meta":{"progressToken":1}}`):                                               clear,
		request("tools/call", `{"name":"é \ud83d\ude00 \u0065","_meta":{"progressToken":-1.5}}`):                       clear,
		request("tools/call", `{"name":"a","_meta":{"progressToken":null}}`):                                           clear,
		request("completion/complete", `{"ref":{"type":"ref/prompt","name":"a"},"argument":{"Name":"x","name":"y"}}`):  clear,
		request("completion/complete", `{}`):                                                                           clear,
		request("tools/list", `{"cursor":""}`):                                                                         clear,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`:                                                               clear,
		notice("notifications/progress", `{"name":"a","progressToken":"a\/b"}`):                                        clear,
		notice("notifications/cancelled", `{"requestId":1,"reason":"x"}`):                                              clear,
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`:                                                         clear,
		`{"jsonrpc":"2.0","method":"vendor/told"}`:                                                                     clear,
		`{"jsonrpc":"2.0","id":1,"result":{"name":"a","Name":"b"}}`:                                                    clear,

		// The kind of a message is decided before the method.
		request("notifications/cancelled", `{"requestId":1}`): invalid,
		request("notifications/initialized", `{}`):            invalid,
		request("notifications/vendor", `{}`):                 invalid,
		notice("tools/call", `{"name":"a"}`):                  invalid,
		notice("tasks/cancel", `{"taskId":"a"}`):              invalid,
		notice("initialize", `{}`):                            invalid,
		notice("elicitation/create", `{}`):                    invalid,

		// Methods that look like another method.
		request("Tools/Call", `{"name":"a"}`):                     invalid,
		request(" tools/call", `{"name":"a"}`):                    invalid,
		request("tools/call\\u0000x", `{"name":"a"}`):             invalid,
		request("Notifications/Cancelled", `{"requestId":1}`):     invalid,
		notice("notifications/Cancelled", `{"requestId":1}`):      invalid,
		notice("notification\u017f/cancelled", `{"requestId":1}`): invalid,

		// Members that look like another member, or occur twice.
		request("tools/call", `{"Name":"a"}`):                                                  invalid,
		request("tools/call", `{"name":"a","n\u0041me":"b"}`):                                  invalid,
		request("tools/call", `{"name":"a","name":"b"}`):                                       invalid,
		request("tools/call", `{"name":"a","n\u0061me":"b"}`):                                  invalid,
		request("tools/call", `{"name":"a","_meta":{},"_Meta":{"progressToken":1}}`):           invalid,
		request("tools/call", `{"name":"a","_meta":{},"_meta":{"progressToken":1}}`):           invalid,
		request("tools/call", `{"name":"a","Task":{}}`):                                        invalid,
		request("tools/call", `{"name":"a","_meta":{"progressToken":1,"ProgressToken":2}}`):    invalid,
		request("tools/call", `{"name":"a","_meta":{"ProgressToken":2}}`):                      invalid,
		request("tools/call", `{"name":"a","_meta":{"progressTo\u212Aen":2}}`):                 invalid,
		request("tools/call", `{"name":"a","_meta":{"progres\u017FToken":2}}`):                 invalid,
		request("tools/call", `{"name":"a","_meta":{"progressToken":1,"progressToken":2}}`):    invalid,
		request("tools/call", `{"name":"a","_meta":{"Holdfast/IdempotencyKey":"k"}}`):          invalid,
		request("vendor/thing", `{"_meta":{"ProgressToken":2}}`):                               invalid,
		request("vendor/thing", `{"_META":{"progressToken":2}}`):                               invalid,
		request("tools/list", `{"_meta":{"PROGRESSTOKEN":2}}`):                                 invalid,
		request("resources/read", `{"uri":"a","URI":"b"}`):                                     invalid,
		request("resources/subscribe", `{"uri":"a","Uri":"b"}`):                                invalid,
		request("tasks/cancel", `{"taskId":"a","tas\u212AId":"b"}`):                            invalid,
		request("tasks/result", `{"taskId":"a","taskID":"b"}`):                                 invalid,
		request("completion/complete", `{"ref":{"name":"a","Name":"b"}}`):                      invalid,
		request("completion/complete", `{"ref":{"name":"a"},"Ref":{}}`):                        invalid,
		notice("notifications/cancelled", `{"requestId":1,"RequestId":2}`):                     invalid,
		notice("notifications/cancelled", `{"requestId":1,"requestId":2}`):                     invalid,
		notice("notifications/cancelled", `{"RequestId":2}`):                                   invalid,
		notice("notifications/cancelled", `{"reque\u017FtId":2}`):                              invalid,
		notice("notifications/cancelled", `{"requestId":1,"\u0072equestId":2}`):                invalid,
		notice("notifications/progress", `{"progressToken":1,"progressTOKEN":2,"progress":1}`): invalid,

		// Names, ids and tokens that can be read in several ways.
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`:                         params,
		request("tools/call", `{}`):                                              params,
		request("tools/call", `{"name":["a"]}`):                                  params,
		request("tools/call", `{"name":{"x":1}}`):                                params,
		request("tools/call", `{"name":1}`):                                      params,
		request("tools/call", `{"name":null}`):                                   params,
		request("tools/call", `[{"name":"a"}]`):                                  params,
		request("tools/call", `{"name":"a\u0000b"}`):                             params,
		request("tools/call", `{"name":"a\n"}`):                                  params,
		request("tools/call", `{"name":"\ud800"}`):                               params,
		request("tools/call", `{"name":"\udc00\ud800"}`):                         params,
		request("tools/call", `{"name":"\ud800\u0061"}`):                         params,
		request("prompts/get", `{"name":true}`):                                  params,
		request("resources/read", `{"uri":["a"]}`):                               params,
		request("resources/unsubscribe", `{"uri":1}`):                            params,
		request("tasks/get", `{"taskId":["a"]}`):                                 params,
		request("tasks/result", `{"taskId":null}`):                               params,
		request("completion/complete", `{"ref":["a"]}`):                          params,
		request("completion/complete", `{"ref":{"name":["a"]}}`):                 params,
		request("tools/call", `{"name":"a","_meta":[{"progressToken":1}]}`):      params,
		request("tools/call", `{"name":"a","_meta":{"progressToken":["x"]}}`):    params,
		request("tools/call", `{"name":"a","_meta":{"progressToken":true}}`):     params,
		request("tools/call", `{"name":"a","_meta":{"progressToken":"\ud800"}}`): params,
		notice("notifications/cancelled", `{"requestId":[1]}`):                   params,
		notice("notifications/cancelled", `{"requestId":"\ud801"}`):              params,
		notice("notifications/cancelled", `[1]`):                                 params,
		`{"jsonrpc":"2.0","id":"\ud800","method":"tools/list"}`:                  invalid,
	} {
		m, err := jsonrpc.Parse([]byte(strings.ReplaceAll(text, `\\u`, `\u`)))
		if err != nil {
			t.Fatal(text, err)
		}
		got := 0
		if err := CheckClear(&m); err != nil {
			got = err.Code
		}
		if got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// The check allocates no memory, and takes time linear in the message's length.
func TestCheckClearCost(t *testing.T) {
	call, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_file","arguments":{"a":1},"_meta":{"progressToken":7,` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{},"io.modelcontextprotocol/clientCapabilities":{},"traceparent":"x"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := CheckClear(&call); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
