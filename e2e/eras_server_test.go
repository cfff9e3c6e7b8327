//nolint:staticcheck // what 2026-07-28 deprecates is still spoken, and checked here
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const eraWatched = "test://watched"

var eraQuestion = &mcp.ElicitParams{Message: "Who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}

// eraServer returns a server with the tools that the clients of the matrix call. Tools ask the
// client with requests, or, with rounds, by input requests as in revision 2026-07-28.
func eraServer(rounds bool) *mcp.Server {
	none := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	s := mcp.NewServer(&mcp.Implementation{Name: "eras", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   none,
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	s.AddResource(&mcp.Resource{Name: "watched", URI: eraWatched}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: eraWatched, Text: "x"}}}, nil
	})
	addPlain(s)
	addAsking(s, rounds)
	addSlow(s, rounds)
	addWaiting(s)
	addTelling(s)
	return s
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// addPlain adds tools that answer at once.
func addPlain(s *mcp.Server) {
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, args struct {
		Message string `json:"message"`
	}) (*mcp.CallToolResult, any, error) {
		return said(args.Message), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "meta"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		text, err := json.Marshal(r.Params.Meta)
		return said(string(text)), nil, err
	})
	s.AddTool(&mcp.Tool{Name: "region", InputSchema: json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args struct{ Region string }
			err := json.Unmarshal(r.Params.Arguments, &args)
			return said(args.Region), err
		})
	mcp.AddTool(s, &mcp.Tool{Name: "fail"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		r := said("no luck")
		r.IsError = true
		return r, nil, nil
	})
}

// addAsking adds tools that ask the client.
func addAsking(s *mcp.Server, rounds bool) {
	sample := &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "hi"}}}}
	add := func(name string, question mcp.InputRequest, ask func(context.Context, *mcp.ServerSession) (any, error)) {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			var answer any = r.Params.InputResponses["who"]
			var err error
			switch {
			case !rounds:
				answer, err = ask(ctx, r.Session)
			case answer == nil:
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"who": question}}, nil, nil
			}
			if err != nil {
				return nil, nil, err
			}
			if elicited, ok := answer.(*mcp.ElicitResult); ok {
				return said(fmt.Sprint(elicited.Content["name"])), nil, nil
			}
			text, err := json.Marshal(answer)
			return said(string(text)), nil, err
		})
	}
	add("ask", eraQuestion, func(ctx context.Context, c *mcp.ServerSession) (any, error) { return c.Elicit(ctx, eraQuestion) })
	add("sample", sample, func(ctx context.Context, c *mcp.ServerSession) (any, error) { return c.CreateMessage(ctx, sample) })
	add("roots", &mcp.ListRootsParams{}, func(ctx context.Context, c *mcp.ServerSession) (any, error) { return c.ListRoots(ctx, nil) })
}

// addSlow adds a tool that waits, and then answers, asks the client, or fails.
func addSlow(s *mcp.Server, rounds bool) {
	mcp.AddTool(s, &mcp.Tool{Name: "slow"}, func(ctx context.Context, r *mcp.CallToolRequest, args struct {
		MS   int  `json:"ms"`
		Ask  bool `json:"ask,omitempty"`
		Fail bool `json:"fail,omitempty"`
	}) (*mcp.CallToolResult, any, error) {
		if r.Params.InputResponses != nil {
			args.MS = 0
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(time.Duration(args.MS) * time.Millisecond):
		}
		switch {
		case args.Fail:
			return nil, nil, errors.New("no luck")
		case args.Ask:
			if answer, ok := r.Params.InputResponses["who"].(*mcp.ElicitResult); ok {
				return said(fmt.Sprint(answer.Content["name"])), nil, nil
			}
			if rounds {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"who": eraQuestion}}, nil, nil
			}
			answer, err := r.Session.Elicit(ctx, eraQuestion)
			if err != nil {
				return nil, nil, err
			}
			return said(fmt.Sprint(answer.Content["name"])), nil, nil
		}
		return said("slept"), nil, nil
	})
}

// addWaiting adds a tool that waits until it is cancelled, and a tool that says whether it was.
func addWaiting(s *mcp.Server) {
	type named struct {
		ID string `json:"id"`
		MS int    `json:"ms,omitempty"`
	}
	var cancelled sync.Map
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, r *mcp.CallToolRequest, args named) (*mcp.CallToolResult, any, error) {
		if err := progress(ctx, r, 1); err != nil {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			cancelled.Store(args.ID, true)
			return nil, nil, ctx.Err()
		case <-time.After(time.Duration(args.MS) * time.Millisecond):
			return said("waited"), nil, nil
		}
	})
	mcp.AddTool(s, &mcp.Tool{Name: "cancelled"}, func(_ context.Context, _ *mcp.CallToolRequest, args named) (*mcp.CallToolResult, any, error) {
		if _, ok := cancelled.Load(args.ID); ok {
			return said("yes"), nil, nil
		}
		return said("no"), nil, nil
	})
}

// progress reports progress, if the call has a progress token.
func progress(ctx context.Context, r *mcp.CallToolRequest, at float64) error {
	token := r.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: at})
}

// addTelling adds tools that notify the client.
func addTelling(s *mcp.Server) {
	add := func(name string, do func(context.Context, *mcp.CallToolRequest) error) {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			return said(name), nil, do(ctx, r)
		})
	}
	add("count", func(ctx context.Context, r *mcp.CallToolRequest) error { return pace(ctx, r, 3, 0) })
	add("log", func(ctx context.Context, r *mcp.CallToolRequest) error {
		if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "debug", Data: "low"}); err != nil {
			return err
		}
		return r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "warning", Data: "high"})
	})
	add("touch", func(ctx context.Context, _ *mcp.CallToolRequest) error {
		return s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: eraWatched})
	})
	var mu sync.Mutex
	grown := 0
	add("grow", func(context.Context, *mcp.CallToolRequest) error {
		mu.Lock()
		grown++
		name := fmt.Sprint("grown-", grown)
		mu.Unlock()
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return said("new"), nil })
		return nil
	})
}
