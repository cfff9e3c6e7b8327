package server

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
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/stream"
)

// leaveGrace is how long a request whose client has left may wait for the first
// sign of its answer, so that it surely was taken, and its call can be asked for.
const leaveGrace = 2 * time.Second

// send sends the request to a node, and passes on what it answers. The error wraps
// errAgain where that came to nothing.
func (rl *relay) send(ctx context.Context, node string, at *session.Remote, take bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rl.cancel.Store(&cancel)
	if rl.leaving.Load() {
		return errLeaving
	}
	rl.node = node
	parting := rl.parting() // before: the answer may name another session
	leaves := context.AfterFunc(rl.r.Context(), func() {
		if rl.visit.Watched {
			parting.tell() // what is answered meanwhile is lost
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
	dialled := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { dialled = true }}
	req, err := rl.request(httptrace.WithClientTrace(ctx, trace), node, at, take)
	if err != nil {
		return err
	}
	began := time.Now()
	res, err := rl.h.peers.transport.RoundTrip(req)
	if err != nil {
		rl.sent = rl.sent || dialled
		rl.waited(began)
		rl.lost(ctx, node, err)
		if dialled && rl.gone != node && errors.Is(err, context.Canceled) && rl.r.Context().Err() != nil {
			return errLeft // a node that lives has it, and will say nothing before its answer
		}
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	defer func() { _ = res.Body.Close() }() // which the connection's end may have broken
	if isEvents(res.Header) || res.StatusCode == http.StatusSwitchingProtocols {
		leaves()
		stop := context.AfterFunc(rl.r.Context(), cancel)
		defer stop()
	}
	err = rl.pass(res, at)
	if errors.Is(err, errCut) {
		rl.waited(began)
		rl.lost(ctx, node, err)
		err = fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// request makes the request that is sent.
func (rl *relay) request(ctx context.Context, node string, at *session.Remote, take bool) (*http.Request, error) {
	v := rl.visit
	v.Take, v.Again = take, rl.sent || rl.e.again
	of := rl.r
	payload := rl.payload
	if rl.out != nil {
		of, payload = rl.resumption(ctx), nil
		v.Once = ""
	}
	req, err := http.NewRequestWithContext(ctx, of.Method, "http://"+node+forwardedURI(of.URL), bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	if len(payload) == 0 {
		req.Body, req.GetBody, req.ContentLength = http.NoBody, nil, 0
	}
	req.Host = of.Host
	req.Header = rl.h.forwarded(of.Header, upgrades(of))
	if len(req.Header["User-Agent"]) == 0 {
		req.Header["User-Agent"] = []string{""} // not net/http's own
	}
	if rl.e.as && at != nil && rl.out == nil {
		req.Header[protocol.HeaderSession] = []string{at.ID}
	}
	req.Header[headerVisit] = []string{v.encode()}
	return req, nil
}

// again is the client's request as it is served here, in a session that has come
// here, after it was sent elsewhere.
func (rl *relay) again(s *session.Session) *http.Request {
	r := rl.r.WithContext(rl.r.Context())
	if rl.e.as {
		r.Header = r.Header.Clone()
		r.Header[protocol.HeaderSession] = []string{s.ID()}
	}
	r.Body = io.NopCloser(bytes.NewReader(rl.payload))
	r.ContentLength = int64(len(rl.payload))
	return r
}

// resumption is a request for the rest of the stream that answers.
func (rl *relay) resumption(ctx context.Context) *http.Request {
	r := rl.r.Clone(ctx)
	r.Method, r.Body, r.ContentLength = http.MethodGet, http.NoBody, 0
	if streamParam(r) == "" && !rl.e.pair {
		r.URL.RawQuery = ""
		r.Header[protocol.HeaderSession] = []string{rl.out.session}
	}
	r.Header.Del("Content-Type")
	r.Header.Set("Accept", sse.ContentType)
	r.Header.Del(protocol.HeaderLastEventID)
	if rl.out.last != "" {
		r.Header[protocol.HeaderLastEventID] = []string{rl.out.last}
	}
	return r
}

// hop are the headers that concern one connection (RFC 9110, section 7.6.1), and
// those that net/http writes itself.
var hop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Expect": true, "Host": true,
}

// passable returns the headers that go from one connection to another. Those of a
// handshake are needed there.
func passable(from http.Header, handshake bool) http.Header {
	named := map[string]bool{}
	for _, list := range from["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			named[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	to := make(http.Header, len(from)+1)
	for name, values := range from {
		if !hop[name] && !named[name] && !strings.HasPrefix(name, ownHeaders) {
			to[name] = values
		}
	}
	if handshake {
		to["Connection"], to["Upgrade"] = []string{"Upgrade"}, from["Upgrade"]
	}
	return to
}

// own says whether a request header is the protocol's, or is about the request alone:
// another node needs it.
func own(name string) bool {
	switch name {
	case "Accept", "Content-Type", "User-Agent", "Traceparent", "Tracestate", protocol.HeaderLastEventID, protocol.HeaderIdempotencyKey:
		return true
	}
	return strings.HasPrefix(name, "Mcp-") || strings.HasPrefix(name, "Sec-Websocket-")
}

// forwarded returns the headers of a client's request that go to another node. They go
// through the engine, which others may read: so no credential does, unless the backend
// needs it ([Options.ForwardHeader]). Who the client is has been made out here.
func (h *Handler) forwarded(from http.Header, handshake bool) http.Header {
	to := passable(from, handshake)
	for name := range to {
		if !own(name) && name != "Connection" && name != "Upgrade" && !h.opts.ForwardHeader(name) {
			delete(to, name)
		}
	}
	if offers, ok := to["Sec-Websocket-Protocol"]; ok { // where browsers have to put their tokens
		delete(to, "Sec-Websocket-Protocol")
		for name := range strings.SplitSeq(strings.Join(offers, ","), ",") {
			if strings.TrimSpace(name) == subprotocol {
				to["Sec-Websocket-Protocol"] = []string{subprotocol}
			}
		}
	}
	return to
}

// forwardedURI is what of a request's URL goes to another node: not what stands in the
// query beside our own.
func forwardedURI(of *url.URL) string {
	to := url.URL{Path: of.Path, RawPath: of.RawPath}
	if of.RawQuery != "" {
		asked, ours := of.Query(), url.Values{}
		for _, name := range []string{streamName, sessionParam} {
			if values, ok := asked[name]; ok {
				ours[name] = values
			}
		}
		to.RawQuery = ours.Encode()
	}
	return to.RequestURI()
}

func isEvents(head http.Header) bool {
	return strings.HasPrefix(head.Get("Content-Type"), sse.ContentType)
}

// errCut says that a node's answer ended before its end.
var errCut = errors.New("the answer was cut off")

// pass passes a node's answer on to the client.
func (rl *relay) pass(res *http.Response, at *session.Remote) error {
	switch {
	case res.StatusCode == http.StatusMisdirectedRequest && res.Header[headerMoved] != nil:
		if where := res.Header.Get(headerMoved); where != "" {
			rl.e.key, rl.e.as = stream.SessionKey(where), true
		}
		return errAgain
	case rl.out != nil:
		return rl.out.goOn(res)
	case res.StatusCode == http.StatusSwitchingProtocols:
		rl.setHeader(res)
		return rl.upgrade(res)
	case isEvents(res.Header):
		return rl.begin(res, at)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		rl.sent = true
		return errCut
	}
	rl.setHeader(res)
	head := rl.w.Header()
	if len(body) > 0 {
		head["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	rl.w.WriteHeader(res.StatusCode)
	if len(body) > 0 {
		_ = rl.h.finish(rl.w, body)
	}
	if rl.visit.Watched && rl.r.Context().Err() != nil { // the answer may be in the log, for a client that comes back
		rl.parting().tell()
	}
	return nil
}

// setHeader takes over the header of a node's answer.
func (rl *relay) setHeader(res *http.Response) {
	head := rl.w.Header()
	for name, values := range passable(res.Header, false) {
		if name != "Date" {
			head[name] = append(head[name][:len(head[name]):len(head[name])], values...)
		}
	}
}
