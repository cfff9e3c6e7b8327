package sdk

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

// Results that consist of texts are encoded as the SDK and package json encode them, in both eras.
func TestTextsAreWrittenAsTheSDKWritesThem(t *testing.T) {
	info := []byte(`{"name":"test","version":"1"}`)
	m := &modern{}
	m.info.Store(&info)
	texts := func(all ...string) *mcp.CallToolResult {
		r := &mcp.CallToolResult{}
		for _, s := range all {
			r.Content = append(r.Content, &mcp.TextContent{Text: s})
		}
		return r
	}
	wrong := texts("no such file")
	wrong.IsError = true
	for _, r := range []*mcp.CallToolResult{
		texts("a"), texts(""), texts("a", "", "b"), wrong,
		texts("a\nb\tc\x00\x1f\x7f"), texts(`"\/`), texts("<&>"), texts("äöü €\u2028\u2029😀"), texts("\xff\xc0a"),
		texts(`"_meta":{"resultType":1}`),
	} {
		for _, c := range []*conn{{}, {modern: m}} {
			text := mcptest.Must(encode(r))(t)
			if c.modern != nil {
				// A text that looks like a member of the result must not change how a modern result is completed.
				head := `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":` + string(info) + `},`
				text = []byte(head + string(text[1:]))
			}
			want := success([]byte("7"), text)
			got, ok := c.textOf([]byte("7"), r)
			if !ok || string(got.Raw) != string(want.Raw) || string(got.Result) != string(want.Result) {
				t.Errorf("%s\nis written as %s\nwith the result %s", want.Raw, got.Raw, got.Result)
			}
		}
	}
}

func TestOtherResultsAreTheSDKs(t *testing.T) {
	text := func() *mcp.TextContent { return &mcp.TextContent{Text: "a"} }
	with := func(do func(*mcp.CallToolResult, *mcp.TextContent)) *mcp.CallToolResult {
		one := text()
		r := &mcp.CallToolResult{Content: []mcp.Content{text(), one}}
		do(r, one)
		return r
	}
	for name, r := range map[string]mcp.Result{
		"nil":             (*mcp.CallToolResult)(nil),
		"another result":  &mcp.ListToolsResult{},
		"no content":      &mcp.CallToolResult{},
		"empty content":   &mcp.CallToolResult{Content: []mcp.Content{}},
		"_meta":           with(func(r *mcp.CallToolResult, _ *mcp.TextContent) { r.Meta = mcp.Meta{"a": 1} }),
		"structured":      with(func(r *mcp.CallToolResult, _ *mcp.TextContent) { r.StructuredContent = 1 }),
		"input requests":  with(func(r *mcp.CallToolResult, _ *mcp.TextContent) { r.InputRequests = mcp.InputRequestMap{} }),
		"a request state": with(func(r *mcp.CallToolResult, _ *mcp.TextContent) { r.RequestState = "a" }),
		"an image":        with(func(r *mcp.CallToolResult, _ *mcp.TextContent) { r.Content[0] = &mcp.ImageContent{} }),
		"a nil text":      with(func(r *mcp.CallToolResult, _ *mcp.TextContent) { r.Content[0] = (*mcp.TextContent)(nil) }),
		"a text's _meta":  with(func(_ *mcp.CallToolResult, c *mcp.TextContent) { c.Meta = mcp.Meta{"a": 1} }),
		"annotations":     with(func(_ *mcp.CallToolResult, c *mcp.TextContent) { c.Annotations = &mcp.Annotations{} }),
	} {
		if _, ok := (&conn{}).textOf([]byte("7"), r); ok {
			t.Errorf("a result with %s counts as texts", name)
		}
	}
}
