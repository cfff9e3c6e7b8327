package config

import (
	"fmt"
	"strings"
	"testing"
)

// FAILURES 23: a wrong entry costs that entry alone. The other servers are served, and the error says what is wrong with the entry.
func TestFailure23WrongEntry(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ entry, settings, says string }{
		"a wrong type":               {`"command":"x","args":"y"`, "", "args"},
		"a wrong type of env":        {`"command":"x","env":[1]`, "", "env"},
		"a list as url":              {`"url":["x"]`, "", "url"},
		"no command and no url":      {`"args":[]`, "", "neither a command nor a url"},
		"a command and a url":        {`"command":"x","url":"http://h/mcp"`, "", "both a command and a url"},
		"an unknown type":            {`"type":"carrier pigeon","url":"http://h/mcp"`, "", "pigeon"},
		"no URL":                     {`"url":"x"`, "", `"x" is no URL`},
		"a header with a line break": {`"url":"http://h/mcp","headers":{"A":"b\nc"}`, "", "cannot be sent"},
		"a bad variable's name":      {`"command":"x","env":{"A=B":"c"}`, "", "environment variable"},
		"wrong settings of its own":  {`"command":"x","holdfast":{"deny":"all"}`, "", "deny"},
		"wrong settings":             {`"command":"x"`, `"bad":{"timeout":"soon"}`, "timeout"},
		"no object":                  {"", "", "an object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entry := "{" + row.entry + "}"
			if row.entry == "" {
				entry = "7"
			}
			text := fmt.Sprintf(`{"mcpServers":{"good":{"command":"a"},"bad":%s,"other":{"url":"http://h/mcp"}},"holdfast":{"servers":{%s}}}`, entry, row.settings)
			file, err := Parse("mcp.json", []byte(text), Options{Workspace: t.TempDir()})
			if err != nil {
				t.Fatalf("the whole file is refused: %v", err)
			}
			if len(file.Servers) != 2 || file.Servers[0].Name != "good" || file.Servers[1].Name != "other" {
				t.Errorf("served are %v", file.Servers)
			}
			if len(file.LeftOut) != 1 || file.LeftOut[0].Name != "bad" || !strings.Contains(file.LeftOut[0].Err.Error(), row.says) {
				t.Errorf("left out are %v", file.LeftOut)
			}
		})
	}
	// Mistakes that cannot be pinned to one entry are mistakes of the file: settings for an unknown server may be meant for
	// another one, and of two servers at one path neither is the wrong one.
	for name, text := range map[string]string{
		"settings for no server":  `{"mcpServers":{"a":{"command":"x"}},"holdfast":{"servers":{"b":{"deny":["*"]}}}}`,
		"wrong settings for none": `{"mcpServers":{"a":{"command":"x"}},"holdfast":{"servers":{"b":{"deny":"all"}}}}`,
		"one path":                `{"mcpServers":{"a":{"command":"x","holdfast":{"path":"/p"}},"b":{"command":"y","holdfast":{"path":"/p"}}}}`,
		"twice":                   `{"mcpServers":{"a":{"command":"x"},"a":{"command":"y"}}}`,
		"only wrong ones":         `{"mcpServers":{"a":{"url":["x"]}}}`,
		"no JSON":                 `{"mcpServers":{"a":{"command":"x"}`,
	} {
		if file, err := Parse("mcp.json", []byte(text), Options{Workspace: t.TempDir()}); err == nil {
			t.Errorf("%s: served is %+v", name, file)
		}
	}
}
