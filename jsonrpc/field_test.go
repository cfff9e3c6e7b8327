package jsonrpc

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"
)

func TestSet(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		path []string
		want string // "": refused
	}{
		{`{}`, []string{"a"}, `{"a":7}`},
		{`{ }`, []string{"a"}, `{ "a":7}`},
		{` { "b" : 1 } `, []string{"a"}, ` { "b" : 1 ,"a":7} `},
		{`{"a":1,"b":2}`, []string{"a"}, `{"a":7,"b":2}`},
		{`{"a":1,"a":2}`, []string{"a"}, `{"a":1,"a":7}`},
		{`{"a":{"b":1}}`, []string{"a"}, `{"a":7}`},
		{`{"a":{"b":1,"c":[{}]},"d":"}"}`, []string{"a", "b"}, `{"a":{"b":7,"c":[{}]},"d":"}"}`},
		{`{"a":{"c":"}"}}`, []string{"a", "b"}, `{"a":{"c":"}","b":7}}`},
		{`{"a":{}}`, []string{"a", "b", "c"}, `{"a":{"b":{"c":7}}}`},
		{`{"x":1}`, []string{"a", "b", "c"}, `{"x":1,"a":{"b":{"c":7}}}`},
		{`{"a":null}`, []string{"a", "b"}, `{"a":{"b":7}}`},
		{`{"a":null}`, []string{"a"}, `{"a":7}`},
		{`{"\u0061":1}`, []string{"a"}, `{"\u0061":7}`},
		{`{}`, []string{"a\"/é"}, `{"a\"/é":7}`},
		{`{"":1}`, []string{""}, `{"":7}`},
		{`{"a":[1]}`, []string{"a", "b"}, ``},
		{`{"a":"x"}`, []string{"a", "b"}, ``},
		{`{"a":1}`, nil, ``},
		{`[1]`, []string{"a"}, ``},
		{`null`, []string{"a"}, ``},
		{``, []string{"a"}, ``},
		{`{"a":1`, []string{"a"}, ``},
		{`{"a":1`, []string{"b"}, ``},
	}
	for _, test := range tests {
		data := []byte(test.text)
		got, ok := Set(data, []byte("7"), test.path...)
		want := test.want
		if want == "" {
			want = test.text
		}
		if ok != (test.want != "") || string(got) != want {
			t.Errorf("%s %q: got %s, %v, want %s", test.text, test.path, got, ok, want)
		}
		if string(data) != test.text {
			t.Errorf("%q became %q", test.text, data)
		}
	}
}

// FuzzSet compares Set with decoding the whole text and encoding it again.
func FuzzSet(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1}}`), "a", "b")
	f.Add([]byte("{\n\"a\" : { \"\\u0062\" : [1,\r2] } , \"a\":{\"b\":null}}"), "a", "b")
	f.Add([]byte(`{"a\n":{"b":1}}`), "a\n", "")
	f.Add([]byte(`{"a":null,"b":{}}`), "a", "c")
	f.Add([]byte(`{"a":[],"b":{}}`), "a", "c")
	f.Add([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"experimental":{}}}`), "capabilities", "experimental")
	f.Fuzz(func(t *testing.T, data []byte, first, second string) {
		if !json.Valid(data) || !utf8.Valid(data) || !utf8.ValidString(first) || !utf8.ValidString(second) || deepest(data) > 900 {
			return
		}
		before := bytes.Clone(data)
		got, ok := Set(data, []byte(`{"new":[7]}`), first, second)
		if !bytes.Equal(before, data) {
			t.Fatalf("%q became %q", before, data)
		}
		var all map[string]json.RawMessage
		err := json.Unmarshal(data, &all)
		isObject := err == nil && all != nil
		var inner map[string]json.RawMessage
		way := isObject && (all[first] == nil || json.Unmarshal(all[first], &inner) == nil)
		if ok != way {
			t.Fatalf("Set says %v, encoding/json %v", ok, way)
		}
		if !ok {
			if !bytes.Equal(got, data) {
				t.Fatalf("refused, and became %q", got)
			}
			return
		}
		if inner == nil {
			inner = make(map[string]json.RawMessage)
		}
		inner[second] = json.RawMessage(`{"new":[7]}`)
		all[first], _ = json.Marshal(inner)
		want, _ := json.Marshal(all)
		if !reflect.DeepEqual(value(t, got), value(t, want)) {
			t.Fatalf("got %s, want %s", got, want)
		}
		if again := Field(got, first, second); string(again) != `{"new":[7]}` {
			t.Fatalf("Field finds %q in %q", again, got)
		}
	})
}

// value decodes JSON without losing digits of numbers.
func value(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}
