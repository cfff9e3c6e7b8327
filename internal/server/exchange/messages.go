package exchange

import (
	"fmt"

	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// This file checks the messages of one body: a single message or a batch.

// MostBatch is how many messages a batch may have: as many as a session may have requests in flight.
const MostBatch = 1000

// Parse returns the messages in a client's body. An error that answers a server's request becomes one that servers read, see [rpc.Complete].
// The errors are [jsonrpc.ErrParse] and [jsonrpc.ErrInvalid].
func Parse(data []byte) (msgs []jsonrpc.Message, batch bool, err error) {
	msgs, batch, err = jsonrpc.ParseBody(data)
	if err == nil && len(msgs) > MostBatch {
		return nil, true, fmt.Errorf("%w: a batch of %d messages: send at most %d at a time", jsonrpc.ErrInvalid, len(msgs), MostBatch)
	}
	for i := range msgs {
		rpc.Complete(&msgs[i])
	}
	return msgs, batch, err
}

// An Unclear says that servers may read a message in different ways: no message of its body is taken.
type Unclear struct {
	Why *jsonrpc.Error
	at  *jsonrpc.Message
}

// CheckClear returns the first message that servers may read in different ways, or nil. In revision 2026-07-28 it skips
// requests of methods that the revision has removed: no server gets them.
func CheckClear(msgs []jsonrpc.Message, ofModern bool) *Unclear {
	for i := range msgs {
		m := &msgs[i]
		if ofModern && m.Kind == jsonrpc.Request && modern.Removed(m.Method) {
			continue
		}
		if why := protocol.CheckClear(m); why != nil {
			return &Unclear{why, m}
		}
	}
	return nil
}

// Answer returns the answer to the messages: an error for each request, under its id.
func (e *Unclear) Answer(msgs []jsonrpc.Message, batch bool) []byte {
	var answers [][]byte
	for i := range msgs {
		m := &msgs[i]
		switch {
		case m.Kind != jsonrpc.Request:
		case m == e.at:
			answers = append(answers, jsonrpc.AppendError(nil, m.ID, e.Why))
		default:
			answers = append(answers, jsonrpc.AppendError(nil, m.ID, errf("not taken, because of another message of the batch: %s", e.Why.Message)))
		}
	}
	if answers == nil {
		return jsonrpc.AppendError(nil, nil, e.Why)
	}
	return answering.Append(nil, answers, batch)
}

func errf(format string, args ...any) *jsonrpc.Error {
	return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, format, args...)
}

// Requests returns how many of the messages are requests.
func Requests(msgs []jsonrpc.Message) (n int) {
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			n++
		}
	}
	return n
}

// Initializes reports whether one of the messages is an initialize request.
func Initializes(msgs []jsonrpc.Message) bool {
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && msgs[i].Method == "initialize" {
			return true
		}
	}
	return false
}

// A Stage is a stage in the life of the session that messages are for.
type Stage int

// The stages.
const (
	StageNone Stage = iota // no session: each request stands alone, or names its session itself
	StageNew               // the session waits for its initialize request
	StageOpen              // the session's initialize request has come
)

// StageOf returns the stage of a session.
func StageOf(s *session.Session) Stage {
	if s.Initializing() != nil || s.Revision() != "" { // in this order
		return StageOpen
	}
	return StageNew
}

// Check checks the messages of one body against the stage and the protocol revision of their session. For batches the
// revision from initialize counts, and not the header of one request, which could claim any.
func Check(msgs []jsonrpc.Message, batch bool, at Stage, revision string) error {
	initialize := Initializes(msgs)
	switch {
	case initialize && len(msgs) > 1:
		return errf("initialize must not be part of a batch")
	case initialize && at == StageOpen:
		return errf("the session is initialized already")
	case initialize && len(msgs[0].Raw) > session.MaxInitialize: // before a backend is opened
		return session.ErrInitialize
	case !initialize && at == StageNew:
		return errf("the first message must be an initialize request")
	case batch && !protocol.Batches(revision):
		return errf("protocol revision %s has no batches: send one message", revision)
	}
	return nil
}
