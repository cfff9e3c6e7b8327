package followcall

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A token contains a call's place, and nothing that a resume does not need.
func TestToken(t *testing.T) {
	t.Parallel()
	full := client.State{
		URL: "http://example.com/mcp", Session: "secret", Revision: "2025-11-25", Keys: true,
		Initialize: json.RawMessage(`{}`), Result: json.RawMessage(`{}`), Ready: true, LastEventID: "standalone",
		Calls: []client.CallState{
			{ID: json.RawMessage(`"other"`), Method: ToolsCall, Token: "other"},
			{
				ID: json.RawMessage(`"mine"`), Method: ToolsCall, Name: "count", Session: "secret", Token: "token",
				Stream: "http://example.com/mcp?stream=1", LastEventID: "a.1.2", Key: "key", Request: json.RawMessage(`{}`),
			},
		},
	}
	one, ok := oneCall(full, []byte(`"mine"`))
	if !ok || len(full.Calls) != 2 {
		t.Fatalf("%+v", one)
	}
	got, err := ParseToken(Token(one) + "\n")
	want := client.State{URL: full.URL, Revision: full.Revision, Calls: []client.CallState{
		{ID: json.RawMessage(`"mine"`), Method: ToolsCall, Name: "count", Token: "token", LastEventID: "a.1.2"},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("with a resume token: %+v, %v", got, err)
	}

	one.Calls[0].Token = ""
	got, err = ParseToken(Token(one))
	want.Session = "secret"
	want.Calls[0].Token, want.Calls[0].Stream = "", "http://example.com/mcp?stream=1"
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("without a resume token: %+v, %v", got, err)
	}

	one.Calls[0].Stream, one.Calls[0].LastEventID = "", ""
	if text := Token(one); text != "" {
		t.Errorf("a call that is nowhere: %s", text)
	}
	if _, ok := oneCall(full, []byte(`"none"`)); ok {
		t.Error("a call that is over has a state")
	}
}

// A text that is not a token is refused, whatever it contains.
func TestParseToken(t *testing.T) {
	t.Parallel()
	token := func(wire string) string {
		return Token(client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage("1"), Wire: json.RawMessage(wire), Token: "t"}}})
	}
	good := token("2")
	if s, err := ParseToken(good); err != nil || string(s.Calls[0].Wire) != "2" {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, bad := range []string{
		"", "hf1.", "hf2." + good[4:], good[:len(good)-3], good + "!", "hf1.bnVsbA", "hf1.W10", strings.ToUpper(good), token("[]"),
	} {
		if s, err := ParseToken(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("hf1.e30")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseToken(text); err == nil && (len(s.Calls) != 1 || s.URL == "") {
			t.Errorf("%+v", s)
		}
	})
}

// The token of a call of 2026-07-28 has the request, without which the call cannot be resumed. A token that could not be read is none.
func TestTokenModern(t *testing.T) {
	t.Parallel()
	state := func(argument string) client.State {
		return client.State{URL: "http://example.com/", Calls: []client.CallState{{
			ID: json.RawMessage("1"), Wire: json.RawMessage("2"), Method: ToolsCall, Revision: "2026-07-28", Token: "t", Key: "key",
			Request: json.RawMessage(mcptest.ModernRequest(1, ToolsCall, `{}`, `"name":"x","arguments":{"a":"`+argument+`"}`)),
		}}}
	}
	want := state("short")
	got, err := ParseToken(Token(want))
	if want.Calls[0].Key = ""; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	// A token with long arguments has only the _meta of the request.
	got, err = ParseToken(Token(state(strings.Repeat("long", MaxToken))))
	want.Calls[0].Request, _ = jsonrpc.Set([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`), jsonrpc.Field(want.Calls[0].Request, "params", "_meta"), "params", "_meta")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	long := state("")
	long.Calls[0].Token = strings.Repeat("long", MaxToken)
	if text := Token(long); text != "" {
		t.Errorf("a token of %d bytes", len(text))
	}
	// An event id leads nowhere in this revision.
	nowhere := state("")
	nowhere.Calls[0].Token, nowhere.Calls[0].LastEventID = "", "1"
	if text := Token(nowhere); text != "" {
		t.Errorf("a token without a way: %s", text)
	}
}
