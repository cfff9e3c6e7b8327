package placement

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// A forwardedStream copies a stream of events from another node to a client, whole events only,
// and keeps the last event id. If that node is lost, the stream continues in the same response:
// from another node, or from this one if the session comes here.
type forwardedStream struct {
	p *Placement
	c *http.ResponseController
	// session is the secret id of the session, to request the rest of the stream as its client.
	session string
	last    string // id of the event copied last, or of the position before the first event
	base    string // the name of the requested stream, or "" if it is not known
	others  bool   // the same response has events of other streams
	rest    []byte // the beginning of an incomplete event
	broken  error  // why a write to the client failed
	// continued says that the stream has continued from a second node.
	continued bool
	ending    Ending
	ends      bool // the events taken now are the last
}

// begin answers with the stream of events in res.
func (p *Placement) begin(res *http.Response, at *session.Remote) error {
	p.setHeader(res)
	f := &forwardedStream{p: p, c: http.NewResponseController(p.w), last: res.Header.Get(HeaderAt)}
	f.base = ticket.NameOf(f.last)
	p.out = f
	p.to(streaming)
	if p.req.HTTP.Method == http.MethodGet && ticket.IsStandalone(f.base) {
		p.leaving.listens()
	}
	if at != nil {
		f.session = at.ID
	} else if ids := res.Header[protocol.HeaderSession]; len(ids) > 0 { // the session has just begun, on that node
		f.session = ids[0]
		p.key = whereabouts.KeyOf(f.session)
	}
	if p.req.Visit.Pair {
		p.key = stream.SessionKey(f.base)
	}
	_ = f.c.SetReadDeadline(time.Time{}) // the deadline is meant for requests
	if to := SinkOf(p.w); to != nil {
		to.Open(res.Header)
	}
	p.w.WriteHeader(http.StatusOK)
	p.streams(res.Header)
	return f.copy(res)
}

// An Ending is the reason that a stream to a client has ended.
type Ending uint8

// The endings.
const (
	EndsItself   Ending = iota // or it was cut off
	EndsAnswered               // all requests have their responses
	EndsTaken                  // a newer connection reads it
	EndsMoved                  // the session has left this node, which served the stream
)

// mostRest is how many bytes of an incomplete event may keep a grown buffer: with fewer in it, take shrinks the buffer once it exceeds 4*mostRest.
const mostRest = 64 << 10

// together is how many bytes of an answer net/http surely writes at once with the head and the end: its buffer has 4 KiB.
const together = 2 << 10

// chunks are buffers for one read.
var chunks = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// copy copies the stream until it ends or the client leaves (nil). The error is errCut
// if another node has to continue the stream.
func (f *forwardedStream) copy(from *http.Response) error {
	chunk := chunks.Get().(*[16 << 10]byte)
	defer chunks.Put(chunk)
	f.rest = f.rest[:0]
	late := false // events came after the client had left
	for {
		n, err := from.Body.Read(chunk[:])
		f.ends = n > 0 && errors.Is(err, io.EOF)
		late = late || n > 0 && f.p.req.HTTP.Context().Err() != nil
		if f.take(chunk[:n]); f.broken != nil {
			f.p.leftNotice().send()
			f.p.endsAs(observe.Cut)
			return nil // the client has left
		}
		switch {
		case err != nil && f.p.req.HTTP.Context().Err() != nil && (late || !errors.Is(err, io.EOF) || from.Trailer[HeaderTaken] != nil || from.Trailer[HeaderAway] != nil):
			f.p.leftNotice().send()
			f.p.endsAs(observe.Cut)
			return nil
		case errors.Is(err, io.EOF):
			if from.Trailer[HeaderTaken] != nil {
				f.ending = EndsTaken
				f.p.endsAs(observe.Superseded)
			} else if from.Trailer[HeaderAway] != nil {
				f.p.endsAs(observe.Disconnected)
			}
			f.p.finished()
			return nil
		case f.p.leaving.begun():
			return ErrLeaving
		case err != nil:
			return f.cut()
		}
	}
}

// cut returns errCut if the stream can be continued from its last event id, else
// ErrUnreached.
func (f *forwardedStream) cut() error {
	f.p.to(broken)
	f.p.end = time.Now().Add(reachFor)
	if f.others || f.last == "" && f.p.req.HTTP.Method != http.MethodGet || f.p.req.Modern {
		return ErrUnreached // the client resumes by its own event ids
	}
	return errCut
}

// continueFrom continues the stream with another node's response.
func (f *forwardedStream) continueFrom(res *http.Response) error {
	switch {
	case res.StatusCode == http.StatusOK && IsEvents(res.Header):
		f.p.end = time.Now().Add(reachFor)
		f.continued = true
		f.p.to(streaming)
		return f.copy(res)
	case res.StatusCode == http.StatusServiceUnavailable, res.StatusCode == http.StatusTooManyRequests:
		return errAgain
	}
	if res.StatusCode != http.StatusNoContent && f.p.leaving.awaitsID() && !f.p.req.Visit.Stays {
		return ErrUnreached // the rest is lost, and the client has no event id to resume by
	}
	return nil // the stream is complete, or its rest is lost: the client learns it when it comes back
}

// isTaken reports whether a newer connection has taken over the stream. f is nil if no stream has begun.
func (f *forwardedStream) isTaken() bool { return f != nil && f.ending == EndsTaken }

// take appends text to the part of the stream that is not written, and writes its whole events.
func (f *forwardedStream) take(text []byte) {
	from := max(0, len(f.rest)-1)
	f.rest = append(f.rest, text...)
	end := bytes.LastIndex(f.rest[from:], []byte("\n\n"))
	if end < 0 {
		return
	}
	end += from + 2
	f.broken = f.writeEvents(f.rest[:end])
	f.rest = append(f.rest[:0], f.rest[end:]...)
	if cap(f.rest) > 4*mostRest && len(f.rest) < mostRest {
		f.rest = bytes.Clone(f.rest)
	}
}

// writeEvents writes whole events.
func (f *forwardedStream) writeEvents(text []byte) error {
	named := false
	for rest := text; ; {
		i := bytes.Index(rest, []byte("id: "))
		if i < 0 {
			break
		}
		line, after, _ := bytes.Cut(rest[i+4:], []byte("\n"))
		if i == 0 || rest[i-1] == '\n' {
			f.last, named = string(line), true
			if name := ticket.NameOf(f.last); f.base == "" {
				f.base = name
			} else if name != f.base {
				f.others = true
			}
		}
		rest = after
	}
	if f.continued && f.p.req.Visit.Pair {
		text = withoutEndpoint(text)
	}
	err := f.write(text)
	if err == nil && named {
		f.p.leaving.hasID()
	}
	return err
}

// withoutEndpoint removes the endpoint event of revision 2024-11-05, which the client already has.
func withoutEndpoint(text []byte) []byte {
	first, rest, _ := bytes.Cut(text, []byte("\n\n"))
	if bytes.Contains(first, []byte("\nevent: endpoint\n")) {
		return rest
	}
	return text
}

// WriteLast writes the last event of an answer. wrote is how many bytes of the answer are written together, the event among them. The event's last
// byte is sent with the end of the answer, so that a client that leaves after the event leaves nothing unread.
func WriteLast(w http.ResponseWriter, text []byte, wrote int) error {
	if len(text) == 0 {
		return nil
	}
	if _, err := w.Write(text[:len(text)-1]); err != nil {
		return err
	}
	if wrote > together {
		if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
	}
	_, err := w.Write(text[len(text)-1:])
	return err
}

// write writes events to the client and flushes, within Options.WriteTimeout.
func (f *forwardedStream) write(text []byte) error {
	if to := SinkOf(f.p.w); to != nil {
		return tell(to, text)
	}
	_ = f.c.SetWriteDeadline(time.Now().Add(f.p.nodes.opts.WriteTimeout))
	if f.ends {
		return WriteLast(f.p.w, text, len(text))
	}
	if _, err := f.p.w.Write(text); err != nil {
		return err
	}
	if err := f.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// end writes Exchange.Lost at the end of a stream that no node continues.
func (f *forwardedStream) end() {
	if f.broken != nil {
		return
	}
	message, retry := f.p.req.Exchange.Lost()
	switch to := SinkOf(f.p.w); {
	case to != nil && message != nil:
		_ = to.Write(to.Append(nil, nil, message))
	case to != nil:
	case message != nil:
		_ = f.write(sse.AppendMessage(nil, nil, message))
	case retry >= 0:
		_ = f.write(sse.AppendRetry(nil, retry))
	}
}

// tell writes whole events of another node to a sink.
func tell(to Sink, text []byte) error {
	var said []byte
	for events := sse.NewReader(bytes.NewReader(text), len(text)+1); ; {
		ev, err := events.Next()
		if err != nil { // the end of the text
			return to.Write(said)
		}
		said = to.Append(said, []byte(ev.ID), ev.Data)
	}
}
