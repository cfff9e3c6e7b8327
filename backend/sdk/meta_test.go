package sdk

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestMetaOf compares how a _meta is read with package json, twice, as values are cached.
func TestMetaOf(t *testing.T) {
	const version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	for _, raw := range []string{
		`{}`, `null`, `[]`, `"text"`,
		`{"progressToken":"a"}`, `{"progressToken":7}`, `{"a":1.5,"b":null,"c":true,"d":[1,{"e":"f"}]}`,
		`{"a":"\u00e4\n\"","\u0061":"twice"}`, `{ "a" : { "b" : 1 , "b" : 2 } }`,
		`{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00","tracestate":"a=b"}`,
		`{` + version + `}`,
		`{` + version + `,"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},"more":{}}`,
		`{` + version + `,"io.modelcontextprotocol/logLevel":"info"}`,
	} {
		for name, m := range map[string]*modern{"legacy": nil, "modern": {}} {
			var want mcp.Meta
			failed := json.Unmarshal([]byte(raw), &want) != nil
			plain := !failed && (want[mcp.MetaKeyProtocolVersion] != nil) == (m != nil) && want["io.modelcontextprotocol/logLevel"] == nil
			if failed {
				want = nil
			}
			for range 2 {
				got, is := m.metaOf([]byte(raw))
				if is != plain || !reflect.DeepEqual(got, want) {
					t.Errorf("%s: %s: got %#v, %v; want %#v, %v", name, raw, got, is, want, plain)
				}
			}
		}
	}
}

// TestMetaOfIsCheap bounds the allocations for a _meta that differs from call to call in one text only.
func TestMetaOfIsCheap(t *testing.T) {
	m := &modern{}
	raw := []byte(`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":{},"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}`)
	n := byte(0)
	got := testing.AllocsPerRun(100, func() {
		n++
		raw[len(raw)-10] = '0' + n%10
		if _, plain := m.metaOf(raw); !plain {
			t.Fatal("not plain")
		}
	})
	if got > 6 { // the map, its buckets, the text and the interface in the map
		t.Errorf("%v allocations", got)
	}
}
