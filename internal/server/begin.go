package server

import (
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

const codeInvalid = jsonrpc.CodeInvalidRequest

func errf(code int, format string, args ...any) *jsonrpc.Error {
	return jsonrpc.Errorf(code, format, args...)
}

// This file is the one place where a call begins, for every transport: the rules that
// its messages must keep, and which call they mean.

// A stage is how far the session has come that messages are for.
type stage int

const (
	stageNone stage = iota // there is none: each request stands alone, or names its session itself
	stageNew               // it waits for its initialize request
	stageOpen              // its initialize request has come
)

// stageOf returns the stage of a session.
func stageOf(s *session.Session) stage {
	if s.Initializing() != nil || s.Revision() != "" { // in this order
		return stageOpen
	}
	return stageNew
}

// checkMessages checks what came at a time against the stage and the protocol revision
// of its session. Whether there are batches is decided by the revision that initialize
// has settled on, and not by the header of one request, which could claim any.
func checkMessages(msgs []jsonrpc.Message, batch bool, at stage, revision string) error {
	initialize := initializes(msgs)
	switch {
	case initialize && len(msgs) > 1:
		return errf(codeInvalid, "initialize must not be part of a batch")
	case initialize && at == stageOpen:
		return errf(codeInvalid, "the session is initialized already")
	case initialize && len(msgs[0].Raw) > session.MaxInitialize: // before a backend is opened for it
		return session.ErrInitialize
	case !initialize && at == stageNew:
		return errf(codeInvalid, "the first message must be an initialize request")
	case batch && !protocol.Batches(revision):
		return errf(codeInvalid, "protocol revision %s has no batches: send one message", revision)
	}
	return nil
}

// initializes reports whether one of the messages is an initialize request.
func initializes(msgs []jsonrpc.Message) bool {
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && msgs[i].Method == "initialize" {
			return true
		}
	}
	return false
}
