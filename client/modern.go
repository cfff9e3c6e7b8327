package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// The values of Options.Era: which revisions of the protocol a [Conn] speaks. Legacy ones (2025-11-25 and earlier)
// begin with initialize. In modern ones (2026-07-28 and later) each request names its client in its _meta.
const (
	// AnyEra lets the host choose, with one exception. If the host sends server/discover, and the
	// server also has legacy sessions, in which calls can be resumed, the host gets "method not
	// found" and goes on with initialize. (If the server is not a Holdfast, the Conn tries to
	// begin a session before it gives that answer.) The exception does not hold if host and server
	// both know tasks (extension io.modelcontextprotocol/tasks): these survive cuts as well.
	AnyEra = ""
	// Legacy answers server/discover without asking the server.
	Legacy = "legacy"
	// Modern keeps the host from initialize, and so from sessions.
	Modern = "modern"
)

// modern is the knowledge of a server from its answers to modern requests. Conn.mu guards it.
type modern struct {
	revision string // the host's modern revision, once the server has answered its server/discover
	keys     bool   // the server honours idempotency keys
	resumes  bool   // the server lets clients resume modern calls (protocol.ExtensionResume)
	// tools has the headers of tools that have any, by the tool's name, as the server last listed them.
	tools map[string][]protocol.ParamHeader
}

// mostAnnotated bounds how many tools with headers are remembered.
const mostAnnotated = 10_000

// revisionOf returns the modern revision that a request names in its _meta; "" for a legacy
// request.
func revisionOf(body []byte) string {
	if !bytes.Contains(body, []byte("protocolVersion")) {
		return "" // searching a long body is cheaper than parsing it
	}
	version := jsonrpc.String(jsonrpc.Field(body, "params", "_meta", protocol.MetaProtocolVersion))
	if !protocol.Modern(version) || !headable(version) {
		return ""
	}
	return version
}

// isModern reports whether the request is one of a modern revision, in an HTTP exchange of its own: only its
// key or, if it is declared, its token leads back to it. Without either, the end of the exchange cancels it.
func (k *call) isModern() bool { return k.revision != "" }

// declareResume returns a modern request with the declaration that its client resumes calls, if
// the server offers that. ok reports whether the declaration was added.
func (c *Conn) declareResume(raw []byte, method string) (_ []byte, ok bool) {
	c.mu.Lock()
	known := c.modern.resumes
	c.mu.Unlock()
	if !known || method == protocol.MethodSubscriptions || method == protocol.MethodDiscover || revisionOf(raw) == "" {
		return raw, false
	}
	return jsonrpc.Set(raw, []byte(`{}`), "params", "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionResume)
}

// resumption returns the requests/resume of a call, and a function that sets its headers; nil
// for a legacy call. k.mu is held.
func (k *call) resumption() (body []byte, headers func(http.Header)) {
	params := jsonrpc.Object("resumeToken", k.ways.token)
	if !k.isModern() {
		return jsonrpc.AppendRequest(nil, k.ways.tokenFor, protocol.MethodResume, params), nil
	}
	if meta := jsonrpc.Field(k.body, "params", "_meta"); meta != nil {
		params, _ = jsonrpc.Set(params, withoutToken(meta), "_meta")
	}
	return jsonrpc.AppendRequest(nil, k.ways.tokenFor, protocol.MethodResume, params), func(h http.Header) {
		mirror(h, k.revision, protocol.MethodResume, nil)
	}
}

// awaitToken waits a little until the call has its token: once the server has sent the
// token, it does not take the end of the exchange for a cancellation.
func (k *call) awaitToken() {
	late := time.After(cancelWait)
	often := time.NewTicker(cancelWait / 100)
	defer often.Stop()
	for {
		k.mu.Lock()
		there := k.ways.token != ""
		k.mu.Unlock()
		if there {
			return
		}
		select {
		case <-often.C:
		case <-late:
			return
		case <-k.ctx.Done():
			return
		}
	}
}

// cancelModern cancels a modern call that does not end with its connection.
func (k *call) cancelModern() {
	if k.declared && !k.safe() { // the token is the first message
		k.awaitToken()
	}
	k.mu.Lock()
	name, value := protocol.MetaResumeToken, k.ways.token
	if value == "" && k.session.keys {
		name, value = protocol.MetaIdempotencyKey, k.key
	}
	params := append(append([]byte(`{"requestId":`), k.nameAtServer()...), `,"_meta":`...)
	reached := k.reached
	k.mu.Unlock()
	if value == "" {
		return // the end of its exchange cancels it (2026-07-28, Cancellation)
	}
	if name == protocol.MetaIdempotencyKey { // the server may not have the key yet
		t := time.NewTimer(cancelWait)
		defer t.Stop()
		select {
		case <-reached:
		case <-t.C:
		case <-k.c.ctx.Done():
			return
		}
	}
	params = append(append(params, jsonrpc.Object(name, value)...), '}')
	ctx, stop := context.WithTimeout(k.c.ctx, k.c.opts.ConnectTimeout)
	defer stop()
	if err := k.c.tell(ctx, k, jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params), k.c.opts.ConnectTimeout); err != nil {
		k.c.logger.Debug("cancellation not delivered", "error", err)
	}
}

// mirror sets the headers that repeat values of the body (2026-07-28, Streamable HTTP,
// "Request Metadata"). Earlier servers do not look at them.
func (k *call) mirror(h http.Header) {
	if k.method == protocol.MethodInitialize {
		delete(h, protocol.HeaderSession)
		delete(h, protocol.HeaderVersion)
		return
	}
	if !k.isModern() {
		return
	}
	params := jsonrpc.Field(k.body, "params")
	mirror(h, k.revision, k.method, params)
	if k.method != protocol.MethodCallTool {
		return
	}
	tool := jsonrpc.String(jsonrpc.Field(params, "name"))
	k.c.mu.Lock()
	headers := k.c.modern.tools[tool]
	k.c.mu.Unlock()
	if len(headers) == 0 {
		return
	}
	arguments := protocol.Arguments(headers, jsonrpc.Field(params, "arguments"))
	for i, p := range headers {
		if value, ok := p.Value(arguments[i]); ok {
			h.Set(protocol.HeaderParam+p.Name, value)
		}
	}
}

// mirror sets the headers that each modern message has.
func mirror(h http.Header, revision, method string, params []byte) {
	h[protocol.HeaderVersion] = []string{revision}
	h.Set(protocol.HeaderMethod, protocol.EncodeHeader(method))
	if name := protocol.NameOf(method, params); name != "" {
		h.Set(protocol.HeaderName, protocol.EncodeHeader(name))
	}
}

// listed takes the answer to tools/list: it notes the arguments that headers repeat, and
// removes tools with an invalid definition (2026-07-28, Tools, "x-mcp-header").
func (c *Conn) listed(m jsonrpc.Message) jsonrpc.Message {
	if m.Error != nil {
		return m
	}
	var tools []json.RawMessage
	if json.Unmarshal(jsonrpc.Field(m.Result, "tools"), &tools) != nil {
		return m
	}
	before := len(tools)
	tools = slices.DeleteFunc(tools, func(tool json.RawMessage) bool {
		name := jsonrpc.String(jsonrpc.Field(tool, "name"))
		headers, err := protocol.ParamHeaders(jsonrpc.Field(tool, "inputSchema"))
		if err != nil {
			c.logger.Warn("a tool of the server is left out: its definition is invalid", "tool", name, "error", err)
			headers = nil
		}
		c.note(name, headers)
		return err != nil
	})
	if len(tools) == before {
		return m
	}
	list, err := json.Marshal(tools)
	if err != nil {
		return m
	}
	raw, ok := jsonrpc.Set(m.Raw, list, "result", "tools")
	if !ok {
		return m
	}
	return protocol.Parsed(raw, m)
}

// note notes the headers of a tool.
func (c *Conn) note(tool string, headers []protocol.ParamHeader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.modern
	switch {
	case len(headers) == 0:
		delete(t.tools, tool)
	case len(t.tools) < mostAnnotated:
		if t.tools == nil {
			t.tools = make(map[string][]protocol.ParamHeader)
		}
		t.tools[tool] = headers
	}
}

// mostPages bounds how far the server's list of tools is read for one tool.
const mostPages = 100

// listAgain lists the server's tools after it has refused a call for its headers: the tool's
// schema may have changed, or was never seen here ("Client Behavior").
func (k *call) listAgain() error {
	params := []byte(`{}`)
	if meta := jsonrpc.Field(k.body, "params", "_meta"); meta != nil {
		params, _ = jsonrpc.Set(params, withoutToken(meta), "_meta")
	}
	tool := jsonrpc.String(jsonrpc.Field(k.body, "params", "name"))
	for pages := protocol.NewPages(mostPages); ; {
		m, err := k.c.request(k.ctx, protocol.MethodToolsList, params)
		if err != nil {
			return err
		}
		if m.Error != nil {
			return errorOf(m.Error)
		}
		var page struct {
			Tools []struct {
				Name string `json:"name"`
			} `json:"tools"`
		}
		if err := json.Unmarshal(m.Result, &page); err != nil {
			return err
		}
		for _, t := range page.Tools {
			if t.Name == tool {
				return nil
			}
		}
		cursor, _, err := pages.Next(m.Result)
		if err != nil {
			return err
		}
		if cursor == nil {
			return fmt.Errorf("the server lists no tool %q", tool)
		}
		params, _ = jsonrpc.Set(params, cursor, "cursor")
	}
}

// withoutToken returns a _meta without the progress token, which belongs to one request.
func withoutToken(meta []byte) []byte { return protocol.Without(meta, "progressToken") }

// discovered takes the answer to the host's server/discover, and returns the answer that the host gets.
func (k *call) discovered(m jsonrpc.Message) jsonrpc.Message {
	if m.Error != nil {
		return m
	}
	c := k.c
	keys := jsonrpc.Field(m.Result, "capabilities", "experimental", protocol.MetaIdempotencyKey) != nil
	var offer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if json.Unmarshal(m.Result, &offer) != nil {
		return m
	}
	var legacy string // the newest one
	for _, v := range offer.SupportedVersions {
		if !protocol.Modern(v) {
			legacy = max(legacy, v)
		}
	}
	if c.opts.Era == AnyEra && legacy != "" && (!k.isModern() || !hasTasks(k.body, m) && (keys || c.hasSessions(k, legacy))) {
		return noDiscover(m)
	}
	c.mu.Lock()
	c.modern.keys, c.modern.revision = keys, k.revision
	if k.isModern() && c.session.state == sessionBegun && c.session.id == "" {
		c.session.leave()
	}
	if c.session.state == sessionNone {
		c.opening.request = nil // the server has refused this request, or forgotten it
	}
	c.modern.resumes = jsonrpc.Field(m.Result, "capabilities", "extensions", protocol.ExtensionResume) != nil
	c.mu.Unlock()
	c.changed()
	return m
}

// hasTasks reports whether the host of a server/discover and the server that has answered it both
// say that they know tasks.
func hasTasks(body []byte, m jsonrpc.Message) bool {
	return jsonrpc.Field(body, "params", "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionTasks) != nil &&
		jsonrpc.Field(m.Result, "capabilities", "extensions", protocol.ExtensionTasks) != nil
}

// noDiscover returns the error of a server that does not know server/discover.
func noDiscover(m jsonrpc.Message) jsonrpc.Message {
	e := jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "server/discover is not used: this connection has a session")
	return protocol.Parsed(jsonrpc.AppendError(nil, m.ID, e), m)
}

// hasSessions asks a server that speaks both eras whether it has legacy sessions: it begins one and ends it, unless
// the host has begun one. Without sessions the older revision offers no more than the newer one, and the server's
// requests lead nowhere. If the server does not answer, hasSessions reports true.
func (c *Conn) hasSessions(k *call, revision string) bool {
	known := c.current()
	if known.state == sessionBegun {
		return known.id != ""
	}
	params := jsonrpc.Object("protocolVersion", revision)
	info := jsonrpc.Field(k.body, "params", "_meta", protocol.MetaClientInfo)
	if info == nil {
		info = []byte(`{"name":"holdfast","version":"1"}`)
	}
	params, _ = jsonrpc.Set(params, info, "clientInfo")
	params, _ = jsonrpc.Set(params, []byte(`{}`), "capabilities")
	r, err := c.remote.do(k.ctx, exchange{
		method: http.MethodPost, body: jsonrpc.AppendRequest(nil, c.newID(), protocol.MethodInitialize, params), wait: c.opts.ConnectTimeout,
	})
	if err != nil {
		return true
	}
	id := r.Header.Get(protocol.HeaderSession)
	taken := r.StatusCode == http.StatusOK
	r.Close()
	if !taken || id == "" || len(id) > mostSession {
		return false
	}
	c.endSession(&session{id: id, revision: revision})
	return true
}

// endSession ends a session that is not the Conn's, in the background.
func (c *Conn) endSession(s *session) {
	c.spawn(func() {
		ctx, stop := context.WithTimeout(c.ctx, closeTimeout)
		defer stop()
		if r, err := c.remote.do(ctx, exchange{method: http.MethodDelete, session: s, wait: closeTimeout}); err == nil {
			r.Close()
		}
	})
}

// wrongEra returns the error of a request with which the host would begin in the era that
// Options.Era rules out; nil for any other request.
func (c *Conn) wrongEra(method string) *jsonrpc.Error {
	switch {
	case c.opts.Era == Legacy && method == protocol.MethodDiscover:
		return jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "server/discover is not used: this connection has a session")
	case c.opts.Era == Modern && method == protocol.MethodInitialize:
		return jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "initialize is not used: this connection is of revision %s or later", protocol.V20260728)
	}
	return nil
}
