package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// The tool's schema decides the types of the arguments' values.
func TestArguments(t *testing.T) {
	t.Parallel()
	var it tool
	err := json.Unmarshal([]byte(`{"name":"it","inputSchema":{"type":"object","additionalProperties":false,"properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":["null","number"]},"b":{"type":"boolean"},
		"a":{"type":"array"},"o":{"type":"object"},"x":{},"u":{"anyOf":[{"type":"integer"},{"type":"boolean"},{"type":"null"}]},
		"t":{"type":["number","string"]},"e":{"enum":["a",3,null,"null"]},"c":{"const":7},"r":{"$ref":"#/$defs/R"},"l":{"anyOf":[{"$ref":"#/$defs/L"},{"type":"null"}]}},
		"$defs":{"R":{"type":"object"},"L":{"type":"array"}},"required":["s"]}}`), &it)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		object string
		pairs  string // separated by blanks
		want   string // the arguments, or a part of the error
	}{
		{"", "", `{}`},
		{"", "s=1", `{"s":"1"}`},
		{"", "i=1 n=1.5 b=true", `{"b":true,"i":1,"n":1.5}`},
		{"", "a=[1] o={} x=1", `{"a":[1],"o":{},"x":"1"}`},
		{` {"s":"a","i":2}`, "s=b=c", `{"i":2,"s":"b=c"}`},
		{"-", "s=b", `{"i":7,"s":"b"}`},
		{"", "u=5", `{"u":5}`},
		{"", "u=true", `{"u":true}`},
		{"", "u=null", `{"u":null}`},
		{"", "u=x", "want a whole number"},
		{"", "t=1.5", `{"t":1.5}`},
		{"", "t=one", `{"t":"one"}`},
		{"", "e=a", `{"e":"a"}`},
		{"", "e=3", `{"e":3}`},
		{"", "e=null", `{"e":null}`},
		{"", "e=b", `{"e":"b"}`},
		{"", "c=7", `{"c":7}`},
		{"", `r={"a":1}`, `{"r":{"a":1}}`},
		{"", "r=1", "want a JSON object"},
		{"", "l=[1]", `{"l":[1]}`},
		{"", "i=1.5", "want a whole number"},
		{"", "n=one", "want a number"},
		{"", "b=yes", "want true or false"},
		{"", "a={}", "want a JSON array"},
		{"", "o=[]", "want a JSON object"},
		{"", "y=1", "has no such argument: it has s:string [i:integer] [n:number] [b:boolean] [a:array] [o:object] [x] [u:integer] [t:number] [e] [c] [r:object] [l:array]"},
		{"", "=1", "want NAME=VALUE"},
		{"null", "", "not a JSON object"},
		{"[]", "", "not a JSON object"},
		{"{", "", "not a JSON object"},
	} {
		got, err := arguments(test.object, strings.Fields(test.pairs), &it, strings.NewReader(`{"i":7}`))
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != test.want && (err == nil || !strings.Contains(string(got), test.want)) {
			t.Errorf("%s %s: %s; want %s", test.object, test.pairs, got, test.want)
		}
	}
}

// A malformed member of a tool hides neither the tool nor its other members.
func TestOddTools(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"name":"odd","inputSchema":true}`, `{"name":"odd","inputSchema":[]}`, `{"name":"odd","inputSchema":null}`, `{"name":"odd"}`,
		`{"name":"odd","title":5,"inputSchema":{"type":"object","properties":[],"required":"x"}}`, `{"name":"odd","execution":"no","inputSchema":{"properties":{"a":true}}}`,
	} {
		var it tool
		if err := unmarshalEntry([]byte(text), &it); err != nil || it.Name != "odd" {
			t.Errorf("%s: %q, %v", text, it.Name, err)
		}
		if got, err := arguments("", []string{"a=1"}, &it, nil); err != nil || string(got) != `{"a":"1"}` {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

func TestUnknownTool(t *testing.T) {
	t.Parallel()
	list := []tool{{Name: "echo"}, {Name: "get_weather"}, {Name: "get_whether"}, {Name: "list_files"}}
	for name, want := range map[string]string{
		"ehco":       "did you mean echo?",
		"Get-Weathr": "did you mean get_weather or get_whether?",
		"files":      "did you mean list_files?",
		"qqqq":       "'holdfast tools' lists the 4 of the server",
	} {
		if err := unknownTool(name, list); !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
	if err := unknownTool("x", nil); !strings.HasSuffix(err.Error(), "the server has no tools") {
		t.Error(err)
	}
}

// Several hints may fit an error: the choice is always the same, and a hint about
// the server's own answer comes before one about the network.
func TestExplained(t *testing.T) {
	t.Parallel()
	auto := newRemoteFlags()
	for range 50 {
		got := auto.explained(errors.New("connection refused by the gateway (HTTP 404)")).Error()
		if !strings.HasSuffix(got, ": is the path right?") {
			t.Fatal(got)
		}
	}
}
