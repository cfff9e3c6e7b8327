package jsonrpc

import (
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

// Some libraries write both fields of a response. The null one does not count, and
// is not passed on.
func TestSloppyResponse(t *testing.T) {
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":"m"}}`: `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":null}`:                       `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		m, err := Parse([]byte(text))
		if err != nil || m.Kind != Response || string(m.Raw) != want {
			t.Errorf("%s: got %s, %v", text, m.Raw, err)
		}
	}
	if _, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`)); err == nil {
		t.Error("a result and an error are taken")
	}
}
