package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/tailscale/hujson"
)

// schema returns the JSON schema for editors.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("../../docs/holdfast.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// The schema for editors has exactly the members that are read.
func TestSchemaMembers(t *testing.T) {
	t.Parallel()
	s := schema(t)
	for name, c := range map[string]struct {
		of any
		is *jsonschema.Schema
	}{
		"the file": {hostFile{}, s},
		"server":   {hostServer{}, s.Defs["server"]},
		"command":  {hostCommand{}, s.Defs["server"].Properties["command"]},
		"rule":     {hostRule{}, s.Defs["rule"]},
		"mcp":      {hostMCP{}, s.Properties["mcp"]},
		"input":    {hostInput{}, s.Defs["input"]},
		"settings": {settings{}, s.Defs["settings"]},
		"holdfast": {ours{}, s.Defs["holdfast"]},
		"host":     {patience{}, s.Defs["holdfast"].Properties["hosts"].AdditionalProperties},
		"auth":     {authSettings{}, s.Defs["auth"]},
		"upstream": {upstreamAuth{}, s.Defs["auth"].Properties["upstream"]},
		"token":    {tokenRequest{}, s.Defs["tokenRequest"]},
		"tools":    {toolList{}, s.Defs["settings"].Properties["tools"]},
	} {
		var has []string
		for member := range c.is.Properties {
			has = append(has, member)
		}
		slices.Sort(has)
		if want := settingsOf(reflect.TypeOf(c.of)); !slices.Equal(has, want) {
			t.Errorf("%s:\nthe schema has %v\n      types have %v", name, has, want)
		}
	}
}

// A file without mistakes fits the schema, and files with mistakes do not.
func TestSchemaFits(t *testing.T) {
	t.Parallel()
	resolved, err := schema(t).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(text []byte) error {
		plain, err := hujson.Standardize(text)
		if err != nil {
			return err
		}
		var v any
		if err := json.Unmarshal(plain, &v); err != nil {
			return err
		}
		return resolved.Validate(v)
	}
	files, _ := filepath.Glob("testdata/*.json")
	if len(files) < 4 {
		t.Fatal("no examples")
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, fits := range map[string]bool{
		`{"mcpServers": {"a": {"command": "x", "other": 1, "holdfast": {"stopIdle": "1m30s", "tools": {"deny": ["*"]}}}}, "holdfast": {"merge": true}}`: true,
		`{"mcpServers": {"a": {"command": "x", "holdfast": {"stopIdle": 5}}}}`:                                                                          false,
		`{"mcpServers": {"a": {"command": "x", "holdfast": {"stopidle": "5s"}}}}`:                                                                       false,
		`{"mcpServers": {"*": {"command": "x"}}}`:                                                                                                       false,
		`{"mcpServers": {"a": {"url": "x", "type": "ftp"}}}`:                                                                                            false,
		`{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": {"scopes": ["a:b"], "tools": {"*": ["x"]}, "upstream": "passthrough"}}}}}`:       true,
		`{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": "passthrough"}}}}`:                                                               true,
		`{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": "none"}}}}`:                                                                      false,
		`{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": {"scopes": ["a b"]}}}}}`:                                                         false,
		`{"holdfast": {"auth": {"upstream": {"clientCredentials": {"tokenUrl": "https://a/t", "clientId": "h"}}}}}`:                                     true,
		`{"holdfast": {"auth": {"upstream": {"tokenExchange": {"tokenUrl": "https://a/t"}}}}}`:                                                          false,
		`{"holdfast": {"merge": "yes"}}`: false,
	} {
		if err := validate([]byte(text)); (err == nil) != fits {
			t.Errorf("%s: %v", text, err)
		}
	}
}
