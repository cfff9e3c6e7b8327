package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A paged server lists its tools in pages.
type paged struct {
	pages map[string]string // the result or error of each page, by its cursor
	lists atomic.Int32
}

// answers returns the server's answers.
func (p *paged) answers() mcptest.Answers {
	return mcptest.Answers{
		"tools/list": func(m jsonrpc.Message, _ func(string)) string {
			p.lists.Add(1)
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, p.pages[string(jsonrpc.Field(m.Params, "cursor"))])
		},
		"tools/call": func(m jsonrpc.Message, _ func(string)) string {
			return mcptest.Text(m, string(jsonrpc.Field(m.Params, "arguments")))
		},
	}
}

// onPage returns a page with a tool, and a cursor as JSON, or no cursor.
func onPage(tool, cursor string) string {
	if cursor != "" {
		cursor = `,"nextCursor":` + cursor
	}
	return fmt.Sprintf(`"result":{"tools":[{"name":%q,"inputSchema":{"type":"object","properties":{"n":{"type":"string"}}}}]%s}`, tool, cursor)
}

// A list of tools is whole, or an error. A call needs only the page with its tool, and no page where the server does not list its tools.
func TestPagesOfTools(t *testing.T) {
	t.Parallel()
	const noPage = `"error":{"code":-32603,"message":"no such page"}`
	for name, test := range map[string]struct {
		pages  map[string]string
		want   string // the listed tools
		failed string // a part of the error
		last   string // the result of a call of the tool b, or a part of the error
	}{
		"text":              {map[string]string{"": onPage("a", `"x"`), `"x"`: onPage("b", "")}, "a b", "", `{"n":"5"}`},
		"a number":          {map[string]string{"": onPage("a", `7`), `7`: onPage("b", "")}, "a b", "", `{"n":"5"}`},
		"an empty one":      {map[string]string{"": onPage("a", `""`), `""`: onPage("b", "")}, "a b", "", `{"n":"5"}`},
		"empty for the end": {map[string]string{"": onPage("b", `""`), `""`: onPage("b", `""`)}, "b", "", `{"n":"5"}`},
		"one that stands":   {map[string]string{"": onPage("b", `"x"`), `"x"`: onPage("c", `"x"`)}, "", "comes again", `{"n":"5"}`},
		"a circle":          {map[string]string{"": onPage("a", `"x"`), `"x"`: onPage("c", `"y"`), `"y"`: onPage("d", `"x"`)}, "", "comes again", `{"n":"5"}`},
		"a page that fails": {map[string]string{"": onPage("a", `"x"`), `"x"`: noPage}, "", "no such page", `{"n":"5"}`},
		"no list":           {map[string]string{"": noPage}, "", "no such page", `{"n":"5"}`},
		"none of the name":  {map[string]string{"": onPage("a", "")}, "a", "", `unknown tool "b"`},
		"a later one fails": {map[string]string{"": onPage("b", `"x"`), `"x"`: noPage}, "", "no such page", `{"n":"5"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &paged{pages: test.pages}
			url := mcptest.Serve(t, &mcptest.Server{Stateless: true, Script: p.answers().Script}) + "/json"
			out, _, err := runInside(t, "", "tools", url)
			var names []string
			for line := range strings.Lines(out) {
				if name, _, _ := strings.Cut(line, " "); name != "" {
					names = append(names, strings.TrimSpace(name))
				}
			}
			if got := strings.Join(names, " "); got != test.want || (err != nil) != (test.failed != "") || err != nil && !strings.Contains(err.Error(), test.failed) {
				t.Errorf("listed %q, and %v", got, err)
			}
			p.lists.Store(0)
			out, _, err = runInside(t, "", "call", "--state=", url, "b", "--arg", "n=5")
			if strings.TrimSpace(out) != test.last && (err == nil || !strings.Contains(err.Error(), test.last)) {
				t.Errorf("the call is %q, %v", out, err)
			}
			if strings.Contains(test.pages[""], `"b"`) && p.lists.Load() != 1 {
				t.Errorf("it needed %d pages", p.lists.Load())
			}
		})
	}
}
