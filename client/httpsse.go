package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// An ssePair is the [muxConn] of HTTP+SSE (revision 2024-11-05): a stream with all messages of
// the server, and an endpoint to which messages are posted. The stream can be resumed if
// the server sends event ids, as Holdfast does.
type ssePair struct {
	c          *Conn
	stream     *response
	body       *keepAliveReader
	events     *sse.Reader
	opened     bool // it was opened before its mux began
	numbered   bool // the first event has an id: the stream can be resumed
	keepAlives bool // the server sends keep-alives

	mu       sync.Mutex
	endpoint *url.URL
	last     string
	seen     eventIDs
}

// newSSEPair returns an ssePair that is not connected. c.mu is held.
func newSSEPair(c *Conn) *ssePair {
	p := &ssePair{c: c, last: c.standalone.lastEventID}
	if u, err := url.Parse(c.standalone.endpoint); err == nil && c.standalone.endpoint != "" && sameOrigin(c.remote.url, u) {
		p.endpoint = u
	}
	return p
}

// resumes implements [muxConn]: the stream is resumed as a whole.
func (p *ssePair) resumes() bool { return false }

// open implements [muxConn].
func (p *ssePair) open(ctx context.Context, within time.Duration) (id string, resumed bool, err error) {
	if p.opened {
		p.opened = false
		return "", false, nil
	}
	c := p.c
	p.mu.Lock()
	old, last := p.endpoint, p.last
	p.mu.Unlock()
	r, err := c.remote.do(ctx, exchange{method: http.MethodGet, last: last, wait: within})
	if err == nil && last != "" && forgotten(&refusal{status: r.StatusCode}) {
		r.Close()
		r, err = c.remote.do(ctx, exchange{method: http.MethodGet, wait: within})
		old = nil // another session, even if its endpoint is the same
	}
	switch {
	case err != nil:
		return "", false, err
	case r.StatusCode != http.StatusOK:
		return "", false, c.remote.refused(r)
	case r.media() != sse.ContentType && old != nil:
		r.Close()
		return "", false, fmt.Errorf("the server answered with %.60q, not an event stream", r.media()) // for a while, as a proxy may do
	case r.media() != sse.ContentType:
		r.Close()
		return "", false, &refusal{text: fmt.Sprintf("the server answered with %.60q, not an event stream: is this the URL of an MCP server?", r.media())}
	}
	body := &keepAliveReader{r: r, silence: c.opts.Silence, quick: c.opts.quick}
	events := sse.NewReader(body, c.opts.MaxMessage)
	r.events = true // the endpoint must come in time, whatever other bytes do
	to, err := p.first(r, events)
	r.events = false
	if err != nil {
		r.Close()
		return "", false, err
	}
	resumed = last != "" && old != nil && old.String() == to.String()
	p.keepAlives = p.keepAlives || body.seen
	p.mu.Lock()
	p.endpoint, p.stream, p.body, p.events = to, r, body, events
	if !resumed {
		// Another session may begin its event ids anew. The id of its first event counts.
		p.seen = eventIDs{}
		if p.last == last {
			p.last = ""
		}
	}
	last = p.last
	p.mu.Unlock()
	switch {
	case p.keepAlives:
		r.expect(c.opts.Silence)
	case resumed || p.numbered: // the server can resume the stream, or its first event shows that it can
		r.expect(longSilence * c.opts.Silence)
	default:
		r.expect(0)
	}
	c.mu.Lock()
	c.standalone.endpoint, c.standalone.lastEventID = to.String(), last
	c.mu.Unlock()
	c.changed()
	return "", resumed, nil
}

// first reads the endpoint event, with which the stream begins.
func (p *ssePair) first(r *response, events *sse.Reader) (*url.URL, error) {
	for {
		ev, err := events.Next()
		if err != nil {
			return nil, fmt.Errorf("no endpoint event: %w", err)
		}
		p.note(&ev)
		if ev.Name != "endpoint" {
			continue
		}
		p.numbered = ev.ID != ""
		if len(ev.Data) > mostWay {
			return nil, &refusal{text: fmt.Sprintf("endpoint event: the URL is longer than %d bytes", mostWay)}
		}
		to, err := r.Request.URL.Parse(string(ev.Data))
		if err != nil {
			return nil, &refusal{text: fmt.Sprintf("endpoint event: %v", err)}
		}
		if !sameOrigin(r.Request.URL, to) {
			return nil, &refusal{text: fmt.Sprintf("the server wants messages to be posted to another origin: %.200s", originOf(to))}
		}
		return to, nil
	}
}

// note notes an event's id and retry field, and reports whether the event is new.
func (p *ssePair) note(ev *sse.Event) bool {
	if !headable(ev.ID) {
		ev.ID = ""
	}
	if ev.Retry >= 0 {
		p.c.mu.Lock()
		x := p.c.mux
		p.c.mu.Unlock()
		if x != nil {
			x.backoff.ask(ev.Retry, p.c)
		}
	}
	if ev.ID == "" {
		return true
	}
	p.mu.Lock()
	p.last = ev.ID
	fresh := p.seen.add(ev.ID)
	p.mu.Unlock()
	p.c.mu.Lock()
	p.c.standalone.lastEventID = ev.ID
	p.c.mu.Unlock()
	p.c.changed()
	return fresh
}

// read implements [muxConn].
func (p *ssePair) read(take func(jsonrpc.Message)) error {
	r := p.stream
	unreadable := rpc.NewUnreadable(&p.c.calls)
	defer unreadable.Close()
	arrival := p.c.count(p.events)
	defer arrival.Done()
	for {
		arrival.Done()
		ev, err := p.events.Next()
		p.keepAlives = p.keepAlives || p.body.seen
		if budget.Full(err) || errors.Is(err, sse.ErrTooLong) {
			if errors.Is(err, sse.ErrTooLong) {
				err = p.c.errTooLong()
			}
			unreadable.Read()
			if err = p.c.skip(p.events, err, p.write, take); err != nil {
				return err
			}
			continue
		}
		if errors.Is(err, io.EOF) {
			return errCut
		}
		if err != nil {
			return err
		}
		r.pause(true)
		if p.note(&ev) && len(ev.Data) > 0 && (ev.Name == "" || ev.Name == "message") {
			msgs, err := rpc.Parse(ev.Data)
			unreadable.Read() // an event is a message as a whole
			if err != nil {
				p.c.dropped(ev.Data, err)
				unreadable.Take(ev.Data, err)
			}
			for _, m := range msgs {
				take(m)
			}
		}
		r.pause(false)
	}
}

// write implements [muxConn].
func (p *ssePair) write(ctx context.Context, raw []byte) error {
	p.mu.Lock()
	to := p.endpoint
	p.mu.Unlock()
	c := p.c
	s := session{revision: c.current().revision}
	var sent atomic.Bool
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The end of a call must not end the exchange: net/http would also end the next exchange on the same connection.
	host, _ := ctx.Value(hostKey{}).(context.Context)
	r, err := c.remote.do(sentWith(c.ctx, host), exchange{method: http.MethodPost, url: to, body: raw, session: &s, wait: c.opts.ConnectTimeout, sent: &sent, message: true})
	if err != nil {
		if !sent.Load() {
			err = fmt.Errorf("%w: %w", errUnsent, err)
		}
		return err
	}
	return c.remote.accepted(r)
}

// forgets reports whether the server, which has refused a call's message, has forgotten the session, though the stream is
// still open. Then forgets ends the stream, and the mux opens another one. unrun reports whether the server has certainly
// not run the call.
func (x *mux) forgets(k *call, no *refusal) (forgets, unrun bool) {
	p, ok := x.conn.(*ssePair)
	if !ok || k.opens() || k.failures.renewals > 0 || !no.doubtful() && !no.forgot() {
		return false, false
	}
	c, number := x.c, k.link.next
	s := c.current()
	if s.state != sessionBegun {
		return false, false
	}
	lost, ping := c.settle(k.ctx, s, no, func() verdict { return x.prove(p, number, s, no, k.origin.sent) })
	x.mu.Lock()
	lost = lost || !x.up(number) // it was lost with its stream, which shows only now
	x.mu.Unlock()
	if lost {
		k.failures.renewals++
		select {
		case <-x.gone(number):
		case <-k.ctx.Done():
		}
	}
	return lost, no.unrun(ping)
}

// prove is [probe.prove] for HTTP+SSE: the endpoint refuses a ping as well, and the server opens another stream.
func (x *mux) prove(p *ssePair, number int, s session, no *refusal, host context.Context) verdict {
	c := x.c
	ping := jsonrpc.AppendRequest(nil, c.newID(), protocol.MethodPing, nil)
	var refused *refusal
	switch err := x.write(sentWith(c.ctx, host), number, ping); {
	case errors.As(err, &refused) && (refused.forgot() || refused.refusesSession(no)):
	case err == nil, refused != nil:
		return verdictAlive
	default:
		return verdictRefuses // the stream has ended, or the server is out of reach
	}
	other := &ssePair{c: c}
	_, _, err := other.open(c.ctx, c.opts.ConnectTimeout)
	if err != nil {
		return verdictRefuses
	}
	other.close()
	c.loseSession(s)
	c.mu.Lock()
	c.opening.doubts.lost, c.opening.doubts.ping = s, refused
	c.mu.Unlock()
	x.mu.Lock()
	up := x.up(number)
	x.mu.Unlock()
	if up {
		p.close()
	}
	return verdictLost
}

// confirm implements [muxConn]: a message that was posted has been taken.
func (p *ssePair) confirm(context.Context) error { return nil }

// close implements [muxConn].
func (p *ssePair) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream != nil {
		p.stream.Close()
	}
}
