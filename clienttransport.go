package holdfast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/oauth2"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// ClientOptions configure a [ClientTransport]. The zero value is useful: [client.Options]
// has the defaults.
type ClientOptions struct {
	// Options are the options of the connection. Options.State is not used: an mcp.Client begins a
	// session of its own, and continues calls of another with [ClientTransport.Resume].
	client.Options
	// OAuthHandler authorizes requests with the go-sdk's OAuth client. It replaces
	// Options.Auth.
	OAuthHandler auth.OAuthHandler
}

// A ClientTransport connects an official mcp.Client to a remote server, and keeps its calls alive
// when connections break. If the outcome of a call can't be known, the call fails with an error for
// which [OutcomeUnknown] is true.
//
// It is used for one Connect. Its methods may be called concurrently.
type ClientTransport struct {
	url  string
	opts ClientOptions

	mu   sync.Mutex
	conn *client.Conn
}

// NewClientTransport returns a transport to the server at the URL: Streamable
// HTTP or HTTP+SSE (http, https), or a WebSocket (ws, wss). opts may be nil.
func NewClientTransport(url string, opts *ClientOptions) *ClientTransport {
	t := &ClientTransport{url: url}
	if opts != nil {
		t.opts = *opts
	}
	if t.opts.OAuthHandler != nil {
		t.opts.Auth = oauth{t.opts.OAuthHandler}
	}
	return t
}

// Connect implements [mcp.Transport]. Nothing is sent yet.
func (t *ClientTransport) Connect(context.Context) (mcp.Connection, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil {
		return nil, errors.New("a ClientTransport is used for one Connect")
	}
	opts := t.opts.Options
	opts.State = nil // an mcp.Client begins a session, with ids that may be in flight in another
	conn, err := client.New(t.url, &opts)
	if err != nil {
		return nil, err
	}
	t.conn = conn
	return &clientConn{conn}, nil
}

// Resume continues a call of another transport's State, which may be of another process or machine,
// and returns its result. The result of tools/call can be decoded into an mcp.CallToolResult.
// Notifications and requests of the call go to the mcp.Client that is connected here. Over a
// WebSocket a call needs a resume token, and over HTTP+SSE no call can be resumed. If ctx ends
// first, the call continues at the server. The error is the call's: see [OutcomeUnknown].
func (t *ClientTransport) Resume(ctx context.Context, call client.CallState) (json.RawMessage, error) {
	t.mu.Lock()
	conn := t.conn
	t.mu.Unlock()
	if conn == nil {
		return nil, errors.New("resume: the transport is not connected")
	}
	m, err := conn.Resume(ctx, call)
	if err != nil {
		return nil, err
	}
	msg, err := toSDK(&m)
	if err != nil {
		return nil, err
	}
	if resp, ok := msg.(*sdkrpc.Response); ok && resp.Error != nil {
		return nil, fmt.Errorf("%s: %w", call.Method, resp.Error)
	}
	return m.Result, nil
}

// State returns the state of the connection with its calls in flight, each of which another
// transport can continue with [ClientTransport.Resume]. It holds secrets.
func (t *ClientTransport) State() client.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return client.State{URL: t.url}
	}
	return t.conn.State()
}

// Detach ends the connection without ending the session: calls in flight continue at the
// server, and can be resumed from the [ClientTransport.State].
func (t *ClientTransport) Detach() {
	t.mu.Lock()
	conn := t.conn
	t.mu.Unlock()
	if conn != nil {
		conn.Detach()
	}
}

// OutcomeUnknown reports whether err, of a call, means that the request may have run, and that its
// result can't be known. A request that is sent again may run twice.
func OutcomeUnknown(err error) bool {
	var e *sdkrpc.Error
	return errors.As(err, &e) && protocol.OutcomeUnknown(int(e.Code), e.Message)
}

// clientConn is a client.Conn as an mcp.Connection.
type clientConn struct{ c *client.Conn }

// Read implements [mcp.Connection].
func (c *clientConn) Read(ctx context.Context) (sdkrpc.Message, error) {
	for {
		m, err := c.c.Receive(ctx)
		if err != nil {
			return nil, err
		}
		msg, err := toSDK(&m)
		if err == nil {
			return msg, nil
		}
		// One message that can't be converted must not end the session.
	}
}

// toSDK converts a message into one of the go-sdk.
func toSDK(m *jsonrpc.Message) (sdkrpc.Message, error) {
	id, err := sdkID(m.ID)
	if err != nil {
		return nil, err
	}
	if m.Kind != jsonrpc.Response {
		return &sdkrpc.Request{ID: id, Method: m.Method, Params: m.Params}, nil
	}
	resp := &sdkrpc.Response{ID: id, Result: m.Result}
	if m.Error != nil {
		e := &sdkrpc.Error{}
		if err := json.Unmarshal(m.Error, e); err != nil {
			e = &sdkrpc.Error{Code: sdkrpc.CodeInternalError, Message: fmt.Sprintf("the server's error cannot be read: %v", err)}
		}
		resp.Error = e
	}
	return resp, nil
}

// sdkID converts an id, as raw JSON, into one of the go-sdk.
func sdkID(raw []byte) (sdkrpc.ID, error) {
	if len(raw) == 0 {
		return sdkrpc.ID{}, nil
	}
	if raw[0] == '"' {
		return sdkrpc.MakeID(jsonrpc.String(raw))
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return sdkrpc.ID{}, err
	}
	return sdkrpc.MakeID(f)
}

// Write implements [mcp.Connection].
func (c *clientConn) Write(ctx context.Context, msg sdkrpc.Message) error {
	var m jsonrpc.Message
	switch msg := msg.(type) {
	case *sdkrpc.Request:
		m.Kind, m.Method, m.Params = jsonrpc.Notification, msg.Method, msg.Params
		if msg.IsCall() {
			m.Kind, m.ID = jsonrpc.Request, rawID(msg.ID)
		}
		size := len(m.Params) + len(m.Method) + len(m.ID) + 64
		m.Raw = jsonrpc.AppendRequest(make([]byte, 0, size), m.ID, m.Method, m.Params)
	default:
		data, err := sdkrpc.EncodeMessage(msg)
		if err != nil {
			return err
		}
		if m, err = jsonrpc.Parse(data); err != nil {
			return err
		}
	}
	err := c.c.Send(ctx, m)
	if errors.Is(err, client.ErrClosed) {
		return mcp.ErrConnectionClosed
	}
	return err
}

// rawID returns an id of the go-sdk as raw JSON.
func rawID(id sdkrpc.ID) []byte {
	switch v := id.Raw().(type) {
	case int64:
		return strconv.AppendInt(nil, v, 10)
	default:
		raw, _ := json.Marshal(v) // a string
		return raw
	}
}

// Close implements [mcp.Connection].
func (c *clientConn) Close() error { return c.c.Close() }

// SessionID implements [mcp.Connection].
func (c *clientConn) SessionID() string { return c.c.SessionID() }

// oauth is the go-sdk's OAuth client as an authorizer.
type oauth struct{ h auth.OAuthHandler }

// Authorization implements [client.Authorizer].
func (o oauth) Authorization(ctx context.Context) (string, error) {
	source, err := o.h.TokenSource(ctx)
	if err != nil || source == nil {
		return "", err
	}
	token, err := source.Token()
	if err != nil {
		// A grant that has ended is renewed by the flow that the server's 401 starts (RFC
		// 6749, section 5.2).
		if old, ok := errors.AsType[*oauth2.RetrieveError](err); ok && old.ErrorCode == "invalid_grant" {
			return "", nil
		}
		return "", err
	}
	if token == nil {
		return "", nil
	}
	return "Bearer " + token.AccessToken, nil
}

// Authorize implements [client.Authorizer].
func (o oauth) Authorize(ctx context.Context, req *http.Request, resp *http.Response) error {
	return o.h.Authorize(ctx, req, resp)
}
