package server

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// keyOf returns the idempotency key of a POST, "" if it has none: the header's,
// else that of its one message.
func keyOf(r *http.Request, msgs []jsonrpc.Message) (string, error) {
	switch header := r.Header[protocol.HeaderIdempotencyKey]; {
	case len(header) > 1:
		return "", fmt.Errorf("%s stands there twice", protocol.HeaderIdempotencyKey)
	case len(header) == 1:
		return protocol.IdempotencyKey(header[0])
	case len(msgs) > 1:
		return "", nil
	}
	return messageKey(&msgs[0])
}

// messageKey returns the idempotency key that a message itself carries, or "".
func messageKey(m *jsonrpc.Message) (string, error) {
	if !bytes.Contains(m.Params, []byte("idempotencyKey")) { // as nearly always
		return "", nil
	}
	raw := jsonrpc.Field(m.Params, "_meta", protocol.MetaIdempotencyKey)
	if raw == nil {
		return "", nil
	}
	key := jsonrpc.String(raw)
	return key, protocol.CheckKey(key)
}

// keyed answers requests that came under an idempotency key: with the stream of
// the call that they begin, or that they began the first time.
func (h *Handler) keyed(w http.ResponseWriter, r *http.Request, s *session.Session, key string, msgs []jsonrpc.Message) error {
	call, known, err := s.BeginKeyed(key, joined(msgs), msgs)
	return h.begun(w, r, call, known, msgs, err)
}

// begun answers with the call that was begun just now, or before.
func (h *Handler) begun(w http.ResponseWriter, r *http.Request, call *session.Call, known *session.Attached, msgs []jsonrpc.Message, err error) error {
	switch {
	case err != nil:
		return err
	case call != nil:
		return h.stream(w, r, call, msgs, len(msgs) > 1, true)
	}
	return h.attach(w, r, known.Session, known.Number)
}

// once answers requests that another node has sent on, and sends again if it can't
// know whether they arrived: like those under a key, but a call that may be made
// again is no more than looked for among those in flight. If done is false it is to
// be begun.
func (h *Handler) once(w http.ResponseWriter, r *http.Request, v *visit, s *session.Session, msgs []jsonrpc.Message, batch, light bool) (done bool, err error) {
	x := &record{s: s, msgs: msgs, batch: batch}
	if !light {
		call, known, err := x.s.BeginOnce(v.Once, joined(x.msgs), x.msgs)
		switch {
		case err == nil && call != nil:
			x.call, x.number = call, call.Number()
			return true, h.stored(w, r, x)
		case err == nil:
			x.number = known.Number
			return true, h.stored(w, r, x)
		case !v.Again || !errors.Is(err, session.ErrDuplicate):
			return true, err
		}
		// It is made again already, by who has taken the session over.
	}
	for i := range x.msgs {
		if x.msgs[i].Kind != jsonrpc.Request {
			continue
		}
		c := x.s.Pending(x.msgs[i].ID)
		if c == nil {
			break
		}
		c.Promote()
		if x.number = c.Number(); x.number != 0 {
			return true, h.stored(w, r, x)
		}
	}
	return false, nil
}

// stored answers a POST with a stored call, in the form that answers have here.
func (h *Handler) stored(w http.ResponseWriter, r *http.Request, x *record) error {
	switch {
	case h.opts.Response == ResponseJSON:
		return h.plain(w, r, x)
	case x.call != nil:
		return h.stream(w, r, x.call, x.msgs, x.batch, true)
	}
	return h.attach(w, r, x.s, x.number)
}

// joined returns what makes two bodies the same: their messages.
func joined(msgs []jsonrpc.Message) []byte {
	if len(msgs) == 1 {
		return msgs[0].Raw
	}
	var all []byte
	for i := range msgs {
		all = append(append(all, msgs[i].Raw...), '\n') // no message has a line break in it
	}
	return all
}

// attach answers a POST with the stream of a call that is there already: after the
// event that the client has last seen, or from the oldest that is kept.
func (h *Handler) attach(w http.ResponseWriter, r *http.Request, s *session.Session, number uint64) error {
	cursor, err := cursorAfter(r.Context(), s, number, lastEventID(r))
	if err != nil {
		return err
	}
	return h.resume(w, r, h.newGuest(w, r, s), cursor)
}
