package sdk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file is for revision 2026-07-28, which the SDK's servers speak: many requests, of
// many clients of one kind, come to one conversation, as over stdio.

// Eras implements [backend.EraSpeaker].
func (b *Backend) Eras() backend.Eras { return backend.Both }

type serverKey struct{}

// ServerFor returns the server of a request that stands alone: getServer is asked for each,
// and requests for the same server share a conversation.
func (b *Backend) ServerFor(r *http.Request) any { return b.getServer(r) }

// WithServer returns the request to open the backend with for a server that ServerFor has
// returned.
func (b *Backend) WithServer(r *http.Request, server any) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), serverKey{}, server))
}

// serverOf returns the server that a conversation is opened with.
func (b *Backend) serverOf(r *http.Request) *mcp.Server {
	if s, ok := r.Context().Value(serverKey{}).(*mcp.Server); ok {
		return s
	}
	return b.getServer(r)
}

// A modern is the part of a conn that only a conversation of modern requests has.
//
// The SDK's session is initialized as a legacy one, with the client's info and capabilities
// from the first request. So handlers may ask the client by [mcp.ServerSession.Elicit] and
// the like, as they always could, and Holdfast makes an InputRequiredResult of that. A
// handler that returns InputRequests has another session: see rounds.go.
type modern struct {
	conn    *conn     // the conn that has it
	once    sync.Once // the session is initialized
	listens listens
	rounds  rounds
	ready   chan struct{}                  // closed when the server has answered initialize
	info    atomic.Pointer[[]byte]         // the server's Implementation, as JSON; nil until then
	first   atomic.Pointer[decodedMeta]    // the first _meta, which most others are like
	values  atomic.Pointer[[]decodedValue] // members of _meta that came before
}

// deliverModern handles a message as far as only a modern conversation needs that. done
// reports that nothing else is left to do.
func (c *conn) deliverModern(in *backend.Inbound) (done bool, err error) {
	switch {
	case in.Kind == jsonrpc.Request && (in.Method == protocol.MethodSubscriptions || in.Method == protocol.MethodDiscover):
		return true, c.listen(in)
	case in.Kind == jsonrpc.Request:
		c.modern.once.Do(func() { err = c.initialize(in) })
		return err != nil, err
	case in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled:
		return c.dropListen(jsonrpc.Field(in.Params, "requestId")), nil
	}
	return false, nil
}

// initialize initializes the SDK's session for the client of a request. The SDK handles
// messages in their order until then.
func (c *conn) initialize(in *backend.Inbound) error {
	info := jsonrpc.Field(in.Params, "_meta", protocol.MetaClientInfo)
	if info == nil {
		info = []byte(`{"name":"","version":""}`)
	}
	params := []byte(`{"protocolVersion":"` + protocol.V20251125 + `"}`)
	params, _ = jsonrpc.Set(params, info, "clientInfo")
	params, _ = jsonrpc.Set(params, jsonrpc.Field(in.Params, "_meta", protocol.MetaClientCapabilities), "capabilities")
	if err := c.putInitialize(params, newExtra(&backend.Inbound{Context: in.Context, Header: in.Header})); err != nil {
		return err
	}
	extra := newExtra(&backend.Inbound{Context: in.Context, Header: in.Header})
	c.deliverNotice(extra)
	return c.put(&sdkrpc.Request{Method: protocol.MethodInitialized, Params: json.RawMessage(`{}`), Extra: extra})
}

// putInitialize hands an initialize of our own to the SDK.
func (c *conn) putInitialize(params []byte, extra *mcp.RequestExtra) error {
	c.mu.Lock()
	id := c.add(request{})
	c.mu.Unlock()
	return c.put(&sdkrpc.Request{ID: number(id), Method: protocol.MethodInitialize, Params: params, Extra: extra})
}

// initialized notes the server's Implementation in the result of initialize.
func (m *modern) initialized(result []byte) {
	if info := jsonrpc.Field(result, "serverInfo"); info != nil && !m.isReady() {
		info = bytes.Clone(info)
		m.info.Store(&info)
		close(m.ready)
	}
}

// isReady reports whether the server has given its Implementation.
func (m *modern) isReady() bool { return m.info.Load() != nil }

// complete adds to the result of a direct call the members that the SDK adds to other
// results (2026-07-28, Overview, "ResultType", "_meta").
func (m *modern) complete(result []byte) []byte {
	info := *m.info.Load()
	plain := len(result) > 2
	for _, name := range special {
		plain = plain && !bytes.Contains(result, name)
	}
	if plain { // the result has none of these members: one copy will do
		text := make([]byte, 0, len(result)+len(info)+100)
		text = append(append(text, '{'), modernOpening...)
		text = append(append(text, info...), "},"...)
		return append(text, result[1:]...)
	}
	if jsonrpc.Field(result, "_meta", protocol.MetaServerInfo) == nil {
		result, _ = jsonrpc.Set(result, info, "_meta", protocol.MetaServerInfo)
	}
	return typed(result)
}

// special are the members of a result that complete looks at.
var special = [][]byte{[]byte(`"_meta"`), []byte(`"resultType"`), []byte(`"inputRequests"`), []byte(`"requestState"`)}

// metaOf decodes the _meta of a request. Package json would take longer for it than all other work on the
// request: so texts are read here, and the facts that a client repeats with each request are decoded once.
//
// plain reports that the _meta belongs to the conversation's revision, and asks for no log messages.
func (m *modern) metaOf(raw []byte) (meta mcp.Meta, plain bool) {
	if string(raw) == "null" {
		return nil, m == nil
	}
	if first := m.firstMeta(); first != nil && bytes.Equal(first.raw, raw) {
		return maps.Clone(first.meta), first.plain
	}
	meta = make(mcp.Meta)
	var failed error
	object := jsonrpc.Each(raw, func(name, value []byte) {
		decoded, err := m.valueOf(value)
		meta[metaName(name)] = decoded
		failed = cmp.Or(failed, err)
	})
	if !object || failed != nil {
		return nil, false
	}
	plain = (meta[mcp.MetaKeyProtocolVersion] != nil) == (m != nil) && meta[protocol.MetaLogLevel] == nil
	if m != nil && m.firstMeta() == nil && len(raw) <= largeValue {
		m.first.Store(&decodedMeta{bytes.Clone(raw), maps.Clone(meta), plain})
	}
	return meta, plain
}

// firstMeta returns the first _meta of a modern conversation, or nil.
func (m *modern) firstMeta() *decodedMeta {
	if m == nil {
		return nil
	}
	return m.first.Load()
}

// A decodedMeta is a _meta that came before.
type decodedMeta struct {
	raw   []byte
	meta  mcp.Meta
	plain bool
}

// metaName returns the name of a member of _meta, without an allocation for the names that each request has.
func metaName(name []byte) string {
	switch string(name) {
	case protocol.MetaProtocolVersion:
		return protocol.MetaProtocolVersion
	case protocol.MetaClientInfo:
		return protocol.MetaClientInfo
	case protocol.MetaClientCapabilities:
		return protocol.MetaClientCapabilities
	case protocol.MetaTraceParent:
		return protocol.MetaTraceParent
	}
	return string(name)
}

// version is the protocol version in each modern _meta.
var version any = protocol.V20260728

// valueOf decodes a value of a _meta. It keeps the objects of a modern conversation: all its clients say the same of themselves.
func (m *modern) valueOf(raw []byte) (any, error) {
	switch {
	case string(raw) == `"`+protocol.V20260728+`"`:
		return version, nil
	case raw[0] == '"':
		return jsonrpc.String(raw), nil
	case m == nil || raw[0] != '{' || len(raw) > largeValue:
		return decode(raw)
	}
	var known []decodedValue
	if values := m.values.Load(); values != nil {
		known = *values
	}
	for i := range known {
		if bytes.Equal(known[i].raw, raw) {
			return known[i].value, nil
		}
	}
	value, err := decode(raw)
	if err == nil && len(known) < mostValues {
		known = append(known[:len(known):len(known)], decodedValue{bytes.Clone(raw), value})
		m.values.Store(&known)
	}
	return value, err
}

func decode(raw []byte) (value any, err error) {
	err = json.Unmarshal(raw, &value)
	return value, err
}

// mostValues is how many values are kept, and largeValue how many bytes one has at the most.
const (
	mostValues = 4
	largeValue = 4 << 10
)

// A decodedValue is a value that came before.
type decodedValue struct {
	raw   []byte
	value any
}

// typed gives a result its resultType. The SDK leaves that out of some results, and takes results
// that ask the client for input for complete, as it believes that it has asked by itself.
func typed(result []byte) []byte {
	is, of := protocol.ResultComplete, jsonrpc.Field(result, "resultType")
	if jsonrpc.Field(result, "inputRequests") != nil || jsonrpc.Field(result, "requestState") != nil {
		is = protocol.ResultInputRequired
	}
	if jsonrpc.String(of) != is {
		result, _ = jsonrpc.Set(result, jsonrpc.Quote(is), "resultType")
	}
	return result
}

// listens are the conversations of subscriptions/listen requests. The SDK knows one listen
// of a session, so each has a session of its own. So has server/discover, after which the
// SDK takes a session for a modern one.
type listens struct {
	mu    sync.Mutex
	open  map[string]*handle // by the ids of the requests
	ended bool
}

// listen opens a conversation for a subscriptions/listen request. All messages of the SDK in it belong to the request.
func (c *conn) listen(in *backend.Inbound) error {
	l, err := c.b.connect(c.ctx, c.server, c.sink, "")
	if err != nil {
		return err
	}
	id := in.ID // so that in need not live on the heap
	l.call, l.listener = in.Call, func() { c.dropListen(id) }
	c.modern.listens.mu.Lock()
	if c.modern.listens.ended {
		c.modern.listens.mu.Unlock()
		_ = l.Close()
		return mcp.ErrConnectionClosed
	}
	if c.modern.listens.open == nil {
		c.modern.listens.open = make(map[string]*handle)
	}
	c.modern.listens.open[string(in.ID)] = l
	c.modern.listens.mu.Unlock()
	m, err := l.translate(in)
	if err != nil {
		c.dropListen(in.ID)
		return err
	}
	l.in <- m // the channel has room
	return nil
}

// dropListen ends the conversation of a listen, and reports whether there was one.
func (c *conn) dropListen(id []byte) bool {
	c.modern.listens.mu.Lock()
	l := c.modern.listens.open[string(id)]
	delete(c.modern.listens.open, string(id))
	if l == nil {
		c.modern.listens.mu.Unlock()
		return false
	}
	c.running.Add(1)
	c.modern.listens.mu.Unlock()
	go func() { // the SDK may be the caller, from that conversation
		defer c.running.Done()
		_ = l.Close()
	}()
	return true
}

// endListens ends the conversations of all listens.
func (c *conn) endListens() {
	if c.modern == nil {
		return
	}
	c.modern.listens.mu.Lock()
	c.modern.listens.ended = true
	open := c.modern.listens.open
	c.modern.listens.open = nil
	c.modern.listens.mu.Unlock()
	for _, l := range open {
		_ = l.Close()
	}
}
