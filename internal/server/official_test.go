package server_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend/sdk"
)

// TestOfficialOverPipes has the official client on one end of a pair of pipes and the official
// server behind the other: a call, its progress, and a question of the server arrive.
func TestOfficialOverPipes(t *testing.T) {
	t.Parallel()
	s := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	type args struct {
		Name string `json:"name"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "greet"}, func(ctx context.Context, req *mcp.CallToolRequest, a args) (*mcp.CallToolResult, any, error) {
		for i := range 3 {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1)})
			if err != nil {
				return nil, nil, err
			}
		}
		asked, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "how?"})
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: asked.Action + " " + a.Name}}}, nil, nil
	})
	n := newNode(t, config{backend: sdk.New(func(*http.Request) *mcp.Server { return s })})
	for name, open := range map[string]func() (ends, ends){
		"os.Pipe": func() (ends, ends) { return pipes(t) },
		"io.Pipe": memoryPipes,
	} {
		in, out := open()
		over := outcome(func() error { return n.ServeConn(t.Context(), in.r, out.w) })
		var told atomic.Int32
		heard := make(chan struct{}, 3)
		client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
			ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { told.Add(1); heard <- struct{}{} },
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept"}, nil
			},
		})
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		cs, err := client.Connect(ctx, &mcp.IOTransport{Reader: out.r, Writer: in.w}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		params := &mcp.CallToolParams{Name: "greet", Arguments: map[string]any{"name": "bob"}}
		params.SetProgressToken("t")
		res, err := cs.CallTool(ctx, params)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if text, ok := res.Content[0].(*mcp.TextContent); !ok || text.Text != "accept bob" {
			t.Errorf("%s: got %+v", name, res.Content[0])
		}
		for range 3 {
			<-heard
		}
		if err := cs.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := <-over; err != nil {
			t.Errorf("%s: the server's part ended with %v", name, err)
		}
		stop()
	}
}
