package session

import (
	"cmp"
	"context"
	"errors"
	"time"

	"holdfast/internal/journal"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

const (
	// mostQueued bounds the bytes of a session's messages that wait to be appended, if an eighth of
	// Options.Flight is not less. A backend that writes faster than the store takes its messages waits.
	mostQueued = 32 << 20

	// appendTimeout bounds the wait for the outcome of an append.
	appendTimeout = 30 * time.Second
)

// openJournal sets how the logs of sessions append, and how outcomes that no client has heard are reported.
func (m *Manager) openJournal() {
	m.journal = journal.Options{
		Append:     m.store.Append,
		Context:    m.work.Context(),
		MostQueued: int(min(mostQueued, m.opts.Flight.Most()/8)),
		Go:         m.work.Go,
	}
	if m.shared != nil { // else an append does not wait
		m.journal.Timeout, m.journal.Count, m.journal.Loses = appendTimeout, m.opts.Flight.Add, losesSession
		m.untold.InBackground = m.work.Go
	}
	if m.opts.OnEnded != nil && !m.opts.Stateless {
		m.untold.Tell = m.callOnEnded
	}
}

// entry is a message or a note of a call on its way into the log.
type entry = journal.Entry[*Call]

// Track implements [journal.Writer].
func (c *Call) Track() *journal.Track { return &c.track }

// A logOwner makes a session the [journal.Owner] of its log: it ends the streams of calls when their last entries are stored, or can't be.
type logOwner struct{ s *Session }

// Lease implements [journal.Owner]. It is not ok for a session that has moved: its new owner says how its calls end.
func (o logOwner) Lease() (l stream.Lease, ok bool) { return o.s.lease, !o.s.Moved() }

// Stored implements [journal.Owner]: it tells observers, and the clients that watch the call, of the record.
func (o logOwner) Stored(c *Call, r *stream.Record) {
	if w := c.watch; w != nil && !r.Note && !c.hasJournal() {
		w.Append(r.Number, observe.Appended{Seq: r.Seq, Data: r.Data, Last: r.Last})
		if r.Last {
			w.End(r.Number, observe.Cancelled, 0)
		}
	}
	if r.Last {
		o.streamEnded(c, r.Number)
	}
	o.s.Watched.Wake(r.Number)
}

// streamEnded ends a stream that has its last entry, and reports outcomes in it that no client has heard.
func (o logOwner) streamEnded(c *Call, number uint64) {
	if c.hasJournal() {
		return // no client reads a journal
	}
	c.untold().End(number)
	o.s.streams.Remove(number, o.s.modern == "" && c.deferred() == nil)
	c.untold().Dispatch(number)
}

// Refused ends the stream of an entry that the store refused, with errors that are small enough to be stored.
// The standalone stream has no end: there an error replaces a response, a request is refused to the backend, and any other message is lost.
func (o logOwner) Refused(x *entry, err error) (instead []stream.Entry) {
	c := x.By
	if errors.Is(err, stream.ErrNotFound) {
		c.seal() // the session is gone, and its readers know
		c.watch.End(x.Number, observe.Unknown, protocol.CodeOutcomeUnknown)
		if x.Number != standalone {
			o.streamEnded(c, x.Number)
		}
		return nil
	}
	if x.Note && c.recovery != nil {
		c.recovery.failed = err
	}
	o.s.m.logger.Error("message not stored", "session", o.s.Name(), "stream", x.Number, "error", err)
	if c.hasJournal() {
		return nil // if the entry is the note the call does not begin
	}
	if x.Number == standalone {
		o.refuseAsked(x)
		if ids := responseID(nil, x); ids != nil {
			return endings(ids, err)
		}
		return nil
	}
	ids := o.unanswered(c)
	c.mu.Lock()
	for f := range c.features {
		f.refused(c, ids, c.track.Seq())
	}
	c.mu.Unlock()
	if x.Note { // the requests did not run
		c.watch.Resettle(x.Number, ids, observe.Error, jsonrpc.CodeServer)
	} else {
		c.watch.Resettle(x.Number, ids, observe.Unknown, protocol.CodeOutcomeUnknown)
	}
	c.seal()
	instead = endings(ids, err)
	instead[len(instead)-1].Last = true
	return instead
}

// refuseAsked refuses the backend's request that an entry has, if it has one: the client will not get it.
func (o logOwner) refuseAsked(x *entry) {
	id := jsonrpc.Field(x.Data, "id")
	if id == nil || jsonrpc.Field(x.Data, "method") == nil {
		return
	}
	number, ok := o.s.parseAskedID(id)
	if !ok {
		return
	}
	r, ok := o.s.asked.take(number)
	if !ok {
		return
	}
	r.call.client.answered()
	if r.round == nil {
		r.link.refuse(jsonrpc.Message{ID: r.id, Method: r.method}, "it could not be stored")
	}
}

// Unkept has the readers of the stream told from memory how it ended, as the store has refused that, too.
func (o logOwner) Unkept(x *entry, instead []stream.Entry, err error) {
	if x.Number != standalone {
		x.By.track.EndUnstored(o.s.lease.Epoch, instead)
		x.By.watch.End(x.Number, observe.Unknown, protocol.CodeOutcomeUnknown)
		o.s.streams.Wake(x.Number)
		x.By.untold().End(x.Number)
		x.By.untold().Dispatch(x.Number)
		o.s.Watched.Wake(x.Number)
	}
	o.s.m.logger.Error("end of a call not stored", "session", o.s.Name(), "stream", x.Number, "error", err)
}

// endings returns the last entries of a stream whose responses, to the requests with the ids, could not be kept.
func endings(ids [][]byte, err error) []stream.Entry {
	end := []stream.Entry{{}} // a cancelled call ends without a message
	for i, id := range ids {
		end = append(end[:i], stream.Entry{Data: jsonrpc.AppendError(nil, id, outcomeUnknown("what the server said could not be kept: %s", cmp.Or(StoreErrorText(err), "the store refused it")))})
	}
	return end
}

// StoreErrorText returns the text that clients get for an error of the store, without the engine's address,
// which err may contain; "" for any other error.
func StoreErrorText(err error) string {
	switch {
	case errors.Is(err, stream.ErrFull):
		return "the store is full (--memory, or the bound of the engine)"
	case errors.Is(err, stream.ErrTooLarge):
		return stream.ErrTooLarge.Error()
	case errors.Is(err, stream.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "the store does not answer"
	}
	return ""
}

// unanswered ends a call and returns the ids of its requests that have no response in the store, and will get none.
func (o logOwner) unanswered(c *Call) [][]byte {
	c.mu.Lock()
	var ids [][]byte
	for _, rq := range c.pending {
		ids = append(ids, []byte(rq.id))
	}
	c.pending = nil
	c.end()
	c.mu.Unlock()
	o.s.asked.refuseOf(c)
	o.s.log.EachUnstored(c, func(x *entry) { ids = responseID(ids, x) })
	return ids
}

// responseID appends the id of x, if x is a response.
func responseID(ids [][]byte, x *entry) [][]byte {
	if x.Note {
		return ids
	}
	if id := jsonrpc.Field(x.Data, "id"); id != nil && jsonrpc.Field(x.Data, "method") == nil {
		return append(ids, id)
	}
	return ids
}
