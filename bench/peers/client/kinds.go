package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	hc "holdfast/client"
	"holdfast/jsonrpc"
)

// The sizes of calls.
const (
	echoSize  = 32  // bytes of text
	events    = 100 // of a call of progress
	eventSize = 64  // bytes of text in each
	// revision is the revision that all clients speak: the go-sdk's would begin with 2026-07-28,
	// which has no sessions, if the server speaks that.
	revision = "2025-11-25"
)

// A client is a connected client of one of the kinds.
type client struct {
	events atomic.Int64 // progress notifications received
	// call makes one call and waits for its answer. i is the number of the caller.
	call  func(ctx context.Context, i int) error
	close func() error
}

// connect connects a client. All kinds that speak HTTP do so through the same
// kind of http.Client.
func connect(o *options) (*client, error) {
	c := &client{}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	web := httpClient(o)
	switch o.kind {
	case "sdk":
		return c, c.official(o, &mcp.StreamableClientTransport{Endpoint: o.url, HTTPClient: web})
	case "holdfast":
		return c, c.official(o, holdfast.NewClientTransport(o.url, &holdfast.ClientOptions{Options: hc.Options{HTTPClient: web}}))
	case "alone":
		return c, c.official(o, alone{})
	case "conn":
		return c, c.raw(o, web)
	case "bare":
		c.bare(o, web)
		return c, nil
	}
	return nil, fmt.Errorf("no kind is called %q", o.kind)
}

// httpClient returns a default HTTP client that keeps every caller's connection: by default 2 are
// kept, so that most calls would begin with a new one.
func httpClient(o *options) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, o.callers+8
	return &http.Client{Transport: t}
}

// arguments returns the arguments of a tool.
func arguments(tool string) string {
	switch tool {
	case "progress":
		return fmt.Sprintf(`{"n":%d,"size":%d}`, events, eventSize)
	case "slow":
		return `{"ms":1800000}`
	}
	return `{"text":"` + strings.Repeat("e", echoSize) + `"}`
}

// official sets c to make calls through the official client over a transport.
func (c *client) official(o *options, t mcp.Transport) error {
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { c.events.Add(1) },
	}).Connect(ctx, t, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	args := json.RawMessage(arguments(o.tool))
	c.close = s.Close
	c.call = func(ctx context.Context, _ int) error {
		p := &mcp.CallToolParams{Name: o.tool, Arguments: args}
		if o.tool == "progress" {
			p.SetProgressToken("bench")
		}
		res, err := s.CallTool(ctx, p)
		if err == nil && (res.IsError || len(res.Content) != 1) {
			err = errors.New("the answer is another one")
		}
		return err
	}
	return nil
}

// raw sets c to make calls as `holdfast connect` does: messages in, messages out.
func (c *client) raw(o *options, web *http.Client) error {
	conn, err := hc.New(o.url, &hc.Options{HTTPClient: web})
	if err != nil {
		return err
	}
	c.close = conn.Close
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	send := func(ctx context.Context, text []byte) error {
		m, err := jsonrpc.Parse(text)
		if err != nil {
			return err
		}
		return conn.Send(ctx, m)
	}
	if err := send(ctx, []byte(initialize)); err != nil {
		return err
	}
	if m, err := conn.Receive(ctx); err != nil || m.Kind != jsonrpc.Response || m.Error != nil {
		return fmt.Errorf("initialize: %s, %w", m.Raw, err)
	}
	if err := send(ctx, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		return err
	}
	n := max(o.callers, o.held+heldWarm)
	answers := make([]chan jsonrpc.Message, n)
	for i := range answers {
		answers[i] = make(chan jsonrpc.Message, 1)
	}
	go c.dispatch(conn, answers)
	turns := make([]int, n)
	c.call = func(ctx context.Context, i int) error {
		turns[i]++
		if err := send(ctx, request(o.tool, turns[i]*n+i)); err != nil {
			return err
		}
		select {
		case m := <-answers[i]:
			return expect(m.Raw)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// dispatch gives each caller its answers, by their ids.
func (c *client) dispatch(conn *hc.Conn, answers []chan jsonrpc.Message) {
	for {
		m, err := conn.Receive(context.Background())
		if err != nil {
			return
		}
		switch {
		case m.Kind == jsonrpc.Notification && m.Method == "notifications/progress":
			c.events.Add(1)
		case m.Kind == jsonrpc.Response:
			if id, err := strconv.Atoi(string(m.ID)); err == nil {
				answers[id%len(answers)] <- m
			}
		}
	}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + revision +
	`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`

// request returns the message of a call.
func request(tool string, id int) []byte {
	b := append(make([]byte, 0, 256), `{"jsonrpc":"2.0","id":`...)
	b = strconv.AppendInt(b, int64(id), 10)
	b = append(b, `,"method":"tools/call","params":{"name":"`...)
	b = append(b, tool...)
	b = append(b, `","arguments":`...)
	b = append(b, arguments(tool)...)
	if tool == "progress" {
		b = append(b, `,"_meta":{"progressToken":"bench"}`...)
	}
	return append(b, `}}`...)
}

func expect(answer []byte) error {
	if bytes.Contains(answer, []byte(`"content":[`)) {
		return nil
	}
	return fmt.Errorf("the answer is another one: %.300q", answer)
}

// bare sets c to make calls with net/http alone: without a session, and without parsing the answer.
func (c *client) bare(o *options, web *http.Client) {
	header := http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Session-Id": {"none"}, "Mcp-Protocol-Version": {revision},
	}
	progress := []byte(`"notifications/progress"`)
	body := request(o.tool, 1)
	c.close = func() error { return nil }
	c.call = func(ctx context.Context, _ int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header = header
		resp, err := web.Do(req)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		c.events.Add(int64(bytes.Count(data, progress)))
		return expect(data)
	}
}
