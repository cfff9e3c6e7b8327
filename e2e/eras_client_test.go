//nolint:staticcheck // what 2026-07-28 deprecates is still spoken, and checked here
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

// An eraCheck is one check of a client of the matrix: a tool to call, and the text to expect.
type eraCheck struct {
	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Want      string          `json:"want,omitempty"`
	Patience  int             `json:"patience,omitempty"` // ms
}

// An eraSeen has the results of a client: "yes" or an error, by the name of the check.
type eraSeen struct {
	Revision string
	Seen     map[string]string
}

// An eraClient does checks at a URL. It reaches a URL that begins with "connect:" through
// holdfast connect; the go-sdk's client reaches a URL that begins with "library:" through a
// ClientTransport.
type eraClient func(t *testing.T, url string, checks map[string]eraCheck) eraSeen

// typeScriptEra returns a TypeScript client: sdk 1, or 2 in a mode.
func typeScriptEra(sdk int, mode string) eraClient {
	return func(t *testing.T, url string, checks map[string]eraCheck) (s eraSeen) {
		t.Helper()
		config := mcptest.Must(json.Marshal(map[string]any{"url": url, "command": connectCommand(t, url), "sdk": sdk, "mode": mode, "checks": checks}))(t)
		unmarshal(t, run(t, "node", "clients/eras.mjs", string(config)), &s)
		return s
	}
}

// An officialEra is a client of the go-sdk that does checks.
type officialEra struct{ *officialClient }

// officialEraClient returns the go-sdk's client. Without a revision it prefers the newest one.
func officialEraClient(revision string) eraClient {
	return func(t *testing.T, url string, checks map[string]eraCheck) eraSeen {
		t.Helper()
		c, err := connectOfficial(t.Context(), eraTransport(t, url, revision), revision, nil)
		if err != nil {
			t.Errorf("connect: %v", err)
			return eraSeen{}
		}
		defer c.Close()
		v := officialEra{c}
		s := eraSeen{Revision: v.InitializeResult().ProtocolVersion, Seen: make(map[string]string)}
		for name, c := range checks {
			ctx, stop := context.WithTimeout(t.Context(), time.Duration(c.Patience)*time.Millisecond)
			seen, err := v.check(ctx, name, c)
			if err != nil {
				seen = fmt.Sprintf("error %v", err)
			}
			s.Seen[name] = seen
			stop()
		}
		return s
	}
}

// check does one check.
func (v officialEra) check(ctx context.Context, name string, c eraCheck) (string, error) {
	switch name {
	case "list":
		list, err := v.ListTools(ctx, nil)
		if err == nil && len(list.Tools) == 0 {
			return "no tools", nil
		}
		return "yes", err
	case "meta":
		return v.says(ctx, c, mcp.Meta{"traceparent": c.Want})
	case "progress":
		return v.progress(ctx, c)
	case "log":
		return v.log(ctx, c)
	case "subscription":
		go func() { _ = v.Subscribe(ctx, &mcp.SubscribeParams{URI: c.Want}) }() // Subscribe may last as long as the subscription
		return v.until(ctx, c, func() bool { return v.updated[c.Want] > 0 })
	case "list_changed":
		return v.until(ctx, c, func() bool { return v.lists > 0 })
	case "cancellation":
		return v.cancel(ctx, c)
	case "ping":
		return "yes", v.Ping(ctx, nil)
	case "failure":
		r, err := v.CallTool(ctx, &mcp.CallToolParams{Name: c.Tool})
		if err != nil || r.IsError && strings.Contains(textOf(r), c.Want) {
			return "yes", err
		}
		return fmt.Sprintf("it says %q", textOf(r)), nil
	case "unknown tool":
		r, err := v.CallTool(ctx, &mcp.CallToolParams{Name: "made-up"})
		if err == nil && r.IsError {
			return "yes", nil
		}
		return refusedWith(err, -32602)
	case "unknown resource":
		_, err := v.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://made-up"})
		return refusedWith(err, -32602, -32002)
	}
	if name == "header" { // this client knows the header from the list only
		if _, err := v.ListTools(ctx, nil); err != nil {
			return "", err
		}
	}
	return v.says(ctx, c, nil)
}

// refusedWith returns "yes" if err is an error of the protocol with one of the codes.
func refusedWith(err error, codes ...int64) (string, error) {
	var is *jsonrpc.Error
	if errors.As(err, &is) {
		for _, code := range codes {
			if is.Code == code {
				return "yes", nil
			}
		}
	}
	return fmt.Sprintf("answered, and not refused: %v", err), err
}

func textOf(r *mcp.CallToolResult) (all string) {
	for _, part := range r.Content {
		if text, ok := part.(*mcp.TextContent); ok {
			all += text.Text
		}
	}
	return all
}

// says calls the tool of a check, and checks its text.
func (v officialEra) says(ctx context.Context, c eraCheck, meta mcp.Meta) (string, error) {
	r, err := v.CallTool(ctx, &mcp.CallToolParams{Name: c.Tool, Arguments: c.Arguments, Meta: meta})
	if err != nil {
		return "", err
	}
	if text := textOf(r); !strings.Contains(text, c.Want) {
		return fmt.Sprintf("it says %q", text), nil
	}
	return "yes", nil
}

// soon waits a short time until is returns true, and returns whether it did.
func (v officialEra) soon(ctx context.Context, is func() bool) bool {
	for range 10 {
		v.mu.Lock()
		ok := is()
		v.mu.Unlock()
		if ok || ctx.Err() != nil {
			return ok
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

// until calls the tool of a check again and again, until is returns true: this client does not
// say when it is subscribed.
func (v officialEra) until(ctx context.Context, c eraCheck, is func() bool) (string, error) {
	for ctx.Err() == nil {
		if _, err := v.CallTool(ctx, &mcp.CallToolParams{Name: c.Tool, Arguments: c.Arguments}); err != nil && ctx.Err() == nil {
			return "", err
		}
		if v.soon(ctx, is) {
			return "yes", nil
		}
	}
	return "no notification", nil
}

func (v officialEra) progress(ctx context.Context, c eraCheck) (string, error) {
	p := &mcp.CallToolParams{Name: c.Tool, Arguments: c.Arguments}
	p.SetProgressToken("count")
	_, err := v.CallTool(ctx, p)
	steps := ""
	for err == nil && ctx.Err() == nil && !v.soon(ctx, func() bool {
		text, _ := json.Marshal(v.steps["count"])
		steps = string(text)
		return steps == c.Want || c.Want == "some" && len(v.steps["count"]) > 0
	}) { // the client may call its handlers late
		continue
	}
	if err == nil && steps != c.Want && (c.Want != "some" || steps == "null") {
		return "progress " + steps, nil
	}
	return "yes", err
}

func (v officialEra) log(ctx context.Context, c eraCheck) (string, error) {
	var meta mcp.Meta
	if v.InitializeResult().ProtocolVersion >= "2026" {
		meta = mcp.Meta{mcp.MetaKeyLogLevel: "warning"}
	} else if err := v.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "warning"}); err != nil {
		return "", err
	}
	if _, err := v.CallTool(ctx, &mcp.CallToolParams{Name: c.Tool, Arguments: c.Arguments, Meta: meta}); err != nil {
		return "", err
	}
	logs := ""
	for ctx.Err() == nil && !v.soon(ctx, func() bool {
		text, _ := json.Marshal(v.logs)
		logs = string(text)
		return len(v.logs) > 0
	}) {
		continue
	}
	if logs != c.Want {
		return "messages " + logs, nil
	}
	return "yes", nil
}

func (v officialEra) cancel(ctx context.Context, c eraCheck) (string, error) {
	waits, leave := context.WithCancel(ctx)
	defer leave()
	go func() {
		for ctx.Err() == nil && !v.soon(ctx, func() bool { return len(v.steps["wait"]) > 0 }) {
			continue
		}
		leave()
	}()
	p := &mcp.CallToolParams{Name: c.Tool, Arguments: c.Arguments}
	p.SetProgressToken("wait")
	if r, err := v.CallTool(waits, p); err == nil {
		return fmt.Sprintf("it says %q", textOf(r)), nil
	}
	for ctx.Err() == nil {
		if said, err := v.says(ctx, eraCheck{Tool: "cancelled", Arguments: c.Arguments, Want: "yes"}, nil); said == "yes" || err != nil && ctx.Err() == nil {
			return said, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "no cancellation at the server", nil
}
