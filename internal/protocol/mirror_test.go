package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Header values are encoded as in the specification's examples, and decoded again.
func TestHeaderValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		"us-west1":               "us-west1",
		"us west\t1":             "us west\t1",
		"Hello, 世界":              "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":               "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":           "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=":     "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
		"=?base64?is not closed": "=?base64?is not closed",
	} {
		got := EncodeHeader(text)
		if back, ok := DecodeHeader(got); got != want || !ok || back != text {
			t.Errorf("%q is coded as %q, want %q, and decoded as %q (%v)", text, got, want, back, ok)
		}
	}
	for _, value := range []string{"=?base64?%%%?=", "世界", " padded", "a\x00b"} {
		if _, ok := DecodeHeader(value); ok {
			t.Errorf("%q is taken", value)
		}
	}
}

// A tool's headers come from properties that are reached through properties alone.
func TestParamHeaders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ schema, want string }{
		{`{"type":"object"}`, ""},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":["integer","null"],"x-mcp-header":"B-1"}}}}}`, "A=a B-1=b.c"},
		{`{"properties":{"x-mcp-header":{"type":"string"}}}`, ""},
		{`{"properties":{"a":{"type":"string","default":{"x-mcp-header":"A"},"enum":[{"x-mcp-header":"A"}]}}}`, ""},
		{`{"x-mcp-header":"A","type":"string"}`, "error: only properties"},
		{`{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`, "error: only properties"},
		{`{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`, "error: only properties"},
		{`{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}`, "error: only properties"},
		{`{"if":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`, "error: only properties"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "error: no name"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":7}}}`, "error: no name"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A B"}}}`, "error: no name"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"Ä"}}}`, "error: no name"},
		{`{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, "error: the type"},
		{`{"properties":{"a":{"type":["string","integer"],"x-mcp-header":"A"}}}`, "error: the type"},
		{`{"properties":{"a":{"x-mcp-header":"A"}}}`, "error: the type"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`, "error: another"},
		{strings.Repeat(`{"not":`, 200) + `{"x-mcp-header":1}` + strings.Repeat("}", 200), "error: nested"},
	} {
		found, err := ParamHeaders([]byte(tt.schema))
		var got []string
		for _, h := range found {
			got = append(got, h.Name+"="+strings.Join(h.Path, "."))
		}
		slices.Sort(got)
		why, wantErr := strings.CutPrefix(tt.want, "error: ")
		switch {
		case wantErr && (err == nil || !strings.Contains(err.Error(), why)):
			t.Errorf("%.200s: %v, want an error with %q", tt.schema, err, why)
		case !wantErr && (err != nil || strings.Join(got, " ") != tt.want):
			t.Errorf("%.200s: %v, %v; want %s", tt.schema, got, err, tt.want)
		}
	}
}

// The value of an argument becomes a header's text if its type allows that.
func TestParamValues(t *testing.T) {
	t.Parallel()
	h := ParamHeader{Name: "A", Path: []string{"a", "b"}}
	for _, tt := range []struct{ value, want string }{
		{`"x"`, "x"},
		{`"é"`, "=?base64?w6k=?="},
		{`42`, "42"},
		{`-7.0`, "-7"},
		{`1e3`, "1000"},
		{`9007199254740991`, "9007199254740991"},
		{`true`, "true"},
		{`""`, ""},
		{`null`, "absent"},
		{`1.5`, "absent"},
		{`9007199254740993`, "absent"},
		{`{}`, "absent"},
		{`["x"]`, "absent"},
	} {
		got, ok := h.Value(Arguments([]ParamHeader{h}, fmt.Appendf(nil, `{"a":{"b":%s}}`, tt.value))[0])
		if !ok {
			got = "absent"
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.value, got, tt.want)
		}
	}
	if _, ok := h.Value(Arguments([]ParamHeader{h}, []byte(`{"a":"b"}`))[0]); ok {
		t.Error("an argument that is absent has a header")
	}
}

// Mcp-Name repeats the name or URI that the method acts on.
func TestNameOf(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{
		"tools/call": "n", "prompts/get": "n", "resources/read": "u", "tasks/get": "t", "tasks/update": "t", "tasks/cancel": "t", "tools/list": "",
	} {
		if got := NameOf(method, []byte(`{"name":"n","uri":"u","taskId":"t"}`)); got != want {
			t.Errorf("%s: %q, want %q", method, got, want)
		}
	}
}

func TestParamHeaderCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, arguments string
		values          []string
		ok              bool
	}{
		{name: "the same", arguments: `{"a":{"b":"x y"}}`, values: []string{"x y"}, ok: true},
		{name: "coded", arguments: `{"a":{"b":"Hello"}}`, values: []string{"=?base64?SGVsbG8=?="}, ok: true},
		{name: "coded without need of padding", arguments: `{"a":{"b":"Hello"}}`, values: []string{"=?base64?SGVsbG8?="}},
		{name: "coded with other characters", arguments: `{"a":{"b":"Hello"}}`, values: []string{"=?base64?SGVs!!!bG8=?="}},
		{name: "not ended", arguments: `{"a":{"b":"=?base64?SGVsbG8="}}`, values: []string{"=?base64?SGVsbG8="}, ok: true},
		{name: "another text", arguments: `{"a":{"b":"x"}}`, values: []string{"X"}},
		{name: "missing", arguments: `{"a":{"b":"x"}}`},
		{name: "twice", arguments: `{"a":{"b":"x"}}`, values: []string{"x", "x"}},
		{name: "null", arguments: `{"a":{"b":null}}`, ok: true},
		{name: "no argument", arguments: `{"a":{}}`, ok: true},
		{name: "no arguments", ok: true},
		{name: "no argument but a header", arguments: `{}`, values: []string{"x"}},
		{name: "an integer", arguments: `{"a":{"b":42}}`, values: []string{"42"}, ok: true},
		{name: "an integer as another number", arguments: `{"a":{"b":42}}`, values: []string{"42.0"}, ok: true},
		{name: "a number as an integer", arguments: `{"a":{"b":4.2e1}}`, values: []string{"42"}, ok: true},
		{name: "another integer", arguments: `{"a":{"b":42}}`, values: []string{"43"}},
		{name: "a text that looks like a number", arguments: `{"a":{"b":"42"}}`, values: []string{"42.0"}},
		{name: "a boolean", arguments: `{"a":{"b":true}}`, values: []string{"true"}, ok: true},
		{name: "another boolean", arguments: `{"a":{"b":true}}`, values: []string{"True"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := ParamHeader{Name: "Region", Path: []string{"a", "b"}}
			if err := h.Check(tt.values, Arguments([]ParamHeader{h}, []byte(tt.arguments))[0]); (err == nil) != tt.ok {
				t.Errorf("Check(%q, %s) = %v", tt.values, tt.arguments, err)
			}
		})
	}
}
