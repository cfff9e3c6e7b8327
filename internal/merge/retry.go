package merge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file tries servers again that clients do not know fully: those that could not be opened, and those without a
// part in a list. No client need ask for that. All conversations have the same servers, so one conversation tries,
// and after a failure the next one, after a pause that grows. Once a try works the others follow, one after the
// other. A client is told when there is more in its lists.

// A retry has the links to one server that are to be tried again. Guarded by Backend.mu.
type retry struct {
	links  []*link // in turn
	failed int     // tries in a row
	busy   bool    // the next try waits for its time, or is under way
}

const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// tryLater schedules another try of a link, if one is worth it.
func (b *Backend) tryLater(l *link) {
	if !l.isMissing() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.retries[l.backend]
	if r == nil {
		r = new(retry)
		b.retries[l.backend] = r
	}
	if !l.queued {
		l.queued = true
		r.links = append(r.links, l)
	}
	b.schedule(r)
}

// schedule starts the pause before the next link is tried. b.mu is held.
func (b *Backend) schedule(r *retry) {
	if r.busy || len(r.links) == 0 {
		return
	}
	r.busy = true
	time.AfterFunc(min(firstRetry<<min(r.failed, 10), lastRetry), func() { b.try(r) })
}

// try tries one link after the other, until one fails.
func (b *Backend) try(r *retry) {
	for works := true; works; {
		b.mu.Lock()
		if len(r.links) == 0 {
			r.busy = false
			b.mu.Unlock()
			return
		}
		l := r.links[0]
		r.links = r.links[1:]
		l.queued = false
		b.mu.Unlock()
		if !l.c.startWork() {
			continue
		}
		works = l.try()
		if !works {
			b.tryLater(l)
		}
		b.mu.Lock()
		r.failed++
		if works {
			r.failed = 0
		}
		b.mu.Unlock()
		l.c.work.Done()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r.busy = false
	b.schedule(r)
}

// startWork begins work that the end of the conversation waits for, unless it has ended.
func (c *conn) startWork() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.initialize == nil {
		return false
	}
	c.work.Add(1)
	return true
}

// isMissing reports whether the client does not know the server's lists, and a try is worth it. A server that has
// refused the client's token waits for another token.
func (l *link) isMissing() bool {
	var refused *protocol.Unauthorized
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.finished && (l.unknown || len(l.missed) > 0) && !errors.As(l.why, &refused)
}

// try opens the server if it is not open, and asks for the parts of lists that the client has not got.
// It returns false if the server still does not work.
func (l *link) try() bool {
	l.mu.Lock()
	if l.finished {
		l.mu.Unlock()
		return true
	}
	in := backend.Inbound{Header: l.header}
	l.open(in)
	ready := l.ready
	l.mu.Unlock()
	select {
	case <-ready:
	case <-l.c.ctx.Done():
		return true
	}
	l.mu.Lock()
	open, missed := l.state == linkOpen, maps.Clone(l.missed)
	l.mu.Unlock()
	if !open {
		return false
	}
	for method, params := range missed {
		ctx, stop := context.WithTimeout(l.c.ctx, partFor)
		in.Method = method
		p := l.part(ctx, in, params)
		stop()
		if p.err != nil {
			return l.c.ctx.Err() != nil
		}
	}
	if len(missed) > 0 {
		l.c.tellChanged()
	}
	return true
}

// A part is a server's part of a page of a list.
type part struct {
	page []byte // nil: nothing
	err  error  // why that is not known
}

// part asks a server for its part of a page.
func (l *link) part(ctx context.Context, in backend.Inbound, params []byte) part {
	m, err := l.ask(ctx, in, params)
	if err != nil {
		return part{err: err}
	}
	if of := (&failed{m.Error}); m.Error != nil && !of.is(jsonrpc.CodeMethodNotFound) { // else it has none
		return part{err: of}
	}
	l.mu.Lock()
	delete(l.missed, in.Method)
	l.mu.Unlock()
	l.c.b.works(matter{l.name, in.Method})
	return part{page: m.Result}
}

// miss notes that the client has got a page of a list without the server's part, which is asked for again.
func (l *link) miss(method string, params []byte) {
	l.mu.Lock()
	if !l.unknown { // else the client is told when it is open
		if l.missed == nil {
			l.missed = make(map[string][]byte)
		}
		l.missed[method] = params
	}
	l.mu.Unlock()
	l.c.b.tryLater(l)
}

// fails notes why a matter fails, and returns the level for the log: debug if the same was logged before, as clients
// ask again and again. A member that is not there in time says less than an error that was logged before.
func (b *Backend) fails(what matter, why error) slog.Level {
	text := why.Error()
	if errors.Is(why, errNotOpen) || errors.Is(why, errLate) {
		text = ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	was, said := b.trouble[what]
	if said && (was == text || text == "") {
		return slog.LevelDebug
	}
	b.trouble[what] = text
	return slog.LevelWarn
}

// inVain returns an error of a member that is not there in time, with why it failed before, if that is known.
func (b *Backend) inVain(what matter, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was := b.trouble[what]; was != "" {
		return fmt.Errorf("%w (it has failed before: %s)", err, was)
	}
	return err
}

// outcome notes whether a matter has worked.
func (l *link) outcome(what matter, err error) {
	var untouched *notRun // it could not be opened, which is noted there
	switch {
	case err == nil:
		l.c.b.works(what)
	case errors.Is(err, context.Canceled), errors.Is(err, errClosed), errors.As(err, &untouched), wantsToken(err):
	default:
		l.c.b.setLate(what, true)
	}
}

// works notes that a matter works.
func (b *Backend) works(what matter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.late, what)
	delete(b.trouble, what)
}
