package protocol

import (
	"errors"
	"testing"

	"holdfast/jsonrpc"
)

// What a server could read in another way than Holdfast is refused, and nothing else.
func TestCheckClear(t *testing.T) {
	t.Parallel()
	for text, clear := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"Name":"b","name":"c"}}}`: true,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`:                                                           true,
		`{"jsonrpc":"2.0","id":1,"method":"vendor/thing","params":{"name":"a","Name":"b"}}`:                        true,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"name":"a"}}`:                                true,
		`{"jsonrpc":"2.0","method":"vendor/told"}`:                                                                 true,
		`{"jsonrpc":"2.0","id":1,"result":{"name":"a","Name":"b"}}`:                                                true,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"a"}}`:                                     false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","n\u0041me":"b"}}`:                     false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}`:                          false,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a","URI":"b"}}`:                        false,
		`{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"a","taskID":"b"}}`:                    false,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}`:                                            false,
		`{"jsonrpc":"2.0","method":"tasks/cancel","params":{"taskId":"a"}}`:                                        false,
	} {
		m, err := jsonrpc.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckClear(&m); (err == nil) != clear || err != nil && !errors.Is(err, jsonrpc.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
