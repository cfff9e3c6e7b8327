package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/follow"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// remoteFlags say how a remote server is reached. The commands that are clients
// share them.
type remoteFlags struct {
	headers   []string
	transport choice
}

func newRemoteFlags() remoteFlags {
	return remoteFlags{transport: choice{"auto", []string{"auto", "http", "sse", "ws"}}}
}

func (f *remoteFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.headers, "header", nil, "`header` to send with each request, as 'Name: value' (repeat for more)")
	fs.Var(&f.transport, "transport", "how the server is spoken to; auto: as it and its URL want")
	_ = cmd.RegisterFlagCompletionFunc("transport", f.transport.complete) // fails for unknown flags only
}

// header returns the headers that were given.
func (f *remoteFlags) header() (http.Header, error) {
	h := make(http.Header)
	for _, given := range f.headers {
		name, value, ok := strings.Cut(given, ":")
		value = strings.TrimSpace(value)
		if !ok || name == "" || strings.ContainsAny(name, " \t\r\n") || strings.ContainsAny(value, "\r\n\x00") {
			// What was given may be a secret: it is not repeated.
			return nil, usagef("--header: want 'Name: value', as in 'Authorization: Bearer TOKEN'")
		}
		h.Add(name, value)
	}
	return h, nil
}

// options are those of a connection to a server.
func (f *remoteFlags) options(logger *slog.Logger) (*client.Options, error) {
	header, err := f.header()
	if err != nil {
		return nil, err
	}
	transport := map[string]client.Transport{
		"auto": client.Auto, "http": client.HTTP, "sse": client.SSE, "ws": client.WebSocket,
	}[f.transport.value]
	return &client.Options{Header: header, Transport: transport, Logger: logger}, nil
}

// dial returns a connection to a server. Nothing is sent yet.
func dial(to string, opts *client.Options) (*client.Conn, error) {
	if !strings.Contains(to, "://") {
		// What was given may hold a password: it is not repeated.
		return nil, usagef("server URL: put http:// before it, or https://, as in http://127.0.0.1:8080/mcp")
	}
	conn, err := client.New(to, opts)
	if err != nil {
		return nil, usageError{err}
	}
	return conn, nil
}

// serverName is what a person knows a server by.
func serverName(rawURL string) string {
	if u, err := url.Parse(rawURL); err == nil && u.Host != "" {
		return u.Host
	}
	return "the server"
}

// A peer is a server that a command of ours has a session with. One goroutine at
// a time uses it.
type peer struct {
	conn *client.Conn
	url  string
	asks int // requests made
}

// begin begins a session with the server at a URL.
func (f *remoteFlags) begin(ctx context.Context, conn *client.Conn, to string, capabilities map[string]any) (*peer, error) {
	p := &peer{conn: conn, url: to}
	_, err := p.ask(ctx, "initialize", map[string]any{
		"protocolVersion": protocol.V20251125,
		"capabilities":    capabilities,
		"clientInfo":      map[string]any{"name": "holdfast", "version": versionText()},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(to), f.explained(err))
	}
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, "notifications/initialized", nil))
	if err == nil {
		err = conn.Send(ctx, m)
	}
	return p, err
}

// explained adds to the error of the first contact what may be done about it.
func (f *remoteFlags) explained(err error) error {
	misfit := ""
	if t := f.transport.value; t != "auto" {
		misfit = fmt.Sprintf("does --transport %s fit this URL? Without it, holdfast finds out", t)
	}
	for _, known := range []struct{ text, hint string }{ // the first that fits
		{"HTTP 401", "it may want --header 'Authorization: Bearer TOKEN'"},
		{"HTTP 403", "it may want --header 'Authorization: Bearer TOKEN'"},
		{"HTTP 400", misfit},
		{"HTTP 404", cmp.Or(misfit, "is the path right?")},
		{"HTTP 405", misfit},
		{"no WebSocket here", misfit},
		{"no such host", "is the name right?"},
		{"connection refused", "is it running?"},
	} {
		if known.hint != "" && strings.Contains(err.Error(), known.text) {
			return fmt.Errorf("%w: %s", err, known.hint)
		}
	}
	return err
}

// redacted is what may be told of a URL.
func redacted(rawURL string) string { return cmp.Or(redact.URL(rawURL), "the server") }

// ask makes a request and returns its result. What the server says beside it is
// answered as far as it must be, and dropped.
func (p *peer) ask(ctx context.Context, method string, params any) (json.RawMessage, error) {
	p.asks++
	id := fmt.Appendf(nil, "%d", p.asks)
	if err := sendRequest(ctx, p.conn, id, method, params); err != nil {
		return nil, err
	}
	for {
		m, err := p.conn.Receive(ctx)
		switch {
		case err != nil:
			return nil, err
		case m.Kind == jsonrpc.Request:
			if err := p.conn.Send(ctx, follow.Refusal(m)); err != nil {
				return nil, err
			}
		case m.Kind == jsonrpc.Response && string(m.ID) == string(id):
			if m.Error != nil {
				return nil, errorOf(m)
			}
			return m.Result, nil
		}
	}
}

func sendRequest(ctx context.Context, conn *client.Conn, id []byte, method string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, id, method, raw))
	if err != nil {
		return err
	}
	return conn.Send(ctx, m)
}

// errorOf returns the error of a failed response. What the server did is unknown
// where its code says so.
func errorOf(m jsonrpc.Message) error {
	e := &jsonrpc.Error{}
	if json.Unmarshal(m.Error, e) != nil || e.Message == "" {
		e.Message = "the server answered with an error that says nothing"
	}
	if outcomeUnknown(e) {
		return codeError{exitUnknown, e}
	}
	return e
}

// outcomeUnknown says whether err means that nobody knows what the server did.
func outcomeUnknown(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && protocol.OutcomeUnknown(e.Code, e.Message)
}

// codeError is an error that ends the program with a code of its own.
type codeError struct {
	code int
	err  error
}

// Error implements error.
func (e codeError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e codeError) Unwrap() error { return e.err }

// errSaid stands for what was said already.
var errSaid = errors.New("said already")

// A tool is what a server says of a tool, as far as it is used here.
type tool struct {
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	InputSchema struct {
		Properties           json.RawMessage `json:"properties"`
		AdditionalProperties json.RawMessage `json:"additionalProperties"`
		Required             []string        `json:"required"`
	} `json:"inputSchema"`
}

// mostPages bounds how many pages of a list are read, and mostList its length in bytes.
const (
	mostPages = 1000
	mostList  = 32 << 20
)

// tools lists the server's tools; raw are the same as the server tells them.
func (p *peer) tools(ctx context.Context) (list []tool, raw []json.RawMessage, err error) {
	params, size := map[string]any{}, 0
	for range mostPages {
		result, err := p.ask(ctx, "tools/list", params)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: tools/list: %w", redacted(p.url), err)
		}
		if size += len(result); size > mostList {
			return nil, nil, fmt.Errorf("%s: tools/list: it is longer than %d MiB", redacted(p.url), mostList>>20)
		}
		var page struct {
			Tools      []json.RawMessage `json:"tools"`
			NextCursor string            `json:"nextCursor"`
		}
		if err := json.Unmarshal(result, &page); err != nil {
			return nil, nil, fmt.Errorf("%s: tools/list: %w", redacted(p.url), err)
		}
		for _, one := range page.Tools {
			var t tool
			if err := json.Unmarshal(one, &t); err != nil {
				return nil, nil, fmt.Errorf("%s: tools/list: %w", redacted(p.url), err)
			}
			list, raw = append(list, t), append(raw, one)
		}
		if page.NextCursor == "" {
			return list, raw, nil
		}
		params["cursor"] = page.NextCursor
	}
	return nil, nil, fmt.Errorf("%s: tools/list: it has no end", redacted(p.url))
}
