package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

func TestWithID(t *testing.T) {
	for text, want := range map[string]string{
		`{"id":1, "method":"m","jsonrpc":"2.0","params":{"a":[ 1 ]}}`: `{"jsonrpc":"2.0","id":"x","method":"m","params":{"a":[ 1 ]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m"}`:                       `{"jsonrpc":"2.0","id":"x","method":"m"}`,
		`{"jsonrpc":"2.0","id":1,"method":"\u0000\"é"}`:               `{"jsonrpc":"2.0","id":"x","method":"\u0000\"é"}`,
		`{"jsonrpc":"2.0","id":1,"result":{"id":1}}`:                  `{"jsonrpc":"2.0","id":"x","result":{"id":1}}`,
		`{"jsonrpc":"2.0","id":1,"result":null}`:                      `{"jsonrpc":"2.0","id":"x","result":null}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`:   `{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}`,
	} {
		m, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.WithID([]byte(`"x"`))); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestAppend(t *testing.T) {
	tests := []struct{ got, want string }{
		{string(AppendResult(nil, []byte(`1`), []byte(`[2]`))), `{"jsonrpc":"2.0","id":1,"result":[2]}`},
		{string(AppendResult([]byte("x"), []byte(`"a"`), nil)), `x{"jsonrpc":"2.0","id":"a","result":{}}`},
		{
			string(AppendError(nil, []byte(`1`), Errorf(CodeInternal, "no %s", `"x"`))),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no \"x\""}}`,
		},
		{
			string(AppendError(nil, nil, Errorf(CodeParse, "a\nb"))),
			`{"jsonrpc":"2.0","error":{"code":-32700,"message":"a\nb"}}`,
		},
		{
			string(AppendError(nil, []byte(`1`), &Error{Code: 1, Message: "m", Data: json.RawMessage("{\n\"a\": 1}")})),
			`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":{"a":1}}}`,
		},
		{
			string(AppendError(nil, []byte(`1`), &Error{Code: 1, Message: "m", Data: json.RawMessage(`{`)})),
			`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`,
		},
		{string(AppendRequest(nil, []byte(`1`), "m", []byte(`{}`))), `{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`},
		{string(AppendRequest(nil, nil, "m", nil)), `{"jsonrpc":"2.0","method":"m"}`},
		{string(AppendRequest(nil, nil, "a\"\\\n", nil)), `{"jsonrpc":"2.0","method":"a\"\\\n"}`},
		{string(Key([]byte(`-7`))), `-7`},
		{string(Key([]byte(`9007199254740993`))), `9007199254740993`},
		{string(Key([]byte(`1.0`))), `1`},
		{string(Key([]byte(`12e1`))), `120`},
		{string(Key([]byte(`"a/b"`))), `"a/b"`},
		{string(Key([]byte(`"a\/b"`))), `"a/b"`},
		{string(Key([]byte(`"\u00e9"`))), `"é"`},
		{string(Key([]byte(`"1"`))), `"1"`},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

func TestErrorIsError(t *testing.T) {
	var err error = Errorf(CodeServer, "gone: %d", 7)
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeServer || err.Error() != "gone: 7" {
		t.Errorf("got %#v", err)
	}
}

func TestKind(t *testing.T) {
	for kind, want := range map[Kind]string{Request: "request", Notification: "notification", Response: "response", 0: "invalid"} {
		if got := kind.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Some libraries write all members of a message. An optional member that is null counts as absent, and is not
// passed on: else a peer that looks only at member names could mistake the kind of the message.
func TestNullMembers(t *testing.T) {
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":"m"}}`:                     `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":null}`:                                           `{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":null,"error":null}`:                                         `{"jsonrpc":"2.0","id":1,"result":null}`,
		`{"jsonrpc":"2.0","id":7.0,"method":null,"params":null,"result":{},"error":null}`:             `{"jsonrpc":"2.0","id":7.0,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":null}`:                                         `{"jsonrpc":"2.0","id":1,"method":"m"}`,
		`{"jsonrpc":"2.0","id":"r","method":"m","params":{},"result":null,"error":null}`:              `{"jsonrpc":"2.0","id":"r","method":"m","params":{}}`,
		`{"jsonrpc":"2.0","id":null,"method":"notifications/progress","params":{"progressToken":1}}`:  `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`,
		`{"jsonrpc":"2.0","id":null,"method":"notifications\/initialized"}`:                           `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"id":null,"jsonrpc":"2.0","params":null,"method":"notifications/initialized"}`:              `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":null},"x":[null]}`: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":null},"x":[null]}`,
	} {
		m, err := Parse([]byte(text))
		if err != nil || string(m.Raw) != want {
			t.Errorf("%s: got %s, %v", text, m.Raw, err)
		}
		again, err := Parse(bytes.Clone(m.Raw))
		if err != nil || again.Kind != m.Kind || again.Method != m.Method || string(again.Params) != string(m.Params) {
			t.Errorf("%s: parsed again it is %+v, %v", text, again, err)
		}
	}
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","result":{}}`,
		`{"jsonrpc":"2.0","id":null,"method":"tools/call"}`,
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// An integer that is written as 7.0 is a valid id, and keeps its spelling.
func TestIntegerIDs(t *testing.T) {
	for _, id := range []string{"7.0", "-7.00", "0.0", "7e0", "1E3", "70e-1"} {
		m, err := Parse([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"m"}`))
		if err != nil || m.Kind != Request || string(m.ID) != id {
			t.Errorf("%s: %s, %v", id, m.ID, err)
		}
	}
	if key := string(Key([]byte("70e-1"))); key != "7" {
		t.Errorf("the key of 70e-1 is %s", key)
	}
}
