package tools

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// To read a list takes mostReading at the most. Calls that need to know whether they may be made again wait until it has taken [Patience], and are stored then:
// a server that is slow to list its tools costs that time once, however many calls wait. Facts that a call cannot do without are waited for longPatience.
const (
	Patience     = 50 * time.Millisecond
	longPatience = 2 * time.Second
	mostReading  = 10 * time.Second
)

// A Server lists its tools for the sake of a session. Its methods may be called concurrently.
type Server interface {
	// Name returns the session's name, for logs.
	Name() string
	// Server returns the server's name, as the operator knows it.
	Server() string
	// Asks returns the function that asks the server for pages of its list, with the headers and the capabilities of a client's request m, or none if m
	// is nil. done is called after the last page; news: the List now knows tools that may be called again. ask is nil if the server cannot be asked now.
	Asks(ctx context.Context, m *jsonrpc.Message, header http.Header) (ask Ask, done func(news bool))
}

// Ask asks for a page of the list, with the params of the request. An error means that there is no response.
type Ask func(ctx context.Context, params []byte) (jsonrpc.Message, error)

// A reader reads a list.
type reader struct {
	began time.Time
	over  chan struct{} // closed when the list has been read
}

// await waits until the list has been read, but no longer than most.
func (r *reader) await(ctx context.Context, most time.Duration) {
	if most <= 0 {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-r.over:
	case <-t.C:
	case <-ctx.Done():
	}
}

// awaitAll waits until all tools are known, if they can be, but no longer than most.
func (l *List) awaitAll(ctx context.Context, m *jsonrpc.Message, header http.Header, most time.Duration) {
	if l.IsComplete() {
		return
	}
	if r := l.start(ctx, m, header); r != nil {
		r.await(ctx, most)
	}
}

// ReadUnknown begins to read the server's list, for the sake of a request, if the list is not complete, and no tool in it is known that may be called again.
func (l *List) ReadUnknown(ctx context.Context, m *jsonrpc.Message, header http.Header) {
	if !l.IsComplete() && len(l.Names()) == 0 {
		l.start(ctx, m, header)
	}
}

// start begins to read the server's list, for the sake of a request, unless the list is being read. It returns the reader; nil:
// the list is complete, or cannot be read now.
func (l *List) start(ctx context.Context, m *jsonrpc.Message, header http.Header) *reader {
	l.mu.Lock()
	r := l.reading
	l.mu.Unlock()
	if r != nil {
		return r
	}
	ask, done := l.of.Asks(ctx, m, header)
	if ask == nil {
		return nil
	}
	l.mu.Lock()
	if r = l.reading; r != nil || l.complete { // meanwhile
		l.mu.Unlock()
		done(false)
		return r
	}
	defer l.mu.Unlock()
	l.reading = &reader{began: time.Now(), over: make(chan struct{})}
	go l.read(l.reading, l.version, ask, done)
	return l.reading
}

// read reads the server's whole list.
func (l *List) read(r *reader, version int32, ask Ask, done func(news bool)) {
	ctx, stop := context.WithTimeout(context.Background(), mostReading)
	defer stop()
	all, err := l.readPages(ctx, ask)
	l.mu.Lock()
	current := l.version == version // else the list has changed
	if current {
		l.reading = nil
	}
	if current = current && (err == nil || ctx.Err() != nil); current { // else the server ended; a server that does not answer is not asked again
		l.hints = all
		l.nested.Store(all.nested)
	}
	news := current && len(all.repeatable) > 0
	close(r.over)
	l.mu.Unlock()
	done(news)
}

// readPages asks for all pages. An error means that one got no response.
func (l *List) readPages(ctx context.Context, ask Ask) (all hints, err error) {
	all.complete = true
	params := []byte("{}")
	for pages := protocol.NewPages(100); ; { // a server without a last page is given up
		m, err := ask(ctx, params)
		if err != nil {
			l.rules.Logger.Debug("tools not listed", "session", l.of.Name(), "error", err)
			return all, err
		}
		p := readPage(m.Result)
		all.learn(&p, l.rules.Own)
		cursor, _, err := pages.Next(m.Result)
		if m.Error != nil {
			err = fmt.Errorf("the server answers %.200s", m.Error)
		}
		if err != nil {
			l.rules.Logger.Warn("not all tools listed: calls of the others are taken for unsafe to repeat", "session", l.of.Name(), "error", err)
		}
		if cursor == nil || err != nil {
			return all, nil
		}
		params, _ = jsonrpc.Set([]byte("{}"), cursor, "cursor")
	}
}
