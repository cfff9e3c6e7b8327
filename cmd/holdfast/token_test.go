package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"holdfast/client"
)

// A token says where a call is, and no more than is needed.
func TestToken(t *testing.T) {
	t.Parallel()
	full := client.State{
		URL: "http://example.com/mcp", Session: "secret", Revision: "2025-11-25", Keys: true,
		Initialize: json.RawMessage(`{}`), Result: json.RawMessage(`{}`), Ready: true, LastEventID: "standalone",
		Calls: []client.CallState{
			{ID: json.RawMessage(`"other"`), Method: toolsCall, Token: "other"},
			{
				ID: json.RawMessage(`"mine"`), Method: toolsCall, Name: "count", Session: "secret", Token: "token",
				Stream: "http://example.com/mcp?stream=1", LastEventID: "a.1.2", Key: "key", Request: json.RawMessage(`{}`),
			},
		},
	}
	one, ok := oneCall(full, []byte(`"mine"`))
	if !ok || len(full.Calls) != 2 {
		t.Fatalf("%+v", one)
	}
	got, err := parseToken(token(one) + "\n")
	want := client.State{URL: full.URL, Revision: full.Revision, Calls: []client.CallState{
		{ID: json.RawMessage(`"mine"`), Method: toolsCall, Name: "count", Token: "token", LastEventID: "a.1.2"},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("with a resume token: %+v, %v", got, err)
	}

	one.Calls[0].Token = ""
	got, err = parseToken(token(one))
	want.Session = "secret"
	want.Calls[0].Token, want.Calls[0].Stream = "", "http://example.com/mcp?stream=1"
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("without a resume token: %+v, %v", got, err)
	}

	one.Calls[0].Stream, one.Calls[0].LastEventID = "", ""
	if text := token(one); text != "" {
		t.Errorf("a call that is nowhere: %s", text)
	}
	if _, ok := oneCall(full, []byte(`"none"`)); ok {
		t.Error("a call that is over has a state")
	}
}

// What is no token is refused, whatever it is.
func TestParseToken(t *testing.T) {
	t.Parallel()
	good := token(client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage("1"), Token: "t"}}})
	if _, err := parseToken(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "hf1.", "hf2." + good[4:], good[:len(good)-3], good + "!", "hf1.bnVsbA", "hf1.W10", strings.ToUpper(good),
	} {
		if s, err := parseToken(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("hf1.e30")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseToken(text); err == nil && (len(s.Calls) != 1 || s.URL == "") {
			t.Errorf("%+v", s)
		}
	})
}

// The newest call that nobody follows is the one that is found.
func TestShelf(t *testing.T) {
	t.Parallel()
	calls := callsIn(t.TempDir())
	if _, err := calls.newest(true); err == nil {
		t.Error("there is a call on an empty shelf")
	}
	state := func(id string) client.State {
		return client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage(id), Token: "t"}}}
	}
	var keepers []*keeper
	for _, id := range []string{`"a"`, `"b"`} {
		k, err := calls.keep([]byte(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.put(state(id)); err != nil {
			t.Fatal(err)
		}
		keepers = append(keepers, k)
	}
	want := func(idle bool, id string) {
		t.Helper()
		s, err := calls.newest(idle)
		if id == "" && err != nil {
			return
		}
		if err != nil || len(s.Calls) != 1 || string(s.Calls[0].ID) != id {
			t.Errorf("newest(%v): %+v, %v; want %s", idle, s, err, id)
		}
	}
	want(false, `"b"`)
	want(true, "") // both are followed
	keepers[0].end(false)
	want(true, `"a"`)
	again, err := calls.keep([]byte(`"a"`))
	if err != nil || again.name != keepers[0].name {
		t.Errorf("the same call has another place: %+v, %v", again, err)
	}
	again.end(true)
	want(false, `"b"`)
	keepers[1].end(true)
	want(false, "")
}
