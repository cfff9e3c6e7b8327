package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"
)

func FuzzParse(f *testing.F) {
	for _, text := range malformed {
		if len(text) < 1<<16 {
			f.Add([]byte(text))
		}
	}
	for _, text := range invalid {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"jsonrpc":"2.0","id":"\u0031","method":"m\n","params":{"a":[1,2.5e-3,"é"]}}`))
	f.Add([]byte("[{\"jsonrpc\":\"2.0\",\r\n\"id\":-1,\"result\":[]},{\"jsonrpc\":\"2.0\",\"method\":\"\\u00e9\"}]"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x","data":{}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		good := json.Valid(text) && utf8.Valid(text) && deepest(text) <= 1000
		m, err := Parse(bytes.Clone(text))
		if malformed := errors.Is(err, ErrParse); malformed == good {
			t.Fatalf("Parse: %v, but json.Valid says %v", err, good)
		}
		if err == nil {
			checkMessage(t, &m)
		}
		msgs, batch, err := ParseBody(bytes.Clone(text))
		if malformed := errors.Is(err, ErrParse); malformed == good {
			t.Fatalf("ParseBody: %v, but json.Valid says %v", err, good)
		}
		if err != nil {
			return
		}
		if first := bytes.TrimLeft(text, " \t\r\n")[0]; batch != (first == '[') {
			t.Fatalf("batch is %v", batch)
		}
		for i := range msgs {
			checkMessage(t, &msgs[i])
		}
	})
}

// checkMessage compares an accepted message with its own text, and with
// encoding/json.
func checkMessage(t *testing.T, m *Message) {
	t.Helper()
	if bytes.ContainsAny(m.Raw, "\r\n") {
		t.Fatalf("line break in %q", m.Raw)
	}
	again, err := Parse(bytes.Clone(m.Raw))
	if err != nil {
		t.Fatalf("%s: %v", m.Raw, err)
	}
	checkSame(t, again, *m)
	var method string
	if raw := decoded(m.Raw, "method"); raw != nil {
		if err := json.Unmarshal(raw, &method); err != nil {
			t.Fatal(err)
		}
	}
	if method != m.Method {
		t.Errorf("method: got %q, want %q", m.Method, method)
	}
	for name, got := range map[string][]byte{"id": m.ID, "params": m.Params, "result": m.Result, "error": m.Error} {
		if want := decoded(m.Raw, name); !bytes.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if m.ID == nil {
		if m.Kind != Notification {
			t.Errorf("%v without an id", m.Kind)
		}
		return
	}
	with, err := Parse(m.WithID([]byte(`"new"`)))
	if err != nil {
		t.Fatalf("%s: %v", m.WithID([]byte(`"new"`)), err)
	}
	want := *m
	want.ID, want.Raw = []byte(`"new"`), with.Raw
	checkSame(t, with, want)
}

func FuzzField(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1}}`), "a", "b")
	f.Add([]byte("{\n\"a\" : { \"\\u0062\" : [1,\r2] } , \"a\":{\"b\":null}}"), "a", "b")
	f.Add([]byte(`{"a\n":{"b":1}}`), "a\n", "")
	f.Add([]byte(`{"a":1`), "a", "")
	f.Fuzz(func(t *testing.T, data []byte, first, second string) {
		before := bytes.Clone(data)
		one, two := Field(data, first), Field(data, first, second)
		if !bytes.Equal(before, data) {
			t.Fatalf("%q became %q", before, data)
		}
		if !json.Valid(data) || !utf8.Valid(data) || deepest(data) > 1000 {
			return
		}
		want := decoded(data, first)
		if !bytes.Equal(one, want) {
			t.Fatalf("%q: got %q, want %q", first, one, want)
		}
		if want = decoded(want, second); !bytes.Equal(two, want) {
			t.Fatalf("%q, %q: got %q, want %q", first, second, two, want)
		}
	})
}
