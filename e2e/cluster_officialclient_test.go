package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
)

// An officialClient is an official client over some transport, as a client of a fleet.
type officialClient struct {
	*mcp.ClientSession
	asked chan struct{} // receives a value when the user is asked; the user answers then

	mu       sync.Mutex
	received map[any][]string // progress, by token
}

// officialClient connects an official client.
func (f *fleet) officialClient(transport mcp.Transport) *officialClient {
	f.t.Helper()
	v := &officialClient{received: make(map[any][]string), asked: make(chan struct{})}
	client := mcp.NewClient(&mcp.Implementation{Name: "officialClient", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			v.mu.Lock()
			defer v.mu.Unlock()
			token := req.Params.ProgressToken
			v.received[token] = append(v.received[token], fmt.Sprintf("progress %v", req.Params.Progress))
		},
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			select {
			case v.asked <- struct{}{}:
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	session := mcptest.Must(client.Connect(bounded(f.t, time.Minute), transport,
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"}))(f.t) // in a revision without sessions a call would end with its connection
	v.ClientSession = session
	f.t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = session.Close() // its node may be lost
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
	case len(res.Content) != 1 || res.IsError:
		s.err = fmt.Errorf("answered %+v", res)
	default:
		text, ok := res.Content[0].(*mcp.TextContent)
		if !ok {
			s.err = errors.New("answered no text")
			return s
		}
		said = "result " + text.Text
	}
	// The SDK may return the answer before it handles progress that arrived earlier.
	last := fmt.Sprintf("progress %d", q.args.Steps)
	for range 200 {
		v.mu.Lock()
		s.received = slices.Concat(v.received[q.args.ID], []string{said})
		v.mu.Unlock()
		if err != nil || q.args.Steps == 0 || len(s.received) > 1 && s.received[len(s.received)-2] == last {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s
}
