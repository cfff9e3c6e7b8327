package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
)

// An officialClient is a client of the go-sdk that keeps what its server tells it.
type officialClient struct {
	*mcp.ClientSession
	answers chan struct{} // if it is not nil, the user answers a question when a value is received from it

	mu      sync.Mutex
	steps   map[any][]float64 // progress, by token
	logs    []any
	updated map[string]int
	lists   int // how often the list of tools has changed
	asked   int // how often the user was asked
}

// connectOfficial connects an officialClient. With revision "" it prefers the newest one.
func connectOfficial(ctx context.Context, transport mcp.Transport, revision string, answers chan struct{}) (*officialClient, error) {
	v := &officialClient{answers: answers, steps: make(map[any][]float64), updated: make(map[string]int)}
	locked := func(do func()) {
		v.mu.Lock()
		defer v.mu.Unlock()
		do()
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "official", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			locked(func() { v.asked++ })
			if v.answers != nil {
				select {
				case v.answers <- struct{}{}:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) { //nolint:staticcheck // older revisions have it
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "hello"}}, nil //nolint:staticcheck // the same
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) { //nolint:staticcheck // the same
			locked(func() { v.logs = append(v.logs, r.Params.Data) })
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			locked(func() { v.steps[r.Params.ProgressToken] = append(v.steps[r.Params.ProgressToken], r.Params.Progress) })
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			locked(func() { v.updated[r.Params.URI]++ })
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { locked(func() { v.lists++ }) },
	})
	client.AddRoots(&mcp.Root{URI: "file:///home"}) //nolint:staticcheck // the same
	var err error
	v.ClientSession, err = client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	return v, err
}

// progressOf returns the progress of a call so far, by its token.
func (v *officialClient) progressOf(token any) []float64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.steps[token])
}

// officialClient connects an official client. In a revision without sessions its calls would end with their connections.
func (f *fleet) officialClient(transport mcp.Transport) *officialClient {
	f.t.Helper()
	v := mcptest.Must(connectOfficial(bounded(f.t, time.Minute), transport, "2025-11-25", make(chan struct{})))(f.t)
	f.t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = v.Close() // its node may be lost
		}()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			f.t.Error("a client that is closed does not end")
		}
	})
	return v
}

// ours returns our own transport, through the front.
func (f *fleet) ours() mcp.Transport {
	return holdfast.NewClientTransport(f.front.URL, nil)
}

// call makes a call, and returns a record as a specClient does.
func (v *officialClient) call(ctx context.Context, q request) *callRecord {
	s := &callRecord{}
	params := &mcp.CallToolParams{Name: q.tool, Arguments: q.args}
	params.SetProgressToken(q.args.ID)
	res, err := v.CallTool(ctx, params)
	if ctx.Err() != nil {
		s.err = fmt.Errorf("hung: %w", ctx.Err())
		return s
	}
	s.ended = time.Now()
	said := ""
	switch {
	case err != nil && holdfast.OutcomeUnknown(err):
		_, why, _ := strings.Cut(err.Error(), "outcome unknown")
		said = "error outcome unknown" + why
	case err != nil:
		s.err = err
	case res.IsError:
		s.err = fmt.Errorf("answered %+v", res)
	default:
		said = "result " + textOf(res)
	}
	// The SDK may return the answer before it handles progress that arrived earlier.
	var steps []float64
	for range 200 {
		steps = v.progressOf(q.args.ID)
		if err != nil || q.args.Steps == 0 || len(steps) > 0 && steps[len(steps)-1] == float64(q.args.Steps) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, step := range steps {
		s.received = append(s.received, fmt.Sprintf("progress %v", step))
	}
	s.received = append(s.received, said)
	return s
}
