//nolint:staticcheck // what 2026-07-28 deprecates is still spoken, and checked here
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// askingServer returns a server with the tools "elicit", "sample" and "roots", which ask their client and return its answer, "error", which
// fails with the client's error, "count", which counts its calls, and "sleep". Their questions contain the argument who.
func askingServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "asking", Version: "1"}, nil)
	var counted atomic.Int32
	type args struct {
		Who string `json:"who"`
		MS  int    `json:"ms,omitempty"`
	}
	add := func(name string, ask func(ctx context.Context, c *mcp.ServerSession, who string) (string, error)) {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, a args) (*mcp.CallToolResult, any, error) {
			select {
			case <-time.After(time.Duration(a.MS) * time.Millisecond):
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
			answer, err := ask(ctx, r.Session, a.Who)
			return said(a.Who + " is " + answer), nil, err
		})
	}
	add("sleep", func(context.Context, *mcp.ServerSession, string) (string, error) { return "asleep", nil })
	mcp.AddTool(s, &mcp.Tool{Name: "count"}, func(context.Context, *mcp.CallToolRequest, args) (*mcp.CallToolResult, any, error) {
		return said(fmt.Sprint("run ", counted.Add(1))), nil, nil
	})
	s.AddTool(&mcp.Tool{Name: "error", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 10})
		return nil, err // an error of the protocol, and not of the tool
	})
	add("elicit", func(ctx context.Context, c *mcp.ServerSession, who string) (string, error) {
		r, err := c.Elicit(ctx, &mcp.ElicitParams{Message: "Who is " + who + "?", RequestedSchema: eraQuestion.RequestedSchema})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(r.Content["name"]), nil
	})
	add("sample", func(ctx context.Context, c *mcp.ServerSession, who string) (string, error) {
		r, err := c.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "Who is " + who + "?"}}}})
		if err != nil {
			return "", err
		}
		return r.Content.(*mcp.TextContent).Text, nil
	})
	add("roots", func(ctx context.Context, c *mcp.ServerSession, _ string) (string, error) {
		r, err := c.ListRoots(ctx, nil)
		if err != nil {
			return "", err
		}
		return strings.TrimPrefix(r.Roots[0].URI, "file:///"), nil
	})
	return s
}

// askingAt returns the ways to reach an askingServer. Each starts a Holdfast in front of the server, and returns the
// URL and the prefix of the tools' names.
func askingAt() map[string]func(t *testing.T) (url, prefix string) {
	command := fmt.Sprintf(`{"command":%q,"args":["asking"]}`, os.Args[0])
	server := func(*http.Request) *mcp.Server { return askingServer() }
	streamable, pair := mcp.NewStreamableHTTPHandler(server, nil), mcp.NewSSEHandler(server, nil)
	process := func(flags ...string) func(t *testing.T) (string, string) {
		return func(t *testing.T) (string, string) {
			return serve(t, append(append([]string{"--eras", "both"}, flags...), "--", os.Args[0], "asking")...).URL, ""
		}
	}
	remote := func(h http.Handler) func(t *testing.T) (string, string) {
		return func(t *testing.T) (string, string) {
			return serve(t, "--eras", "both", "--upstream", mcptest.Serve(t, h)).URL, ""
		}
	}
	merged := func(first func(t *testing.T) string) func(t *testing.T) (string, string) {
		return func(t *testing.T) (string, string) {
			return serveFile(t, fmt.Sprintf(`{"mcpServers":{"one":%s,"two":%s},"holdfast":{"merge":true}}`, first(t), command), "--eras", "both") + "/mcp", "one_"
		}
	}
	return map[string]func(t *testing.T) (string, string){
		"process": process(), "process, few places": process("--max-processes", "3", "--max-share", "1"),
		"remote": remote(streamable), "remote, HTTP+SSE": remote(pair),
		"merged":           merged(func(*testing.T) string { return command }),
		"merged, HTTP+SSE": merged(func(t *testing.T) string { return fmt.Sprintf(`{"url":%q}`, mcptest.Serve(t, pair)) }),
	}
}

// FAILURES 30: several calls of equal clients, to one process or several, wait for answers to questions of all
// kinds at the same time. All are asked before the first answer, and each answer reaches its own call.
func TestFailure30Questions(t *testing.T) {
	t.Parallel()
	for name, at := range askingAt() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, prefix := at(t)
			calls := []askingCall{{"elicit", "Ann", "1"}, {"elicit", "Bob", "2"}, {"sample", "Cleo", "3"}}
			if !strings.Contains(name, "places") { // else there is not a process for each call
				calls = append(calls, askingCall{"roots", "Dan", "4"}, askingCall{"elicit", "Eve", "5"})
			}
			ctx := bounded(t, time.Minute)
			for round := range 2 { // in the second round Holdfast knows that the server asks
				asked := make([]answer, len(calls))
				var all sync.WaitGroup
				for i, c := range calls {
					all.Go(func() { asked[i] = c.begin(ctx, t, url, prefix, round == 0) })
				}
				all.Wait()
				for i := len(calls) - 1; i >= 0 && !t.Failed(); i-- {
					all.Go(func() { calls[i].goOn(ctx, t, url, prefix, asked[i]) })
				}
				all.Wait()
				if t.Failed() {
					t.Fatalf("in round %d", round+1)
				}
			}
		})
	}
}

// An askingCall is a call of a tool of an askingServer by a client without a name.
type askingCall struct{ tool, who, answer string }

// begin makes the call, and checks that the reply has its own question. If the server is new, Holdfast does not know yet that it asks: on a slow machine the question may come too
// late to be matched with the call. Then the call is refused, once, and begin makes it again.
func (c askingCall) begin(ctx context.Context, t *testing.T, url, prefix string, isNew bool) answer {
	t.Helper()
	r := c.post(ctx, t, url, prefix, "")
	if isNew && len(r.Result.Content) == 1 && strings.Contains(r.Result.Content[0].Text, "the call can be made again") {
		r = c.post(ctx, t, url, prefix, "")
	}
	text, err := json.Marshal(r.Result.InputRequests)
	if err != nil || r.Result.ResultType != "input_required" || len(r.Result.InputRequests) != 1 || c.tool != "roots" && !strings.Contains(string(text), "Who is "+c.who+"?") {
		t.Errorf("%s of %s: %+v %s, want its question", c.tool, c.who, r, text)
	}
	return r
}

// goOn answers the question, and checks that the answer reaches the call.
func (c askingCall) goOn(ctx context.Context, t *testing.T, url, prefix string, asked answer) {
	t.Helper()
	answer := map[string]string{
		"elicit": `{"action":"accept","content":{"name":%q}}`, "sample": `{"model":"m","role":"assistant","content":{"type":"text","text":%q}}`,
		"roots": `{"roots":[{"uri":"file:///"}]}`,
	}[c.tool]
	if c.tool == "roots" {
		answer = strings.Replace(answer, "///", "///"+c.answer, 1)
	} else {
		answer = fmt.Sprintf(answer, c.answer)
	}
	for key := range asked.Result.InputRequests {
		r := c.post(ctx, t, url, prefix, fmt.Sprintf(`"requestState":%q,"inputResponses":{%q:%s},`, asked.Result.RequestState, key, answer))
		if len(r.Result.Content) != 1 || r.Result.Content[0].Text != c.who+" is "+c.answer {
			t.Errorf("%s of %s: %+v, want %s", c.tool, c.who, r, c.answer)
		}
	}
}

func (c askingCall) post(ctx context.Context, t *testing.T, url, prefix, more string) answer {
	t.Helper()
	r, err := askModern(ctx, url, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"who":%q},%s%s}`, prefix+c.tool, c.who, more, meta(`{"elicitation":{},"sampling":{},"roots":{}}`)))
	if err != nil {
		t.Error(err)
	}
	return r
}

// Several equal clients of the go-sdk answer only after all have been asked: each answer reaches its own call.
func TestFailure30OfficialClients(t *testing.T) {
	t.Parallel()
	url := serve(t, "--eras", "both", "--", os.Args[0], "asking").URL
	ctx := bounded(t, time.Minute)
	const most = 3
	var asked sync.WaitGroup
	asked.Add(most)
	allAsked := make(chan struct{})
	go func() {
		asked.Wait()
		close(allAsked)
	}()
	var all sync.WaitGroup
	for i := range most {
		who := fmt.Sprint("client", i)
		c := mcp.NewClient(&mcp.Implementation{Name: "one kind", Version: "1"}, &mcp.ClientOptions{
			ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				if want := "Who is " + who + "?"; r.Params.Message != want {
					t.Errorf("%s was asked %q", who, r.Params.Message)
				}
				asked.Done()
				select {
				case <-allAsked:
				case <-ctx.Done():
				}
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "n" + who}}, nil
			},
		})
		s := mcptest.Must(c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil))(t)
		if got := s.InitializeResult().ProtocolVersion; got != "2026-07-28" {
			t.Fatalf("the client speaks %s", got)
		}
		all.Go(func() {
			defer s.Close()
			call := &mcp.CallToolParams{Name: "elicit", Arguments: map[string]any{"who": who}}
			r, err := s.CallTool(ctx, call)
			if err == nil && strings.Contains(textOf(r), "the call can be made again") { // see begin
				r, err = s.CallTool(ctx, call)
			}
			if err != nil || textOf(r) != who+" is n"+who {
				t.Errorf("%s: %v %v", who, err, r)
			}
		})
	}
	all.Wait()
}

// After the node of two tasks is lost, the tasks ask on the node that takes them over, each with its own question.
func TestFailure30TakeOver(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{nodes: 2, legacy: true, flags: []string{"--eras", "both", "--task-after", "100ms"}})
		ctx := bounded(t, 2*time.Minute)
		owner, other := f.nodes[0], f.nodes[1]
		ids := make(map[string]string) // the ids of tasks, by the argument of their calls
		for _, id := range []string{callID(t, "a"), callID(t, "b")} {
			c := inputCall{tool: "inquire", id: id, tasks: true}
			r, err := c.post(ctx, owner.url(), "tools/call", request{tool: c.tool, args: workArgs{ID: id, MS: 2000}}.params())
			if err != nil || r.Result.ResultType != "task" {
				t.Fatalf("no task: %v %+v", err, r)
			}
			ids[id] = r.Result.TaskID
		}
		owner.kill()
		for id, task := range ids {
			c := inputCall{tool: "inquire", id: id, tasks: true}
			r, err := poll(ctx, func() (answer, error) { return c.post(ctx, other.url(), "tasks/get", fmt.Sprintf(`"taskId":%q`, task)) },
				func(r answer) bool { return len(r.Result.InputRequests) > 0 })
			if err != nil || !strings.Contains(r.text, "Who is "+id+"?") {
				t.Fatalf("the task %s was asked: %v %s", id, err, r.text)
			}
		}
	})
}

func TestUndeclaredCapabilities(t *testing.T) {
	t.Parallel()
	ways := askingAt()
	ways["library"] = func(t *testing.T) (string, string) {
		t.Helper()
		return library(t, askingServer(), &holdfast.Options{Eras: holdfast.ErasBoth}), ""
	}
	for name, at := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, prefix := at(t)
			ctx := bounded(t, time.Minute)
			for _, c := range []struct{ tool, capabilities, required string }{
				{"elicit", `{}`, `{"elicitation":{}}`},
				{"elicit", `{"sampling":{},"roots":{}}`, `{"elicitation":{}}`},
				{"elicit", `{"elicitation":{"url":{}}}`, `{"elicitation":{"form":{}}}`},
				{"sample", `{}`, `{"sampling":{}}`},
				{"sample", `{"elicitation":{}}`, `{"sampling":{}}`},
				{"error", `{}`, `{"sampling":{}}`},
				{"roots", `{}`, `{"roots":{}}`},
				{"roots", `{"elicitation":{}}`, `{"roots":{}}`},
				{"sleep", `{}`, ""},
			} {
				r, err := askModern(ctx, url, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"who":"Ann"},%s}`, prefix+c.tool, meta(c.capabilities)))
				switch {
				case err != nil:
					t.Error(err)
				case c.required == "":
					if r.Status != http.StatusOK || r.Error != nil {
						t.Errorf("%s: %+v", c.tool, r)
					}
				case r.Status != http.StatusBadRequest || r.Error == nil || r.Error.Code != -32021 || string(r.Error.Data.RequiredCapabilities) != c.required:
					t.Errorf("%s of a client with %s: %+v %+v", c.tool, c.capabilities, r, r.Error)
				}
			}
		})
	}
}

// A requestState that Holdfast has not issued, or has issued for another request, is refused, also for a server that does not
// know requestState: the tool does not run.
func TestForeignRequestState(t *testing.T) {
	t.Parallel()
	for name, at := range askingAt() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, prefix := at(t)
			ctx := bounded(t, time.Minute)
			post := func(tool, more string) answer {
				t.Helper()
				return askingCall{tool: tool, who: "Ann"}.post(ctx, t, url, prefix, more)
			}
			asked := askingCall{"elicit", "Ann", ""}.begin(ctx, t, url, prefix, false)
			state := asked.Result.RequestState
			if len(state) < 10 {
				t.Fatal("no state")
			}
			answers := `"inputResponses":{"input-1":{"action":"accept","content":{"name":"x"}}},`
			for what, more := range map[string]string{
				"of another call": fmt.Sprintf(`"requestState":%q,`, state),
				"tampered":        fmt.Sprintf(`"requestState":%q,`, state[:len(state)-1]+"!"),
				"shortened":       fmt.Sprintf(`"requestState":%q,`, state[:len(state)-9]),
				"of nobody":       `"requestState":"eyJhIjoxfQ==",`,
				"empty":           `"requestState":"",`,
				"a prefix":        `"requestState":"holdfast.",`,
				"a number":        `"requestState":5,`,
				"an object":       `"requestState":{},`,
				"a list":          `"requestState":["holdfast."],`,
				"true":            `"requestState":true,`,
				"large":           `"requestState":"` + strings.Repeat("x", 100_000) + `",`,
				"absent":          "",
			} {
				for _, more := range []string{more + answers, more} {
					if more == "" {
						continue
					}
					if r := post("count", more); r.Status != http.StatusBadRequest || r.Error == nil || r.Error.Code != -32602 {
						t.Errorf("%s: %+v %+v", what, r, r.Error)
					}
				}
			}
			for _, more := range []string{"", `"requestState":null,`, `"inputResponses":{},`} {
				if r := post("sleep", more); r.Status != http.StatusOK || len(r.Result.Content) != 1 {
					t.Errorf("with %q, which brings nothing: %+v %+v", more, r, r.Error)
				}
			}
			if r := post("count", ""); len(r.Result.Content) != 1 || r.Result.Content[0].Text != "run 1" {
				t.Errorf("a tool has run for what was refused: %+v", r)
			}
			askingCall{"elicit", "Ann", "3"}.goOn(ctx, t, url, prefix, asked) // the state is still valid
		})
	}
}
