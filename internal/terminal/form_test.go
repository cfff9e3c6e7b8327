package terminal

import (
	"strings"
	"testing"
)

// A typed value is checked against the field's schema.
func TestField(t *testing.T) {
	t.Parallel()
	titled := `{"type":"string","oneOf":[{"const":"#f00","title":"Red"},{"const":"#0f0","title":"Green"}]}`
	several := `{"type":"array","minItems":1,"maxItems":2,"items":{"type":"string","enum":["a","b","c"]}}`
	for _, test := range []struct{ schema, text, want string }{
		{`{"type":"string"}`, "Ada", `"Ada"`},
		{`{"type":"string","minLength":2}`, "A", "want at least 2 characters"},
		{`{"type":"string","maxLength":2}`, "äöü", "want at most 2 characters"},
		{`{"type":"string","maxLength":2}`, "äö", `"äö"`},
		{`{"type":"string","format":"email"}`, "ada@example.com", `"ada@example.com"`},
		{`{"type":"string","format":"email"}`, "Ada <ada@example.com>", "want an e-mail address like ada@example.com"},
		{`{"type":"string","format":"uri"}`, "example", "want a URI like https://example.com/"},
		{`{"type":"string","format":"uri"}`, "https://example.com", `"https://example.com"`},
		{`{"type":"string","format":"date"}`, "2026-13-01", "want a date like 2026-01-31"},
		{`{"type":"string","format":"date"}`, "2026-01-31", `"2026-01-31"`},
		{`{"type":"string","format":"date-time"}`, "now", "want a date and time like 2026-01-31T12:00:00Z"},
		{`{"type":"number"}`, "1.5", "1.5"},
		{`{"type":"number"}`, "0x10", "want a number"},
		{`{"type":"number"}`, "Inf", "want a number"},
		{`{"type":"integer"}`, "1.5", "want a whole number"},
		{`{"type":"integer","minimum":3}`, "2", "want at least 3"},
		{`{"type":"integer","maximum":3}`, "4", "want at most 3"},
		{`{"type":"integer","minimum":3,"maximum":3}`, "3", "3"},
		{`{"type":"boolean"}`, "Yes", "true"},
		{`{"type":"boolean"}`, "n", "false"},
		{`{"type":"boolean"}`, "perhaps", "want yes or no"},
		{`{"type":"string","enum":["a","b"]}`, "b", `"b"`},
		{`{"type":"string","enum":["a","b"]}`, "1", `"a"`},
		{`{"type":"string","enum":["2","1"]}`, "1", `"1"`},
		{`{"type":"string","enum":["a","b"],"enumNames":["First","Second"]}`, "second", `"b"`},
		{`{"type":"string","enum":["a","b"]}`, "3", `there is no "3": want a number from 1 to 2`},
		{titled, "green", `"#0f0"`},
		{titled, "#f00", `"#f00"`},
		{several, "a, 3", `["a","c"]`},
		{several, "b,b", `["b"]`},
		{several, ",", "want at least 1"},
		{several, "a,b,c", "want at most 2"},
		{several, "d", `there is no "d": want a number from 1 to 3`},
		{`{"type":"array","items":{"anyOf":[{"const":"x","title":"An X"}]}}`, "an x", `["x"]`},
		{`{"type":"object"}`, `{"a":1}`, `{"a":1}`},
		{`{"type":7}`, "what?", "want JSON"},
	} {
		fields := fieldsOf([]byte(`{"properties":{"it":` + test.schema + `}}`))
		if len(fields) != 1 || fields[0].name != "it" {
			t.Fatalf("%s: %+v", test.schema, fields)
		}
		got, err := fields[0].parse(test.text)
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != test.want {
			t.Errorf("%s, %s: %s; want %s", test.schema, test.text, got, test.want)
		}
	}
}

// Fields come in the schema's order, with the value of an empty line as a hint.
func TestFields(t *testing.T) {
	t.Parallel()
	var all []string
	for _, f := range fieldsOf([]byte(`{"type":"object","required":["b","e"],"properties":{
		"c":{"type":"string","title":"A title"},"b":{"type":"string"},"a":{"type":"string","default":"x"},
		"d":{"type":"array","items":{"enum":["p","q"]},"default":["p","q"]},"e":{"type":"boolean"},
		"g":{"type":"string","oneOf":[{"const":"h-1","title":"Hero"}],"default":"h-1"},"f":{"type":"integer","default":0}}}`)) {
		all = append(all, f.label()+" "+f.hint())
	}
	want := "A title none|b |a x|d p, q|e y/n|g Hero|f 0"
	if got := strings.Join(all, "|"); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// A required field is asked for, also if the schema does not describe it.
func TestFieldsRequired(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"properties":{"a":{},"b":{}},"required":["b"]}`:        "a b!",
		`{"properties":{"a":{}},"required":["b","a","b"]}`:       "a! b!",
		`{"required":["b"]}`:                                     "b!",
		`{"properties":{"a":{"type":7}},"required":["a",1,"b"]}`: "a! b!",
		`{"properties":{"a":{}},"required":"a"}`:                 "a",
	} {
		var got []string
		for _, f := range fieldsOf([]byte(schema)) {
			name := f.name
			if f.required {
				name += "!"
			}
			got = append(got, name)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s; want %s", schema, text, want)
		}
	}
}

// A default is offered only if the field's schema allows it.
func TestFieldDefault(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]bool{
		`{"type":"integer","minimum":3,"default":3}`:                                      true,
		`{"type":"integer","minimum":3,"default":2}`:                                      false,
		`{"type":"integer","default":2.5}`:                                                false,
		`{"type":"integer","default":"2"}`:                                                false,
		`{"type":"string","default":"x"}`:                                                 true,
		`{"type":"string","default":7}`:                                                   false,
		`{"type":"string","minLength":2,"default":"x"}`:                                   false,
		`{"type":"string","format":"email","default":"x"}`:                                false,
		`{"type":"string","enum":["a","b"],"default":"b"}`:                                true,
		`{"type":"string","enum":["a","b"],"default":"2"}`:                                false,
		`{"enum":["a","b"],"default":"c"}`:                                                false,
		`{"type":"boolean","default":false}`:                                              true,
		`{"type":"boolean","default":"no"}`:                                               false,
		`{"type":"array","items":{"enum":["a","b"]},"default":["a","b"]}`:                 true,
		`{"type":"array","items":{"enum":["a","b"]},"default":["c"]}`:                     false,
		`{"type":"array","maxItems":1,"items":{"enum":["a","b"]},"default":["a","b"]}`:    false,
		`{"type":"array","items":{"anyOf":[{"const":"x","title":"An X"}]},"default":"x"}`: false,
		`{"type":"object","default":{"a":1}}`:                                             true,
		`{"type":"string","oneOf":[{"const":"#f00","title":"Red"}],"default":"Red"}`:      false,
		`{"type":"string","oneOf":[{"const":"#f00","title":"Red"}],"default":"#f00"}`:     true,
		`{"type":"string","default":null}`:                                                false,
		`{"type":"number","maximum":1,"default":1.5}`:                                     false,
		`{"type":"number","maximum":1,"default":0.5}`:                                     true,
	} {
		if f := fieldsOf([]byte(`{"properties":{"it":` + schema + `}}`))[0]; f.Default != nil != want {
			t.Errorf("%s: offered %s", schema, f.Default)
		}
	}
}
