package terminal

import (
	"strings"
	"testing"
)

// What is typed into a form is checked as the schema of the field says.
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

// Fields come in the schema's order, with what an empty line gives.
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
