package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Continue continues a call of another Conn's State, as if it had been in [Options].State.
// The response comes through [Conn.Receive], under the call's own id. If the host uses that
// id, Continue returns [ErrDuplicate]. The call stays in its session.
func (c *Conn) Continue(old CallState) error {
	c.begin()
	k := c.restoredCall(old)
	if err := c.register(k); err != nil {
		return err
	}
	c.changed()
	if !c.start(k) {
		c.unregister(k)
		return ErrClosed
	}
	return nil
}

// Resume continues a call of another Conn's State, and returns its response. It is for hosts
// that may use the call's id themselves. The call stays in its session. Messages of the call
// that come before the response are returned by [Conn.Receive], which must be called meanwhile.
//
// When ctx ends, the call continues at the server, and can be resumed again. If the cause
// is [ErrCancelled], Resume tells the server to cancel the call. Over a WebSocket and
// HTTP+SSE, Resume returns [ErrDuplicate] if a request with the call's id is in flight, and
// while the call is in flight a request with its id is refused.
func (c *Conn) Resume(ctx context.Context, old CallState) (jsonrpc.Message, error) {
	c.begin()
	k := c.restoredCall(old)
	k.record, k.origin.resumed = string(c.newID()), true
	return c.await(ctx, k)
}

// A Status is the status of a call at the server (SEP-975, GetRequestStatusResult).
type Status struct {
	Status            string `json:"status"`            // processing, completed or failed
	HasPendingMessage bool   `json:"hasPendingMessage"` // a message of the call waits for its client
	HasInputRequest   bool   `json:"hasInputRequest"`   // the server waits for a response of the host
	// Created and Updated are when a task was made, and when it has changed last, by the server's clock. They are zero for
	// calls that are no tasks, and where the server does not say.
	Created time.Time `json:"-"`
	Updated time.Time `json:"-"`
}

// Status asks the server for the status of a call of a [State]. It does not disturb the call,
// whether this Conn continues it, another one or none. The call needs a task, or a resume token of
// a revision before 2026-07-28: without either, Status returns an error.
func (c *Conn) Status(ctx context.Context, call CallState) (Status, error) {
	switch {
	case call.Task != "":
		return c.taskStatus(ctx, call)
	case call.Token == "":
		return Status{}, errors.New("the server gave no resume token for this request: it can only be resumed")
	case call.Revision != "" && !c.transport().shared():
		return Status{}, errors.New("requests of this revision have no status: it can only be resumed")
	}
	id := call.ID
	if call.Wire != nil {
		id = call.Wire
	}
	params := append([]byte(`{"requestId":`), id...)
	params = append(params, `,"resumeToken":`...)
	params = append(append(params, jsonrpc.Quote(call.Token)...), '}')
	ctx, stop := context.WithTimeout(ctx, 2*c.opts.ConnectTimeout)
	defer stop()
	reply, err := c.request(ctx, protocol.MethodStatus, params)
	if err != nil {
		return Status{}, err
	}
	if reply.Error != nil {
		return Status{}, errorOf(reply.Error)
	}
	var status Status
	if err := json.Unmarshal(reply.Result, &status); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	return status, nil
}

// policy notes the resume policy of a call (SEP-975). Its token is for one sending of the request: a call that was sent under several
// ids, such as those of its rounds, is resumed under that of the token. It reports whether to hide the policy from the host.
func (k *call) policy(m jsonrpc.Message) bool {
	token, id := jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken")), jsonrpc.Field(m.Params, "requestId")
	k.mu.Lock()
	if token != "" && len(token) <= mostWay {
		switch {
		case sameID(id, k.wire):
			k.ways.tokenAs(token, k.wire)
		case sameID(id, k.id):
			k.ways.tokenAs(token, k.id)
		}
	}
	k.mu.Unlock()
	k.c.changed()
	return !k.c.hostWantsPolicies()
}
