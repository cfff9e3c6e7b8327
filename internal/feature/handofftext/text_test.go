package handofftext

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"holdfast/jsonrpc"
)

func TestSeconds(t *testing.T) {
	t.Parallel()
	const most = 45 * time.Second
	for arguments, want := range map[string]time.Duration{
		`{}`: most, `{"seconds":10}`: 10 * time.Second, `{"seconds":"2.5"}`: 2500 * time.Millisecond, `{"seconds":-3}`: 0, `{"seconds":0}`: 0,
		`{"seconds":1e300}`: most, `{"seconds":null}`: most, `{"seconds":"soon"}`: most, `{"seconds":"NaN"}`: most, `{"seconds":"-Inf"}`: 0,
	} {
		if got := Seconds([]byte(arguments), most); got != want {
			t.Errorf("%s: %v, want %v", arguments, got, want)
		}
	}
}

func TestSeen(t *testing.T) {
	t.Parallel()
	for arguments, want := range map[string]int{
		`{}`: 0, `{"seen":3}`: 3, `{"seen":"4"}`: 4, `{"seen":2.9}`: 2, `{"seen":-1}`: 0, `{"seen":1e300}`: 0, `{"seen":null}`: 0, `{"seen":"NaN"}`: 0, `{"seen":9007199254740991}`: 1<<53 - 1,
	} {
		if got := Seen([]byte(arguments)); got != want {
			t.Errorf("%s: %v, want %v", arguments, got, want)
		}
	}
}

// Results have the form of the client's era, and only members that the client may see.
func TestResults(t *testing.T) {
	t.Parallel()
	ended := State{Handle: "h", Tool: "build"}
	ended.End([]byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"resultType":"complete"}}`))
	for _, modern := range []bool{false, true} {
		for name, r := range map[string][]byte{
			"answer": Answer(State{Handle: "h", Status: Working, Tool: "build"}, time.Second, Form{Modern: modern}),
			"ended":  Waited(ended, time.Second, Form{Modern: modern}), "unknown": Waited(State{Status: Unknown}, time.Second, Form{Modern: modern}),
			"withdrawn": Withdrawn(ended, time.Second, Form{Modern: modern}),
		} {
			if !json.Valid(r) || strings.Contains(string(r), `"response"`) || (jsonrpc.Field(r, "resultType") != nil) != modern {
				t.Errorf("%s, modern %v: %s", name, modern, r)
			}
		}
	}
	asks := State{Tool: "build"}
	asks.End([]byte(`{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required"}}`))
	if r := Waited(asks, time.Second, Form{Modern: true}); !strings.Contains(string(r), `"isError":true`) || jsonrpc.String(jsonrpc.Field(r, "resultType")) != "complete" {
		t.Errorf("that asks: %s", r)
	}
	failed := State{}
	failed.End([]byte(`{"jsonrpc":"2.0","id":1,"error":"odd"}`))
	if failed.Status != Failed || failed.Error == nil {
		t.Errorf("an odd error: %+v", failed)
	}
}

func TestAddTools(t *testing.T) {
	t.Parallel()
	for response, want := range map[string]int{
		`{"result":{"tools":[]}}`: 2, `{"result":{"tools":[ {"name":"a"} ],"nextCursor":""}}`: 3, `{"result":{"tools":[],"nextCursor":"x"}}`: 0,
	} {
		var got struct {
			Result struct{ Tools []json.RawMessage }
		}
		if err := json.Unmarshal(AddTools([]byte(response), time.Second), &got); err != nil || len(got.Result.Tools) != want {
			t.Errorf("%s: %v, %v", response, got, err)
		}
	}
	for _, response := range []string{`{"error":{"code":-32601}}`, `{"result":{}}`, `{"result":{"tools":{}}}`} {
		if got := AddTools([]byte(response), time.Second); string(got) != response {
			t.Errorf("%s became %s", response, got)
		}
	}
}
