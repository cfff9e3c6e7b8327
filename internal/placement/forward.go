package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/stream"
)

// leaveGrace is how long a forwarded request may wait for the beginning of its
// answer after its client has left, so that the node has surely taken it and the
// client can ask for the call.
const leaveGrace = 2 * time.Second

// endGrace is how long after its last event a stream may take to end: a client that has read that event
// may leave before the end.
const endGrace = 50 * time.Millisecond

// forward sends the exchange to a node, and passes its answer on. The error wraps
// errAgain if the exchange was not answered and can be tried again.
func (p *Placement) forward(ctx context.Context, node string, at *session.Remote, take bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !p.leaving.cancels(&cancel) {
		return ErrLeaving
	}
	p.node = node
	left := notice{Request: p.req.Visit.Once}
	if p.req.Visit.Watched { // before the answer, which may name another session
		p.nodes.departed.returns(p.req.HTTP.RemoteAddr, &p.written)
		left.Left, left.Principal, left.From = p.key, p.req.Visit.Principal, p.req.HTTP.RemoteAddr
	}
	leaves := context.AfterFunc(p.req.HTTP.Context(), func() {
		p.leaves()
		if left.Left != "" || left.Request != "" {
			p.nodes.owe(node, &left) // an answer on its way is lost
		}
		if p.req.Cuts {
			cancel()
			return
		}
		t := time.NewTimer(leaveGrace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-ctx.Done():
		}
	})
	defer leaves()
	req, err := p.request(ctx, node, at, take)
	if err != nil {
		return err
	}
	began := time.Now()
	res, dialled, err := p.roundTrip(req, node)
	if err != nil {
		if dialled {
			p.to(sent)
		}
		p.waited(began)
		p.lost(ctx, node, err)
		if dialled && p.gone != node && errors.Is(err, context.Canceled) && p.req.HTTP.Context().Err() != nil {
			return errLeft // a living node has the request, and writes nothing before its answer
		}
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	defer func() { _ = res.Body.Close() }() // the connection may have broken it already
	if IsEvents(res.Header) || res.StatusCode == http.StatusSwitchingProtocols {
		leaves()
		stop := context.AfterFunc(p.req.HTTP.Context(), func() {
			p.leaves()
			t := time.NewTimer(endGrace)
			defer t.Stop()
			select {
			case <-t.C:
				cancel()
			case <-ctx.Done():
			}
		})
		defer stop()
	}
	err = p.pass(res, at)
	if errors.Is(err, errCut) {
		p.waited(began)
		p.lost(ctx, node, err)
		err = fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// leaves notes that the client has left. It is called before the call's node is told.
func (p *Placement) leaves() {
	if p.req.Visit.Watched {
		p.nodes.departed.leaves(p.req.HTTP.RemoteAddr, &p.written)
	}
}

// roundTrip sends a request to a node, and returns the beginning of its answer. dialled
// says that the node may have the request.
func (p *Placement) roundTrip(req *http.Request, node string) (res *http.Response, dialled bool, err error) {
	if req.Method == http.MethodPost && !p.req.Visit.Stays && req.ContentLength <= mostDirect {
		return p.nodes.direct.roundTrip(req, node)
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { dialled = true }}
	res, err = p.nodes.transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	return res, dialled, err
}

// request returns the request to send to a node: the client's, or, once the answer has
// begun, a request for the rest of the stream that answers.
func (p *Placement) request(ctx context.Context, node string, at *session.Remote, take bool) (*http.Request, error) {
	v := p.req.Visit
	v.Take, v.Again = take, p.state != placed || p.run.Again
	method, uri, body := p.req.HTTP.Method, forwardedURI(p.req.HTTP.URL), p.body()
	header := p.nodes.forwarded(p.req.HTTP.Header, websocket.IsUpgrade(p.req.HTTP))
	if len(header["User-Agent"]) == 0 {
		header["User-Agent"] = []string{""} // so that net/http does not add its own
	}
	switch {
	case p.out != nil:
		method, body, v.Once, v.Continues = http.MethodGet, nil, "", true
		if !p.req.Visit.Pair && !p.req.HTTP.URL.Query().Has(protocol.ParamStream) {
			uri, _, _ = strings.Cut(uri, "?")
			header[protocol.HeaderSession] = []string{p.out.session}
		}
		header.Del("Content-Type")
		header.Set("Accept", sse.ContentType)
		header.Del(protocol.HeaderLastEventID)
		if p.out.last != "" {
			header[protocol.HeaderLastEventID] = []string{p.out.last}
		}
	case p.redirected && at != nil:
		header[protocol.HeaderSession] = []string{at.ID}
	}
	if v.Watched {
		v.Node = p.nodes.node.Name()
	}
	header[headerVisit] = []string{v.encode()}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+node+uri, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		req.Body, req.GetBody, req.ContentLength = http.NoBody, nil, 0
	}
	req.Host, req.Header = p.req.HTTP.Host, header
	return req, nil
}

// body returns the body of a forwarded POST, without the messages that this node has already taken.
func (p *Placement) body() []byte {
	msgs := p.req.Messages
	if len(msgs) == 0 {
		return nil
	}
	if !p.req.Batch {
		return msgs[0].Raw
	}
	var text []byte
	for i := range msgs {
		text = append(text, "[,"[min(i, 1)])
		text = append(text, msgs[i].Raw...)
	}
	return append(text, ']')
}

// hop are the headers that concern one connection (RFC 9110, section 7.6.1), and
// the headers that net/http writes itself.
var hop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Expect": true, "Host": true,
}

// passable returns the headers that go from one connection to another; with
// handshake, also those of a WebSocket handshake.
func passable(from http.Header, handshake bool) http.Header {
	named := map[string]bool{}
	for _, list := range from["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			named[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	to := make(http.Header, len(from)+1)
	for name, values := range from {
		if !hop[name] && !named[name] && !strings.HasPrefix(name, OwnHeaders) {
			to[name] = values
		}
	}
	if handshake {
		to["Connection"], to["Upgrade"] = []string{"Upgrade"}, from["Upgrade"]
	}
	return to
}

// own reports whether another node needs a request header: it is the protocol's, or
// describes the request itself.
func own(name string) bool {
	switch name {
	case "Accept", "Content-Type", "User-Agent", "Traceparent", "Tracestate", protocol.HeaderLastEventID, protocol.HeaderIdempotencyKey:
		return true
	}
	return strings.HasPrefix(name, "Mcp-") || strings.HasPrefix(name, "Sec-Websocket-")
}

// forwarded returns the headers of a client's request that go to another node. They go
// through the engine, which other programs may read, so no credential is among them unless
// the backend needs it ([Options.ForwardHeader]). This node has authenticated the client.
func (n *Nodes) forwarded(from http.Header, handshake bool) http.Header {
	to := passable(from, handshake)
	for name := range to {
		if !own(name) && name != "Connection" && name != "Upgrade" && !n.opts.ForwardHeader(name) {
			delete(to, name)
		}
	}
	if offers, ok := to["Sec-Websocket-Protocol"]; ok { // browsers have to put their tokens here
		delete(to, "Sec-Websocket-Protocol")
		for name := range strings.SplitSeq(strings.Join(offers, ","), ",") {
			if strings.TrimSpace(name) == websocket.Subprotocol {
				to["Sec-Websocket-Protocol"] = []string{websocket.Subprotocol}
			}
		}
	}
	return to
}

// forwardedURI returns the URI for another node: the path, and of the query only the
// protocol's own parameters.
func forwardedURI(of *url.URL) string {
	to := url.URL{Path: of.Path, RawPath: of.RawPath}
	if of.RawQuery != "" {
		asked, ours := of.Query(), url.Values{}
		for _, name := range []string{protocol.ParamStream, protocol.ParamSession} {
			if values, ok := asked[name]; ok {
				ours[name] = values
			}
		}
		to.RawQuery = ours.Encode()
	}
	return to.RequestURI()
}

// IsEvents reports whether a header is that of a stream of events.
func IsEvents(head http.Header) bool {
	return strings.HasPrefix(head.Get("Content-Type"), sse.ContentType)
}

// errCut says that a node's answer was cut off.
var errCut = errors.New("the answer was cut off")

// pass passes a node's answer on to the client.
func (p *Placement) pass(res *http.Response, at *session.Remote) error {
	switch {
	case res.StatusCode == http.StatusMisdirectedRequest && res.Header[headerMoved] != nil:
		if where := res.Header.Get(headerMoved); where != "" {
			p.key, p.redirected = stream.SessionKey(where), true
		}
		return errAgain
	case p.out != nil:
		return p.out.continueFrom(res)
	case res.StatusCode == http.StatusSwitchingProtocols:
		p.setHeader(res)
		p.passed = &Passed{Status: res.StatusCode, Streamed: true}
		p.req.Exchange.Streams(res.Header, false)
		return p.upgrade(res)
	case IsEvents(res.Header):
		return p.begin(res, at)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.to(sent)
		return errCut
	}
	p.passed = &Passed{Status: res.StatusCode, Refused: res.Header.Get(HeaderRefused)}
	p.setHeader(res)
	head := p.w.Header()
	if len(body) > 0 {
		head["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	p.w.WriteHeader(res.StatusCode)
	if len(body) > 0 {
		_ = p.nodes.opts.Host.Finish(p.w, body)
	}
	p.finished() // the answer may be in the log, for a client that comes back to it
	return nil
}

// setHeader copies the header of a node's answer, without the fields of the connection and Date.
func (p *Placement) setHeader(res *http.Response) {
	head := p.w.Header()
	for name, values := range passable(res.Header, false) {
		if name != "Date" {
			head[name] = append(head[name][:len(head[name]):len(head[name])], values...)
		}
	}
}
