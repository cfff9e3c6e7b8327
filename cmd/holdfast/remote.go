package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/followcall"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// remoteFlags are the flags of all commands that connect to a remote server.
type remoteFlags struct {
	headers   []string
	entry     http.Header // of the server's entry in the file of a host
	transport choice
}

func newRemoteFlags() remoteFlags {
	return remoteFlags{transport: choice{"auto", []string{"auto", "http", "sse", "ws"}}}
}

func (f *remoteFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.headers, "header", nil, "`header` to send with each request, as 'Name: value' (can be repeated)")
	fs.Var(&f.transport, "transport", "transport to the server; auto: chosen by its URL and its first response")
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
	for name, values := range f.entry {
		if header.Get(name) == "" {
			header[name] = values
		}
	}
	return &client.Options{Header: header, Transport: transports[f.transport.value], Logger: logger}, nil
}

// transports are the values of --transport.
var transports = map[string]client.Transport{
	"auto": client.Auto, "http": client.HTTP, "sse": client.SSE, "ws": client.WebSocket,
}

// dial returns a connection to a server. It sends nothing.
func dial(to string, opts *client.Options) (*client.Conn, error) {
	if !strings.Contains(to, "://") {
		// The URL may have a password in it: it is not shown.
		return nil, usagef("server URL: want one that begins with http:// or https://, as in http://127.0.0.1:8080/mcp")
	}
	conn, err := client.New(to, opts)
	if err != nil {
		return nil, usageError{err}
	}
	return conn, nil
}

// withScheme returns the URL of a server that is given without a scheme: http on this machine, https elsewhere. A text that cannot be a URL stays.
func withScheme(to string) string {
	if strings.Contains(to, "://") || to == "" || strings.HasPrefix(to, "/") || strings.ContainsAny(to, " \\") {
		return to
	}
	u, err := url.Parse("https://" + to)
	if err != nil || u.Hostname() == "" {
		return to
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsLoopback() || strings.EqualFold(u.Hostname(), "localhost") || strings.HasSuffix(strings.ToLower(u.Hostname()), ".localhost") {
		return "http://" + to
	}
	return "https://" + to
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
	name string // of the server, for messages
	sent int    // requests
	// said is the server's description of itself: the result of initialize, or of server/discover.
	said json.RawMessage
	// capabilities are a part of said.
	capabilities json.RawMessage
	// meta is the _meta of each request (2026-07-28); nil in a session.
	meta map[string]any
}

// waitsFor is how long a server may take to answer the first request (client.Options.ConnectTimeout).
const waitsFor = 30 * time.Second

// tellAfter is how long a server may take to answer the first request before the user is told.
const tellAfter = time.Second

// begin begins a session with a server. name is the name of the server in messages.
func (f *remoteFlags) begin(ctx context.Context, conn *client.Conn, name string, capabilities map[string]any) (*peer, error) {
	p := &peer{conn: conn, name: name}
	late := time.AfterFunc(tellAfter, func() { slog.Info("no answer yet, waiting", "server", name, "at most", waitsFor) })
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
		return nil, fmt.Errorf("%s: %w", name, f.explained(err))
	}
	p.said, p.capabilities = result, jsonrpc.Field(result, "capabilities")
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
	if err != nil || json.Unmarshal(result, &offer) != nil || !slices.Contains(offer.SupportedVersions, protocol.V20260728) {
		return false
	}
	p.said, p.capabilities = result, jsonrpc.Field(result, "capabilities")
	return true
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

// An advised error is another error with advice.
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
			if err := p.conn.Send(ctx, followcall.Refusal(m)); err != nil {
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
	Name        string      `json:"name"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	InputSchema inputSchema `json:"inputSchema"`
	Execution   struct {
		TaskSupport string `json:"taskSupport"`
	} `json:"execution"`
}

// An inputSchema is the schema of a tool's arguments.
type inputSchema struct {
	Properties           json.RawMessage
	AdditionalProperties json.RawMessage
	Required             []string
	raw                  json.RawMessage // all of it, in which references are looked for
}

// UnmarshalJSON implements [json.Unmarshaler]. Servers have odd schemas, such as true: members of a wrong form are left out.
func (s *inputSchema) UnmarshalJSON(data []byte) error { //nolint:unparam // so json wants it
	*s = inputSchema{raw: bytes.Clone(data)}
	s.Properties, s.AdditionalProperties = jsonrpc.Field(s.raw, "properties"), jsonrpc.Field(s.raw, "additionalProperties")
	_ = json.Unmarshal(jsonrpc.Field(s.raw, "required"), &s.Required) // else none is
	return nil
}

// property returns the schema of an argument, nil if there is none.
func (s *inputSchema) property(name string) []byte {
	return (&schemaText{root: s.raw}).resolved(jsonrpc.Field(s.Properties, name))
}

// unmarshalEntry decodes an entry of a server's list. A member of a wrong type is left out: one odd entry does not hide the others.
func unmarshalEntry(one []byte, v any) error {
	err := json.Unmarshal(one, v)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return nil
	}
	return err
}

// Bounds of a list of a server.
const (
	maxPages = 1000
	maxList  = 32 << 20 // bytes
)

// tools returns the tools of the server: all, or those up to the page with the tool of a name. raw is their JSON. Tools
// that came before an error are returned with it.
func (p *peer) tools(ctx context.Context, name string) (list []tool, raw []json.RawMessage, err error) {
	raw, err = p.list(ctx, "tools/list", "tools", func(one json.RawMessage) (bool, error) {
		var t tool
		if err := unmarshalEntry(one, &t); err != nil {
			return false, err
		}
		list = append(list, t)
		return name != "" && t.Name == name, nil
	})
	return list, raw, err
}

// list returns the entries of a server's list: all, or those up to the page with an entry for which found returns true. Entries that came before
// an error are returned with it.
func (p *peer) list(ctx context.Context, method, member string, found func(one json.RawMessage) (bool, error)) (all []json.RawMessage, err error) {
	failed := func(err error) ([]json.RawMessage, error) {
		return all, fmt.Errorf("%s: %s: %w", p.name, method, err)
	}
	params, size := map[string]any{}, 0
	for pages := protocol.NewPages(maxPages); ; {
		result, err := p.request(ctx, method, params)
		if err != nil {
			return failed(err)
		}
		if size += len(result); size > maxList {
			return failed(fmt.Errorf("it is longer than %d MiB", maxList>>20))
		}
		cursor, again, endless := pages.Next(result)
		if again {
			return all, nil
		}
		var page []json.RawMessage
		if part := jsonrpc.Field(result, member); part != nil {
			if err := json.Unmarshal(part, &page); err != nil {
				return failed(err)
			}
		}
		enough := false
		for _, one := range page {
			is, err := found(one)
			if err != nil {
				return failed(err)
			}
			all, enough = append(all, one), enough || is
		}
		switch {
		case enough, cursor == nil && endless == nil:
			return all, nil
		case endless != nil:
			return failed(endless)
		}
		params["cursor"] = json.RawMessage(cursor)
	}
}
