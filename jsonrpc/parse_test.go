package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// nested returns an array that is depth levels deep.
func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

func TestParse(t *testing.T) {
	tests := []struct {
		name, text string
		want       Message
	}{
		{
			"request", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`,
			Message{Kind: Request, ID: []byte(`1`), Method: "tools/call", Params: []byte(`{"name":"x"}`)},
		}, {
			"request without params", `{"jsonrpc":"2.0","id":"a","method":"ping"}`,
			Message{Kind: Request, ID: []byte(`"a"`), Method: "ping"},
		}, {
			"params by position", `{"jsonrpc":"2.0","id":1,"method":"m","params":[1,null]}`,
			Message{Kind: Request, ID: []byte(`1`), Method: "m", Params: []byte(`[1,null]`)},
		}, {
			"notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			Message{Kind: Notification, Method: "notifications/initialized"},
		}, {
			"result", `{"jsonrpc":"2.0","id":1,"result":{"a":[true,false,null,-1.5e+3]}}`,
			Message{Kind: Response, ID: []byte(`1`), Result: []byte(`{"a":[true,false,null,-1.5e+3]}`)},
		}, {
			"null result", `{"jsonrpc":"2.0","id":1,"result":null}`,
			Message{Kind: Response, ID: []byte(`1`), Result: []byte(`null`)},
		}, {
			"error", `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`,
			Message{Kind: Response, ID: []byte(`1`), Error: []byte(`{"code":-32603,"message":"no"}`)},
		}, {
			"members in any order, others beside them", `{"x":{"id":2},"method":"m","id":0,"jsonrpc":"2.0","x":[]}`,
			Message{Kind: Request, ID: []byte(`0`), Method: "m"},
		}, {
			"escaped names", `{"\u006asonrpc":"2.0","i\u0064":7,"\u006dethod":"m"}`,
			Message{Kind: Request, ID: []byte(`7`), Method: "m"},
		}, {
			"names that are nearly others'", `{"jsonrpc":"2.0","id":7,"ids":8,"metho":"x","method":"m","Result":{},"x":1}`,
			Message{Kind: Request, ID: []byte(`7`), Method: "m"},
		}, {
			"escaped method", `{"jsonrpc":"2.0","id":7,"method":"tools\/\u0063all"}`,
			Message{Kind: Request, ID: []byte(`7`), Method: "tools/call"},
		}, {
			"method beyond ASCII", `{"jsonrpc":"2.0","id":7,"method":"grüße\ud83d\ude00"}`,
			Message{Kind: Request, ID: []byte(`7`), Method: "grüße😀"},
		}, {
			"id with escapes is kept raw", `{"jsonrpc":"2.0","id":"\u0031\n\"","method":"m"}`,
			Message{Kind: Request, ID: []byte(`"\u0031\n\""`), Method: "m"},
		}, {
			"empty string id", `{"jsonrpc":"2.0","id":"","method":"m"}`,
			Message{Kind: Request, ID: []byte(`""`), Method: "m"},
		}, {
			"negative id", `{"jsonrpc":"2.0","id":-3,"method":"m"}`,
			Message{Kind: Request, ID: []byte(`-3`), Method: "m"},
		}, {
			"id that no int64 holds", `{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"m"}`,
			Message{Kind: Request, ID: []byte(`123456789012345678901234567890`), Method: "m"},
		}, {
			"white space around everything", " \t\r\n{ \"jsonrpc\" :\n\"2.0\" ,\r\"id\": 1 , \"method\" : \"m\" }\n ",
			Message{Kind: Request, ID: []byte(`1`), Method: "m"},
		}, {
			"lone surrogate", `{"jsonrpc":"2.0","id":1,"method":"m","params":["\ud800"]}`,
			Message{Kind: Request, ID: []byte(`1`), Method: "m", Params: []byte(`["\ud800"]`)},
		}, {
			"as deep as may be", `{"jsonrpc":"2.0","method":"m","params":` + nested(999) + `}`,
			Message{Kind: Notification, Method: "m", Params: []byte(nested(999))},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			blank := strings.NewReplacer("\n", " ", "\r", " ").Replace
			test.want.Raw = []byte(strings.Trim(blank(test.text), " \t"))
			checkSame(t, got, test.want)
		})
	}
}

func checkSame(t *testing.T, got, want Message) {
	t.Helper()
	if got.Kind != want.Kind {
		t.Errorf("kind: got %v, want %v", got.Kind, want.Kind)
	}
	if got.Method != want.Method {
		t.Errorf("method: got %q, want %q", got.Method, want.Method)
	}
	for _, f := range []struct {
		name      string
		got, want []byte
	}{
		{"id", got.ID, want.ID},
		{"params", got.Params, want.Params},
		{"result", got.Result, want.Result},
		{"error", got.Error, want.Error},
		{"raw", got.Raw, want.Raw},
	} {
		if !bytes.Equal(f.got, f.want) || (f.got == nil) != (f.want == nil) {
			t.Errorf("%s: got %q, want %q", f.name, f.got, f.want)
		}
	}
}

// malformed are texts that are not JSON.
var malformed = map[string]string{
	"nothing":                 ``,
	"blanks":                  " \n\t",
	"byte order mark":         "\ufeff" + `{"jsonrpc":"2.0","method":"m"}`,
	"no value":                `x`,
	"cut word":                `tru`,
	"wrong word":              `nulL`,
	"word that goes on":       `{"a":trues}`,
	"cut after {":             `{`,
	"cut after a name":        `{"jsonrpc"`,
	"cut after :":             `{"jsonrpc":`,
	"cut after a value":       `{"jsonrpc":"2.0"`,
	"cut after ,":             `{"jsonrpc":"2.0",`,
	"cut in a string":         `{"jsonrpc":"2.`,
	"cut in an escape":        `{"jsonrpc":"\`,
	"cut in \\u":              `{"jsonrpc":"\u12`,
	"comma before }":          `{"jsonrpc":"2.0","method":"m",}`,
	"comma before ]":          `{"jsonrpc":"2.0","method":"m","params":[1,]}`,
	"comma alone":             `{,}`,
	"no comma":                `{"jsonrpc":"2.0" "method":"m"}`,
	"no colon":                `{"jsonrpc" "2.0"}`,
	"name that is no string":  `{jsonrpc:"2.0"}`,
	"name that is a number":   `{1:2}`,
	"closed with ]":           `{"jsonrpc":"2.0","method":"m"]`,
	"array closed with }":     `{"jsonrpc":"2.0","method":"m","params":[1}}`,
	"text after it":           `{"jsonrpc":"2.0","method":"m"} x`,
	"text after an invalid":   `{"jsonrpc":"1.0","method":"m"} x`,
	"two messages":            `{"jsonrpc":"2.0","method":"m"}{"jsonrpc":"2.0","method":"m"}`,
	"NUL after it":            `{"jsonrpc":"2.0","method":"m"}` + "\x00",
	"leading zero":            `{"jsonrpc":"2.0","id":01,"method":"m"}`,
	"plus sign":               `{"jsonrpc":"2.0","id":+1,"method":"m"}`,
	"minus alone":             `{"jsonrpc":"2.0","id":-,"method":"m"}`,
	"point without a digit":   `{"a":1.}`,
	"point first":             `{"a":.5}`,
	"exponent without digits": `{"a":1e+}`,
	"hexadecimal":             `{"a":0x10}`,
	"NaN":                     `{"a":NaN}`,
	"single quotes":           `{'a':1}`,
	"comment":                 `{"a":1} // no`,
	"unknown escape":          `{"a":"\x41"}`,
	"bad \\u":                 `{"a":"\u12g4"}`,
	"line break in a string":  "{\"a\":\"b\nc\"}",
	"tab in a string":         "{\"a\":\"b\tc\"}",
	"NUL in a string":         "{\"a\":\"b\x00c\"}",
	"control in a name":       "{\"a\x1f\":1}",
	"form feed as a blank":    "{\f\"a\":1}",
	"no-break space":          "{\u00a0\"a\":1}",
	"invalid UTF-8":           "{\"a\":\"\xff\"}",
	"cut UTF-8":               "{\"a\":\"\xc3\"}",
	"overlong UTF-8":          "{\"a\":\"\xc0\xaf\"}",
	"surrogate in UTF-8":      "{\"a\":\"\xed\xa0\x80\"}",
	"UTF-8 beyond Unicode":    "{\"a\":\"\xf4\x90\x80\x80\"}",
	"too deep":                `{"jsonrpc":"2.0","method":"m","params":` + nested(1000) + `}`,
	"deep beyond any stack":   strings.Repeat(`[{"a":`, 1<<20),
}

// invalid are JSON texts that are not messages.
var invalid = map[string]string{
	"empty method":              `{"jsonrpc":"2.0","id":7,"method":""}`,
	"array":                     `[]`,
	"string":                    `"jsonrpc"`,
	"number":                    `-0.5e3`,
	"null":                      `null`,
	"true":                      ` true `,
	"empty object":              `{}`,
	"no version":                `{"id":1,"method":"m"}`,
	"version 1":                 `{"jsonrpc":"1.0","id":1,"method":"m"}`,
	"version as a number":       `{"jsonrpc":2.0,"id":1,"method":"m"}`,
	"version with an escape":    `{"jsonrpc":"\u0032.0","id":1,"method":"m"}`,
	"null id":                   `{"jsonrpc":"2.0","id":null,"method":"m"}`,
	"null id of a response":     `{"jsonrpc":"2.0","id":null,"result":{}}`,
	"fraction as id":            `{"jsonrpc":"2.0","id":1.5,"method":"m"}`,
	"negative exponent in id":   `{"jsonrpc":"2.0","id":1e-3,"method":"m"}`,
	"endless id":                `{"jsonrpc":"2.0","id":1e400,"method":"m"}`,
	"integer beyond a float":    `{"jsonrpc":"2.0","id":1e17,"method":"m"}`,
	"true as id":                `{"jsonrpc":"2.0","id":true,"method":"m"}`,
	"object as id":              `{"jsonrpc":"2.0","id":{},"method":"m"}`,
	"array as id":               `{"jsonrpc":"2.0","id":[1],"method":"m"}`,
	"method no string":          `{"jsonrpc":"2.0","id":1,"method":5}`,
	"null method":               `{"jsonrpc":"2.0","id":1,"method":null}`,
	"null everywhere":           `{"jsonrpc":"2.0","id":null,"method":null,"params":null,"result":null,"error":null}`,
	"params a string":           `{"jsonrpc":"2.0","id":1,"method":"m","params":"{}"}`,
	"method and result":         `{"jsonrpc":"2.0","id":1,"method":"m","result":{}}`,
	"method and error":          `{"jsonrpc":"2.0","id":1,"method":"m","error":{}}`,
	"id alone":                  `{"jsonrpc":"2.0","id":1}`,
	"params alone":              `{"jsonrpc":"2.0","id":1,"params":{}}`,
	"result and error":          `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`,
	"result without id":         `{"jsonrpc":"2.0","result":{}}`,
	"error without id":          `{"jsonrpc":"2.0","error":{"code":1,"message":""}}`,
	"error with null id":        `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`,
	"error no object":           `{"jsonrpc":"2.0","id":1,"error":"no"}`,
	"null error":                `{"jsonrpc":"2.0","id":1,"error":null}`,
	"id twice":                  `{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}`,
	"method twice, one escaped": `{"jsonrpc":"2.0","id":1,"method":"a","\u006dethod":"b"}`,
	"params twice":              `{"jsonrpc":"2.0","id":1,"method":"a","params":{},"params":{}}`,
	"version twice":             `{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"a"}`,
	"result twice":              `{"jsonrpc":"2.0","id":1,"result":1,"result":2}`,
	"Method beside method":      `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}`,
	"ID of a notification":      `{"jsonrpc":"2.0","ID":1,"method":"tools/call"}`,
	"PARAMS alone":              `{"jsonrpc":"2.0","id":1,"method":"m","PARAMS":{}}`,
	"params with a long s":      `{"jsonrpc":"2.0","id":1,"method":"m","paramſ":{}}`,
	"Params, escaped":           `{"jsonrpc":"2.0","id":1,"method":"m","\u0050arams":{}}`,
	"a message inside an array": `[{"jsonrpc":"2.0","method":"m"}]`,
}

func TestParseErrors(t *testing.T) {
	check := func(name, text string, want error) {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(text))
			if !errors.Is(err, want) {
				t.Errorf("got error %v, want %v", err, want)
			}
			if got.Kind != 0 || got.Raw != nil {
				t.Errorf("a message beside the error: %+v", got)
			}
		})
	}
	for name, text := range malformed {
		check(name, text, ErrParse)
	}
	for name, text := range invalid {
		check(name, text, ErrInvalid)
	}
	// Cut off at any byte, the message is not valid JSON.
	whole := `{"jsonrpc":"2.0","id":-1.5e-3,"x":[true,false,null,{"é":"\u00e9\\"}],"method":"m"}`
	for i := range len(whole) {
		if _, err := Parse([]byte(whole[:i])); !errors.Is(err, ErrParse) {
			t.Errorf("%q: got error %v", whole[:i], err)
		}
	}
}

func TestParseBody(t *testing.T) {
	const a, b, c = `{"jsonrpc":"2.0","id":1,"method":"a"}`, `{"jsonrpc":"2.0","method":"b"}`, `{"jsonrpc":"2.0","id":2,"result":[]}`
	good := []struct {
		name, text string
		batch      bool
		raw        []string
	}{
		{"one", a, false, []string{a}},
		{"one in white space", "\r\n " + b + "\n", false, []string{b}},
		{"batch of one", `[` + a + `]`, true, []string{a}},
		{"batch", "\n[ " + a + " ,\n" + b + "," + c + "\r] ", true, []string{a, b, c}},
		{"one many times", `[` + a + `,` + a + `]`, true, []string{a, a}},
		{
			"as deep as may be", `[{"jsonrpc":"2.0","method":"m","params":` + nested(998) + `}]`, true,
			[]string{`{"jsonrpc":"2.0","method":"m","params":` + nested(998) + `}`},
		},
	}
	for _, test := range good {
		t.Run(test.name, func(t *testing.T) {
			msgs, batch, err := ParseBody([]byte(test.text))
			if err != nil || batch != test.batch {
				t.Fatalf("batch %v, error %v", batch, err)
			}
			var raw []string
			for i := range msgs {
				raw = append(raw, string(msgs[i].Raw))
			}
			if !slices.Equal(raw, test.raw) {
				t.Errorf("got %q, want %q", raw, test.raw)
			}
		})
	}
	bad := []struct {
		name, text string
		batch      bool
		want       error
	}{
		{"nothing", "", false, ErrParse},
		{"empty batch", " [ ] ", true, ErrInvalid},
		{"batch cut", `[` + a, true, ErrParse},
		{"batch cut after a comma", `[` + a + `,`, true, ErrParse},
		{"comma at its end", `[` + a + `,]`, true, ErrParse},
		{"comma at its beginning", `[,` + a + `]`, true, ErrParse},
		{"no comma", `[` + a + b + `]`, true, ErrParse},
		{"text after it", `[` + a + `]]`, true, ErrParse},
		{"one is invalid", `[` + a + `,1]`, true, ErrInvalid},
		{"one is a batch", `[` + a + `,[` + b + `]]`, true, ErrInvalid},
		{"malformed outweighs invalid", `[1,{]`, true, ErrParse},
		{"too deep", `[{"jsonrpc":"2.0","method":"m","params":` + nested(999) + `}]`, true, ErrParse},
	}
	for _, test := range bad {
		t.Run(test.name, func(t *testing.T) {
			msgs, batch, err := ParseBody([]byte(test.text))
			if !errors.Is(err, test.want) || batch != test.batch || msgs != nil {
				t.Errorf("%d messages, batch %v, error %v; want %v", len(msgs), batch, err, test.want)
			}
		})
	}
	for name, text := range malformed {
		if _, _, err := ParseBody([]byte(text)); !errors.Is(err, ErrParse) {
			t.Errorf("%s: got error %v", name, err)
		}
		if _, _, err := ParseBody([]byte("[" + text + "]")); err == nil {
			t.Errorf("%s: taken in a batch", name)
		}
	}
	for name, text := range invalid {
		if _, _, err := ParseBody([]byte("[" + text + "]")); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s in a batch: got error %v", name, err)
		}
	}
}

// The parts of a message are slices of one text: an append to one part must not
// change another.
func TestPartsHaveNoRoom(t *testing.T) {
	const text = `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":1},"c":2}}`
	m, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{m.ID, m.Params, m.Raw, Field(m.Params, "a"), Field(m.Params, "a", "b")} {
		_ = append(part, "XXXX"...)
	}
	if string(m.Raw) != text {
		t.Errorf("became %s", m.Raw)
	}
}

func TestField(t *testing.T) {
	tests := []struct {
		text string
		path []string
		want string // "": nil
	}{
		{`{"a":1}`, nil, `{"a":1}`},
		{`{"a":1}`, []string{"a"}, `1`},
		{`{"a":1}`, []string{"b"}, ``},
		{`{"a":1}`, []string{""}, ``},
		{`{"":1}`, []string{""}, `1`},
		{`{"a":{"b":{"c":"d"}},"b":2}`, []string{"a", "b", "c"}, `"d"`},
		{`{"a":{"b":{"c":"d"}},"b":2}`, []string{"a", "c"}, ``},
		{`{"a":[{"b":1}]}`, []string{"a", "b"}, ``},
		{`{"a":null}`, []string{"a"}, `null`},
		{`{"a":null}`, []string{"a", "b"}, ``},
		{`{"a":1,"a":2}`, []string{"a"}, `2`},
		{`{"a":{"b":1},"a":{}}`, []string{"a", "b"}, ``},
		{`{"\u0061":1}`, []string{"a"}, `1`},
		{`{"\n":1}`, []string{"\n"}, `1`},
		{`{"é":1}`, []string{"é"}, `1`},
		{"\n { \"a\"\r\n: \t{\"b\" :1 } }", []string{"a", "b"}, `1`},
		{`[1]`, []string{"a"}, ``},
		{`"a"`, []string{"a"}, ``},
		{``, []string{"a"}, ``},
		{`{`, []string{"a"}, ``},
		{`{"a":1`, []string{"a"}, ``},
		{`{"a":}`, []string{"a"}, ``},
	}
	for _, test := range tests {
		data := []byte(test.text)
		got := Field(data, test.path...)
		if string(got) != test.want || (got == nil) != (test.want == "") {
			t.Errorf("%s %q: got %q, want %q", test.text, test.path, got, test.want)
		}
		if string(data) != test.text {
			t.Errorf("%q became %q", test.text, data)
		}
	}
}

func TestString(t *testing.T) {
	for raw, want := range map[string]string{
		`"a"`: "a", `""`: "", `"\u0061\n"`: "a\n", `"é"`: "é", `1`: "", `null`: "", ``: "", `"`: "", `{}`: "",
	} {
		if got := String([]byte(raw)); got != want {
			t.Errorf("%s: got %q, want %q", raw, got, want)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	text := []byte(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello, world","times":3}}}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkField(b *testing.B) {
	params := []byte(`{"name":"echo","arguments":{"text":"hello, world","times":3},"_meta":{"progressToken":12}}`)
	b.SetBytes(int64(len(params)))
	b.ReportAllocs()
	for b.Loop() {
		if Field(params, "_meta", "progressToken") == nil {
			b.Fatal("not found")
		}
	}
}

// deepest returns how many levels of arrays and objects well-formed JSON has.
func deepest(data []byte) int {
	depth, most, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}

// decoded returns an object's member as encoding/json decodes it, or nil if there is none.
func decoded(data []byte, name string) []byte {
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	return all[name]
}

// skip, which takes eight bytes at a time, stops at the first byte that is not plain. Only within the last seven bytes it may stop earlier.
func TestSkip(t *testing.T) {
	for c := range 256 {
		for next := range 256 {
			for at := range 9 {
				b := []byte("abcdefghijklmnop")
				b[at], b[at+1] = byte(c), byte(next)
				want := 0
				for want < len(b) && plain[b[want]] {
					want++
				}
				p := parser{b: b}
				if p.skip(); p.i > want || p.i < min(want, len(b)-7) {
					t.Fatalf("skip stops at %d of %q, want %d", p.i, b, want)
				}
			}
		}
	}
}

func TestFieldNamesWithEscapes(t *testing.T) {
	data := []byte(`{"a":{"\u0062":"c"},"d":"\\"}`)
	if got := string(Field(data, "a", "b")); got != `"c"` {
		t.Errorf("Field returns %q", got)
	}
	if got := Field(data, "a", "c"); got != nil {
		t.Errorf("Field returns %q for a name that is a value's", got)
	}
}
