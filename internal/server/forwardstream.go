package server

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/stream"
)

// A forwardedStream copies a stream of events from another node to a client, whole events only,
// and knows the last event id. When that node is lost the stream continues from another
// node, in the same response. It continues from this node if the session comes here: then
// the forwardedStream is the [http.ResponseWriter] of that.
type forwardedStream struct {
	p *placement
	c *http.ResponseController
	// session is the secret id of the session, to come back as its client.
	session string
	last    string // id of the event that was copied last, or of the position before the first
	base    string // the name of the stream that was asked for, "" if that is not known
	others  bool   // events of other streams came on the same connection
	rest    []byte // the beginning of an event whose end has not come
	broken  error  // why the client can't be written to
	// continued reports that this is not the first node that the stream comes from.
	continued bool
	ending    ending

	// Of what this node answers that goes on with the stream.
	head   http.Header
	status int
}

// begin begins to answer with a stream of events.
func (p *placement) begin(res *http.Response, at *session.Remote) error {
	p.setHeader(res)
	f := &forwardedStream{p: p, c: http.NewResponseController(p.w), last: res.Header.Get(headerAt)}
	f.base = nameOf(f.last)
	p.out = f
	p.to(streaming)
	if p.x.r.Method == http.MethodGet && session.IsStandaloneName(f.base) {
		p.leaving.listens()
	}
	if at != nil {
		f.session = at.ID
	} else if ids := res.Header[protocol.HeaderSession]; len(ids) > 0 { // it began elsewhere, just now
		f.session = ids[0]
		p.key = session.KeyOf(f.session)
	}
	if p.x.pair() {
		p.key = stream.SessionKey(f.base)
	}
	_ = f.c.SetReadDeadline(time.Time{}) // which is meant for requests
	if s, ok := p.w.(*forwardedExchange); ok {
		s.opens(res.Header)
	}
	p.w.WriteHeader(http.StatusOK)
	return f.copy(res)
}

// nameOf returns the part of an event id that names the stream.
func nameOf(id string) string {
	if i := strings.IndexByte(id, '.'); i >= 0 {
		return id[:i]
	}
	return ""
}

// chunks are what is read at a time.
var chunks = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// copy copies the stream to its end (nil). The error is errCut if the stream has to be
// continued.
func (f *forwardedStream) copy(from *http.Response) error {
	chunk := chunks.Get().(*[16 << 10]byte)
	defer chunks.Put(chunk)
	f.rest = f.rest[:0]
	for {
		n, err := from.Body.Read(chunk[:])
		if _, werr := f.Write(chunk[:n]); werr != nil {
			f.p.leftNotice().send()
			return nil // the client has left
		}
		switch {
		case err != nil && f.p.x.r.Context().Err() != nil:
			f.p.leftNotice().send()
			return nil
		case errors.Is(err, io.EOF):
			if from.Trailer[headerTaken] != nil {
				f.ending = endsTaken
			}
			f.p.finished()
			return nil
		case f.p.leaving.begun():
			return errLeaving
		case err != nil:
			return f.cut()
		}
	}
}

// cut returns errCut if the stream can be continued from its last event id, else
// errUnreached.
func (f *forwardedStream) cut() error {
	f.p.to(broken)
	f.p.end = time.Now().Add(reachFor)
	if f.others || f.last == "" && f.p.x.r.Method != http.MethodGet || f.p.x.purpose == forModern {
		return errUnreached // its client knows best what it has
	}
	return errCut
}

// continueFrom continues the stream with the response of another node.
func (f *forwardedStream) continueFrom(res *http.Response) error {
	switch {
	case res.StatusCode == http.StatusOK && isEvents(res.Header):
		f.p.end = time.Now().Add(reachFor)
		f.continued = true
		f.p.to(streaming)
		return f.copy(res)
	case res.StatusCode == http.StatusServiceUnavailable, res.StatusCode == http.StatusTooManyRequests:
		return errAgain
	}
	return nil // all was said, or nothing is kept: a client that comes back is told
}

// isTaken reports whether a newer connection reads the stream. f is nil if none has begun.
func (f *forwardedStream) isTaken() bool { return f != nil && f.ending == endsTaken }

// result returns how the stream goes on after this node has continued it.
func (f *forwardedStream) result() error {
	if f.ending == endsMoved {
		f.ending, f.head, f.status = endsItself, nil, 0
		return errAgain
	}
	switch f.status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusMisdirectedRequest:
		return errAgain
	}
	return nil
}

// Header implements [http.ResponseWriter].
func (f *forwardedStream) Header() http.Header {
	if f.head == nil {
		f.head = make(http.Header)
	}
	return f.head
}

// WriteHeader implements [http.ResponseWriter].
func (f *forwardedStream) WriteHeader(status int) {
	if f.status == 0 {
		f.status = status
	}
}

// Unwrap gives [http.ResponseController] the connection.
func (f *forwardedStream) Unwrap() http.ResponseWriter { return f.p.w }

// Write implements [http.ResponseWriter].
func (f *forwardedStream) Write(text []byte) (int, error) {
	if f.broken != nil || f.head != nil && f.status != http.StatusOK {
		return len(text), f.broken // the words of a refusal
	}
	from := max(0, len(f.rest)-1)
	f.rest = append(f.rest, text...)
	end := bytes.LastIndex(f.rest[from:], []byte("\n\n"))
	if end < 0 {
		return len(text), nil
	}
	end += from + 2
	f.broken = f.writeEvents(f.rest[:end])
	f.rest = append(f.rest[:0], f.rest[end:]...)
	if cap(f.rest) > 4*mostText && len(f.rest) < mostText {
		f.rest = bytes.Clone(f.rest)
	}
	return len(text), f.broken
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
			if name := nameOf(f.last); f.base == "" {
				f.base = name
			} else if name != f.base {
				f.others = true
			}
		}
		rest = after
	}
	if f.continued && f.p.x.pair() {
		text = withoutEndpoint(text)
	}
	err := f.write(text)
	if err == nil && named {
		f.p.leaving.hasID()
	}
	return err
}

// withoutEndpoint removes the endpoint event of revision 2024-11-05, which the client got
// before.
func withoutEndpoint(text []byte) []byte {
	first, rest, _ := bytes.Cut(text, []byte("\n\n"))
	if bytes.Contains(first, []byte("\nevent: endpoint\n")) {
		return rest
	}
	return text
}

// write writes and flushes, in bounded time.
func (f *forwardedStream) write(text []byte) error {
	_ = f.c.SetWriteDeadline(time.Now().Add(f.p.h.opts.WriteTimeout))
	if _, err := f.p.w.Write(text); err != nil {
		return err
	}
	if err := f.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// endModern tells a modern client, which cannot come back for the rest, that nobody knows how its
// call ended. A listen is left to be made again.
func (f *forwardedStream) endModern() {
	if x := f.p.x; f.broken == nil && !x.isListen() {
		says := errf(protocol.CodeOutcomeUnknown, "%v: the node that ran this call was lost", errUnknown)
		_ = f.write(sse.AppendMessage(nil, nil, modernError(x.modern.id, says)))
	}
}

// giveUp tells the client when to come back.
func (f *forwardedStream) giveUp() {
	if f.broken == nil {
		retry := f.p.h.opts.Retry
		_ = f.write(sse.AppendRetry(nil, retry+rand.N(retry+1)))
	}
}
