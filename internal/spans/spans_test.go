package spans

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A client's trace context is kept only if its length is valid.
func TestLongTrace(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	long := strings.Repeat("x", 1<<20)
	for _, c := range []struct{ parent, state, wantParent, wantState string }{
		{parent, "a=b", parent, "a=b"}, {parent, long, parent, ""}, {parent + long, "a=b", "", ""},
	} {
		if got := observe.NewTrace(c.parent, c.state); got.Parent != c.wantParent || got.State != c.wantState {
			t.Errorf("a traceparent of %d bytes and a tracestate of %d: %d and %d are kept", len(c.parent), len(c.state), len(got.Parent), len(got.State))
		}
	}
}

// The span in the request to the backend is the only change of the request.
func TestTraced(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	for _, params := range []string{
		``, `{}`, "{ \t}", `{"name":"x"}`, `{"name":"x", "arguments":{"a":[1,"}"]} }`, `{"name":"_meta"}`, `{"name":"\"_meta\""}`,
		`{"_meta":{}}`, `{"_meta":null,"name":"x"}`, `{"\u005fmeta":{"progressToken":1}}`, `{"_meta":{"traceparent":"old","progressToken":"p"}}`,
		`[1,2]`,
	} {
		for _, state := range []string{"", "a=b"} {
			text := `{"jsonrpc":"2.0","id":"é","method":"tools/call"`
			if params != "" {
				text += `,"params":` + params
			}
			m, err := jsonrpc.Parse([]byte(text + `}`))
			if err != nil {
				if params != `[1,2]` {
					t.Fatal(err)
				}
				continue
			}
			w := &observe.Watch{Call: observe.Call{ID: string(m.ID), Span: &observe.Span{Trace: observe.Trace{Parent: parent, State: state}}}}
			got := Into(m, w)
			again, err := jsonrpc.Parse([]byte(string(got.Raw)))
			if err != nil {
				t.Fatalf("%s: %v", got.Raw, err)
			}
			if string(again.Params) != string(got.Params) || string(again.ID) != string(m.ID) || again.Method != m.Method {
				t.Errorf("the request says %s, its fields %s", got.Raw, got.Params)
			}
			if params == `[1,2]` {
				continue
			}
			var is, was map[string]any
			_ = json.Unmarshal(got.Params, &is)
			if params != "" {
				_ = json.Unmarshal(m.Params, &was)
			} else {
				was = map[string]any{}
			}
			meta, _ := was["_meta"].(map[string]any)
			if meta == nil {
				meta = map[string]any{}
			}
			meta[protocol.MetaTraceParent] = parent
			if state != "" {
				meta[protocol.MetaTraceState] = state
			}
			was["_meta"] = meta
			want, _ := json.Marshal(was)
			have, _ := json.Marshal(is)
			if string(have) != string(want) {
				t.Errorf("%s became %s, want %s", params, have, want)
			}
		}
	}
}

// The note of a batch has the spans of all requests that have one, also if the first request has none: its client does not want it recorded.
func TestNoteOfBatch(t *testing.T) {
	t.Parallel()
	all := map[string]*observe.Span{
		"2": {Trace: observe.Trace{Parent: "p", State: "s"}, Under: "u", Began: time.Unix(0, 5)},
		"4": {Trace: observe.Trace{Parent: "q"}, Began: time.Unix(0, 6)},
	}
	var w *observe.Watch
	var msgs, requests []jsonrpc.Message
	for _, id := range []string{"1", "2", "3", "4"} {
		w = w.Before(id, all[id])
		m := jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte(id)}
		msgs = append(msgs, m, jsonrpc.Message{Kind: jsonrpc.Notification})
		requests = append(requests, m)
	}
	note := AppendNote([]byte(`{"a":1`), w, msgs)
	var n struct{ Spans []*Note }
	if err := json.Unmarshal(append(note, '}'), &n); err != nil {
		t.Fatalf("%s: %v", note, err)
	}
	w = Restore(nil, n.Spans, requests)
	for _, id := range []string{"1", "2", "3", "4"} {
		if got := w.SpanOf(id); !reflect.DeepEqual(got, all[id]) {
			t.Errorf("of request %s: %+v, want %+v", id, got, all[id])
		}
	}
	if text := string(AppendNote(nil, w, msgs[:1])); text != "" {
		t.Errorf("without spans: %s", text)
	}
}
