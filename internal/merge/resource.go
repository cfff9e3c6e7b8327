package merge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// resource routes a request about a resource: to the server that has listed it, or else to one
// server after the other until one has it.
func (c *conn) resource(in backend.Inbound, uri string) {
	c.mu.Lock()
	owner := c.ownerOf(uri)
	c.mu.Unlock()
	if owner != nil && in.Method == protocol.MethodReadResource {
		owner.send(in, nil)
		return
	}
	c.gather(in, func(ctx context.Context, in backend.Inbound) ([]byte, error) {
		links := c.links()
		if owner != nil {
			links = []*link{owner}
		}
		if in.Method == protocol.MethodSubscribe || in.Method == protocol.MethodUnsubscribe {
			return c.subscribeAll(ctx, in, uri, links)
		}
		return c.tryEach(ctx, in, uri, links)
	})
}

// An inquiry is a request about a resource that several servers may get.
type inquiry struct {
	c    *conn
	in   backend.Inbound
	uri  string
	many bool            // servers may get it
	ctx  context.Context // ends with the conversation, or when stop is called
	stop context.CancelFunc
	work sync.WaitGroup // servers that are being asked
}

// An answer is a server's answer to an inquiry.
type answer struct {
	l      *link
	result []byte
	err    error // why it does not have the resource; nil: it has
}

// inquire begins an inquiry, which the caller has to end. The end of the conversation must wait for the caller.
func (c *conn) inquire(in backend.Inbound, uri string, links []*link) *inquiry {
	q := &inquiry{c: c, in: in, uri: uri, many: len(links) > 1}
	q.ctx, q.stop = context.WithCancel(c.ctx)
	return q
}

// ask asks a server, which answers later.
func (q *inquiry) ask(l *link, answers chan<- answer) {
	q.work.Add(1)
	q.c.work.Go(func() {
		defer q.work.Done()
		result, err := q.answer(l)
		answers <- answer{l, result, err}
	})
}

// end ends an inquiry. now says that the client needs no more answers: open requests are cancelled. Else servers that have not
// answered may do so, which shows that they work.
func (q *inquiry) end(now bool) {
	if now {
		q.stop()
		return
	}
	q.c.work.Go(func() {
		defer q.stop()
		q.work.Wait()
	})
}

// answer asks a server, and waits for it.
func (q *inquiry) answer(l *link) ([]byte, error) {
	in := q.in
	if offers, err := l.offers("resources"); !offers || err != nil && !wantsToken(err) && q.many {
		if err == nil {
			return nil, q.none()
		}
		return nil, fmt.Errorf("the server %q: %w", l.name, err)
	}
	ctx := q.ctx
	if q.many || in.Method != protocol.MethodReadResource && in.Method != "completion/complete" {
		within, stop := context.WithTimeout(ctx, partFor) // a request that another may answer keeps no client waiting for ever
		defer stop()
		ctx = within
	}
	began := time.Now()
	m, err := l.ask(ctx, in, in.Params)
	if what := (matter{l.name, in.Method}); q.many && m.Error != nil && time.Since(began) > lateWait {
		q.c.b.setLate(what, true) // it takes its time to say that it cannot
	} else {
		l.outcome(what, err)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the server %q: %w", l.name, err)
	case m.Error != nil:
		return nil, &failed{m.Error}
	case in.Method == "completion/complete" && q.many && string(jsonrpc.Field(m.Result, "completion", "values")) == "[]":
		return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "no server has the resource")
	case in.Method == protocol.MethodReadResource:
		q.c.claim(q.uri, l)
	}
	l.noteSubscription(in.Method, q.uri, in.Params, true)
	return m.Result, nil
}

// none returns the error where no server may have the resource.
func (q *inquiry) none() error {
	return &jsonrpc.Error{Code: notFound, Message: "no server has the resource", Data: jsonrpc.Object("uri", q.uri)}
}

// subscribeAll subscribes to a resource, or ends that: at the server that has listed it or, if none has, at all servers,
// as some accept any URI. If there are several, the client waits for each no longer than for its part of a list. A later
// answer counts; the request to a server that does not answer is cancelled.
func (c *conn) subscribeAll(ctx context.Context, in backend.Inbound, uri string, links []*link) ([]byte, error) {
	q := c.inquire(in, uri, links)
	refused, unsent := make([]error, len(links)), make([]bool, len(links))
	each(links, func(i int, l *link) {
		wait, what := partFor, matter{l.name, in.Method}
		if q.many {
			wait = c.b.waitFor(what)
		}
		answers := make(chan answer, 1)
		q.ask(l, answers)
		over := time.NewTimer(wait)
		defer over.Stop()
		select {
		case said := <-answers:
			refused[i] = said.err
		case <-over.C:
			refused[i] = fmt.Errorf("the server %q: %w", l.name, errLate)
			c.b.setLate(what, true)
		case <-ctx.Done():
		}
		var none *notRun
		unsent[i] = refused[i] != nil && (errors.As(refused[i], &none) || !l.isReady())
	})
	q.end(ctx.Err() != nil)
	if len(refused) > 0 && !slices.Contains(refused, nil) {
		return nil, mostTelling(refused)
	}
	for i, l := range links {
		if unsent[i] || !l.isReady() { // the server is told when it is opened
			l.noteSubscription(in.Method, uri, in.Params, false)
			c.work.Go(func() { l.retellSubscriptions(backend.Inbound{Context: in.Context, Header: in.Header}) }) // if it is by now
		}
	}
	return nil, nil
}

// tryEach makes a request about a resource to one server after the other, until one has it. After a moment all
// are asked, so that a server which is slow or hangs does not keep the others waiting. Servers that clients have waited
// for in vain before are asked last, and the client waits for them for a moment more.
func (c *conn) tryEach(ctx context.Context, in backend.Inbound, uri string, links []*link) (result []byte, err error) {
	q := c.inquire(in, uri, links)
	answers, asked := make(chan answer, len(links)), make(map[*link]bool)
	var refused, unauthorized error
	// take takes an answer, and reports whether there is no need for another.
	take := func(said answer) bool {
		delete(asked, said.l)
		if said.err == nil {
			result, refused = said.result, nil
			return true
		}
		if unauthorized == nil && wantsToken(said.err) {
			unauthorized = said.err
		}
		if tellsMore(said.err, refused) {
			refused = said.err
		}
		return false
	}
	// await takes answers until the servers of some have answered, or over is closed. It reports whether no more answers are needed.
	await := func(some []*link, over <-chan struct{}) bool {
		for slices.ContainsFunc(some, func(l *link) bool { return asked[l] }) {
			select {
			case said := <-answers:
				if take(said) {
					return true
				}
			case <-over:
				return false
			case <-ctx.Done():
				return true
			}
		}
		return false
	}
	well, late := c.b.apart(links, in.Method)
	slow, stop := context.WithTimeout(ctx, lateWait)
	defer stop()
	enough := false
	for i, l := range well {
		asked[l] = true
		q.ask(l, answers)
		if enough = await(well[i:i+1], slow.Done()); enough {
			break
		}
	}
	if !enough {
		for _, l := range late {
			asked[l] = true
			q.ask(l, answers)
		}
		moment, stop := context.WithTimeout(ctx, lateWait)
		defer stop()
		enough = await(late, moment.Done()) || await(well, nil)
	}
	q.end(enough)
	for l := range asked {
		if refused == nil || isNone(refused) {
			refused = fmt.Errorf("the server %q: %w", l.name, errLate)
		}
	}
	switch {
	case enough:
		return result, ctx.Err()
	case unauthorized != nil:
		return nil, unauthorized
	case refused == nil:
		return nil, q.none()
	}
	return nil, refused
}

// tellsMore reports whether a client learns more from the error of a server than from the error of another one, which may be nil: that
// says only that the server has no such resource, or no resources.
func tellsMore(err, than error) bool {
	var says, was *failed
	return than == nil || isNone(than) || errors.As(err, &says) && errors.As(than, &was) && (was.is(notFound) || was.is(jsonrpc.CodeMethodNotFound))
}

// mostTelling returns the error for a client after all its servers have failed: that of a server that wants another token, or else the error
// that tells most.
func mostTelling(errs []error) (most error) {
	if i := slices.IndexFunc(errs, wantsToken); i >= 0 {
		return errs[i]
	}
	for _, err := range errs {
		if tellsMore(err, most) {
			most = err
		}
	}
	return most
}

// isNone reports whether an error says no more than that a server has no resources.
func isNone(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == notFound
}

// notFound is the code for a resource that is not there (2025-11-25, Resources, "Error Handling").
const notFound = -32002

// subscribed returns the params of the subscriptions that the server gets when it is opened again, by URI.
func (l *link) subscribed() map[string][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.subs)
}

// noteSubscription notes a subscription, or its end, for when the server is opened again. told says that the server was told of it.
func (l *link) noteSubscription(method, uri string, params []byte, told bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		if told && l.subs[uri] != nil {
			l.told[uri] = true
		} else if told {
			delete(l.told, uri)
		}
	}()
	switch method {
	case protocol.MethodSubscribe:
		if l.subs == nil {
			l.subs = make(map[string][]byte)
		}
		if len(l.subs) < mostSubscriptions || l.subs[uri] != nil {
			l.subs[uri] = protocol.Setting(params)
		}
	case protocol.MethodUnsubscribe:
		delete(l.subs, uri)
	}
}

// unsettled returns a request that makes the subscriptions of a server more like those of the client, and notes that it is made; "": they are the same.
// l.mu is held.
func (l *link) unsettled() (method string, params []byte) {
	for uri, params := range l.subs {
		if !l.told[uri] {
			l.told[uri] = true
			return protocol.MethodSubscribe, params
		}
	}
	for uri := range l.told {
		if l.subs[uri] == nil {
			delete(l.told, uri)
			return protocol.MethodUnsubscribe, jsonrpc.Object("uri", uri)
		}
	}
	return "", nil
}

// tellSubscriptions tells the server of an opening of the client's subscriptions. The client may make more, and end some, meanwhile.
func (l *link) tellSubscriptions(ctx context.Context, n int, about backend.Inbound) {
	for {
		l.mu.Lock()
		var method string
		var params []byte
		conn := l.conn
		if l.opening == n && conn != nil {
			method, params = l.unsettled()
		}
		l.mu.Unlock()
		if method == "" {
			return
		}
		_, _ = l.askOn(ctx, conn, method, params, about)
	}
}

// retellSubscriptions tells an open server of subscriptions that were noted after the server was told of the others.
func (l *link) retellSubscriptions(about backend.Inbound) {
	l.mu.Lock()
	n, open := l.opening, l.state == linkOpen
	l.mu.Unlock()
	if !open {
		return
	}
	ctx, stop := context.WithTimeout(l.c.ctx, restateFor)
	defer stop()
	l.tellSubscriptions(ctx, n, about)
}
