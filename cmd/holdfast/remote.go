package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/follow"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// remoteFlags are the flags of all commands that connect to a remote server.
type remoteFlags struct {
	headers   []string
	transport choice
}

func newRemoteFlags() remoteFlags {
	return remoteFlags{transport: choice{"auto", []string{"auto", "http", "sse", "ws"}}}
}

func (f *remoteFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.headers, "header", nil, "`header` to send with each request, as 'Name: value' (can be repeated)")
	fs.Var(&f.transport, "transport", "transport to the server; auto: chosen by its URL and its first response")
	_ = cmd.RegisterFlagCompletionFunc("transport", f.transport.complete) // fails for unknown flags only
}

// oneServer returns an error if the arguments of a command are not the URL of a server.
func oneServer(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usagef("no server: give its URL, as in %s http://127.0.0.1:8080/mcp", cmd.CommandPath())
	case len(args) == 1:
		return nil
	case !strings.Contains(args[0], "://"):
		return usagef("want the URL of one server, as in %s http://127.0.0.1:8080/mcp: a command is served with 'holdfast serve -- COMMAND ARG...'", cmd.CommandPath())
	}
	return usagef("want one URL and nothing after it, as in %s http://127.0.0.1:8080/mcp", cmd.CommandPath())
}

// headerOf returns the headers that a flag gives.
func headerOf(flag string, all []string) (http.Header, error) {
	h := make(http.Header)
	for _, given := range all {
		name, value, ok := strings.Cut(given, ":")
		value = strings.TrimSpace(value)
		if !ok || name == "" || strings.ContainsAny(name, " \t\r\n") || strings.ContainsAny(value, "\r\n\x00") {
			// The value may be a secret: it is not shown.
			return nil, usagef("%s: want 'Name: value', as in 'Authorization: Bearer TOKEN'", flag)
		}
		h.Add(name, value)
	}
	return h, nil
}

// options returns the options of a connection to a server.
func (f *remoteFlags) options(logger *slog.Logger) (*client.Options, error) {
	header, err := headerOf("--header", f.headers)
	if err != nil {
		return nil, err
	}
	transport := map[string]client.Transport{
		"auto": client.Auto, "http": client.HTTP, "sse": client.SSE, "ws": client.WebSocket,
	}[f.transport.value]
	return &client.Options{Header: header, Transport: transport, Logger: logger}, nil
}

// dial returns a connection to a server. It sends nothing.
func dial(to string, opts *client.Options) (*client.Conn, error) {
	if !strings.Contains(to, "://") {
		// It may have a password in it: it is not shown.
		return nil, usagef("server URL: want one that begins with http:// or https://, as in http://127.0.0.1:8080/mcp")
	}
	conn, err := client.New(to, opts)
	if err != nil {
		return nil, usageError{err}
	}
	return conn, nil
}

// serverName returns the name by which a user knows a server.
func serverName(rawURL string) string {
	if u, err := url.Parse(rawURL); err == nil && u.Host != "" {
		return u.Host
	}
	return "the server"
}

// A peer is a server that a command has a session with. One goroutine at a time uses it.
type peer struct {
	conn *client.Conn
	url  string
	sent int // requests
	// capabilities are what the server has said of itself in a session.
	capabilities json.RawMessage
	// meta is what each request says of holdfast (2026-07-28); nil in a session.
	meta map[string]any
}

// waitsFor is how long a server may take to answer the first request (client.Options.ConnectTimeout).
const waitsFor = 30 * time.Second

// tellAfter is how long a server may take to answer the first request before the user is told.
const tellAfter = time.Second

// begin begins a session with a server.
func (f *remoteFlags) begin(ctx context.Context, conn *client.Conn, to string, capabilities map[string]any) (*peer, error) {
	p := &peer{conn: conn, url: to}
	late := time.AfterFunc(tellAfter, func() { slog.Info("no answer yet, waiting", "server", redacted(to), "at most", waitsFor) })
	defer late.Stop()
	info := map[string]any{"name": "holdfast", "version": versionText()}
	result, err := p.request(ctx, "initialize", map[string]any{
		"protocolVersion": protocol.V20251125,
		"capabilities":    capabilities,
		"clientInfo":      info,
	})
	if err != nil {
		if !outOfReach(err) && f.discover(ctx, p, info, capabilities) {
			return p, nil
		}
		return nil, fmt.Errorf("%s: %w", redacted(to), f.explained(err))
	}
	p.capabilities = jsonrpc.Field(result, "capabilities")
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, "notifications/initialized", nil))
	if err == nil {
		err = conn.Send(ctx, m)
	}
	return p, err
}

// outOfReach reports whether a request failed because no server answered.
func outOfReach(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && protocol.OutOfReach(e.Message)
}

// discover reports whether a server that has refused initialize is one of revision 2026-07-28,
// which has no sessions. It is asked after initialize, because a session is worth more: a call
// can be resumed in it.
func (f *remoteFlags) discover(ctx context.Context, p *peer, info, capabilities map[string]any) bool {
	if ctx.Err() != nil || f.transport.value == "ws" || f.transport.value == "sse" {
		return false
	}
	if capabilities == nil {
		capabilities = map[string]any{}
	}
	p.meta = map[string]any{
		protocol.MetaProtocolVersion: protocol.V20260728, protocol.MetaClientInfo: info, protocol.MetaClientCapabilities: capabilities,
	}
	result, err := p.request(ctx, protocol.MethodDiscover, map[string]any{})
	var offer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	return err == nil && json.Unmarshal(result, &offer) == nil && slices.Contains(offer.SupportedVersions, protocol.V20260728)
}

// metaWith returns the _meta of a request with a progress token.
func (p *peer) metaWith(token []byte) map[string]any {
	meta := map[string]any{"progressToken": json.RawMessage(token)}
	maps.Copy(meta, p.meta)
	return meta
}

// explained adds advice to an error of the first request.
func (f *remoteFlags) explained(err error) error {
	misfit := ""
	if t := f.transport.value; t != "auto" {
		misfit = fmt.Sprintf("is --transport %s right for this URL? Without it, holdfast finds out", t)
	}
	for _, known := range []struct{ text, hint string }{ // the first that fits
		{"not authorized: ", " "}, // the login says why
		{"HTTP 401", "it may want --header 'Authorization: Bearer TOKEN'"},
		{"HTTP 403", "it may want --header 'Authorization: Bearer TOKEN'"},
		{"HTTP request to an HTTPS server", "does its URL begin with https://?"},
		{"HTTP 400", misfit},
		{"HTTP 404", cmp.Or(misfit, "is the path right?")},
		{"HTTP 405", cmp.Or(misfit, "is this the URL of an MCP server, and is the path right?")},
		{"no WebSocket here", misfit},
	} {
		if known.hint != "" && strings.Contains(err.Error(), known.text) {
			if known.hint == " " {
				return err
			}
			return fmt.Errorf("%w: %s", err, known.hint)
		}
	}
	return advised{err, explainedText(err)}
}

// An advised error says what to do about another.
type advised struct {
	error
	text string
}

// Error implements error.
func (e advised) Error() string { return e.text }

// Unwrap returns the other error.
func (e advised) Unwrap() error { return e.error }

// explainedText returns the text of an error of a connection, with advice.
func explainedText(err error) string {
	text := err.Error()
	for _, known := range []struct{ text, hint string }{ // the first that fits
		{"is this the URL", ""}, // there is advice
		{"no such host", "is the name right?"},
		{"connection refused", "is it running?"},
		{"HTTP 50", "the log of the server may say why"},
		{"certificate has expired", "have the server's certificate renewed"},
		{"signed by unknown authority", "if you trust it, name the file of its authority in SSL_CERT_FILE"},
		{"failed to verify certificate", "is the name in the URL the one that the certificate is for?"},
		{"does not look like a TLS handshake", "does it speak plain HTTP, with a URL that begins with http://?"},
		{"server gave HTTP response to HTTPS client", "does it speak plain HTTP, with a URL that begins with http://?"},
		{"connection reset", "is this the URL of an MCP server, and does it begin with https:// if the server speaks TLS?"},
		{"without an answer", "is this the URL of an MCP server?"},
		{"malformed HTTP", "is this the URL of an MCP server?"},
		{"sends what cannot be used", "is this the URL of an MCP server?"},
		{"deadline exceeded", "it does not answer: is this the right address?"},
		{"out of reach, or does not answer", "is it running, and is its URL right?"},
		{"did not begin to answer", "is this the URL of an MCP server?"},
		{"does not answer", "is this the URL of an MCP server?"},
	} {
		if strings.Contains(text, known.text) {
			if known.hint != "" {
				text += ": " + known.hint
			}
			break
		}
	}
	return text
}

// redacted returns a URL without its secrets.
func redacted(rawURL string) string { return cmp.Or(redact.URL(rawURL), "the server") }

// request makes a request and returns its result. Requests of the server are refused, and its
// notifications dropped.
func (p *peer) request(ctx context.Context, method string, params any) (json.RawMessage, error) {
	p.sent++
	if members, ok := params.(map[string]any); ok && p.meta != nil {
		members["_meta"] = p.meta
	}
	id := fmt.Appendf(nil, "%d", p.sent)
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

// errorOf returns the error in a response. If it says that the outcome is unknown, so does the
// exit code.
func errorOf(m jsonrpc.Message) error {
	e := &jsonrpc.Error{}
	if json.Unmarshal(m.Error, e) != nil || e.Message == "" {
		e.Message = "the server responded with an error without a message"
	}
	if outcomeUnknown(e) {
		return codeError{exitUnknown, e}
	}
	return e
}

// outcomeUnknown reports whether an error says that the outcome of a call is unknown.
func outcomeUnknown(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && protocol.OutcomeUnknown(e.Code, e.Message)
}

// A codeError is an error with an exit code of its own.
type codeError struct {
	code int
	err  error
}

// Error implements error.
func (e codeError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e codeError) Unwrap() error { return e.err }

// errPrinted stands for an error that was printed already.
var errPrinted = errors.New("printed already")

// A tool is the description of a tool, as far as it is used here.
type tool struct {
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	InputSchema struct {
		Properties           json.RawMessage `json:"properties"`
		AdditionalProperties json.RawMessage `json:"additionalProperties"`
		Required             []string        `json:"required"`
	} `json:"inputSchema"`
	Execution struct {
		TaskSupport string `json:"taskSupport"`
	} `json:"execution"`
}

// A list of tools is bounded.
const (
	maxPages = 1000
	maxList  = 32 << 20 // bytes
)

// tools returns the tools of the server: all, or those up to the page that has the one of a name. raw is their JSON. What
// had come before an error is returned with it.
func (p *peer) tools(ctx context.Context, name string) (list []tool, raw []json.RawMessage, err error) {
	failed := func(err error) ([]tool, []json.RawMessage, error) {
		return list, raw, fmt.Errorf("%s: tools/list: %w", redacted(p.url), err)
	}
	params, size := map[string]any{}, 0
	for pages := protocol.NewPages(maxPages); ; {
		result, err := p.request(ctx, "tools/list", params)
		if err != nil {
			return failed(err)
		}
		if size += len(result); size > maxList {
			return failed(fmt.Errorf("it is longer than %d MiB", maxList>>20))
		}
		cursor, again, endless := pages.Next(result)
		if again {
			return list, raw, nil
		}
		var page struct {
			Tools []json.RawMessage `json:"tools"`
		}
		if err := json.Unmarshal(result, &page); err != nil {
			return failed(err)
		}
		found := false
		for _, one := range page.Tools {
			var t tool
			if err := json.Unmarshal(one, &t); err != nil {
				return failed(err)
			}
			list, raw = append(list, t), append(raw, one)
			found = found || name != "" && t.Name == name
		}
		switch {
		case found, cursor == nil && endless == nil:
			return list, raw, nil
		case endless != nil:
			return failed(endless)
		}
		params["cursor"] = json.RawMessage(cursor)
	}
}
