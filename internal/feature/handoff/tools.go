package handoff

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// This file has our own tools, by which clients ask for calls that were handed off.

// askAgain is how long a tool waits before it asks again for a call that has just moved to another
// node.
const askAgain = 100 * time.Millisecond

// cancelWait is how long our tool waits for the end of a call that it has cancelled.
const cancelWait = 5 * time.Second

// A question asks for a call that was handed off, at the node of the call.
type question struct {
	Handle  string `json:"handle"`
	Seconds any    `json:"seconds,omitempty"` // a JSON value, as the client gave it
	Cancel  bool   `json:"cancel,omitempty"`
	// Host is the host that asks; nil: the host of the call.
	Host *hosts.Host `json:"host,omitempty"`
}

// An answer is the answer to a question.
type answer struct {
	handofftext.State
	Most time.Duration `json:"most"` // see [handofftext.Most]
}

// Tool reports whether a name is that of one of our tools, and whether it ends with
// [handofftext.ToolWait], as the tool of a backend that hands calls off itself.
func (*Handles) Tool(name string) (own, nested bool) {
	return handofftext.IsTool(name), strings.HasSuffix(name, handofftext.ToolWait)
}

// Add adds our tools to a response to tools/list.
func (h *Handles) Add(s *session.Session, response []byte, host hosts.Host) []byte {
	return handofftext.AddTools(response, h.mostWait(s, "", host))
}

// Find returns the session of a handle.
func (h *Handles) Find(handle string, principal caller.Principal) (*session.Session, error) {
	s, _, err := h.sessions.FindSeal(seal, handle, nil, principal)
	return s, err
}

// Answer answers a [question] of another node. The error is a [*session.Redirect] or [session.ErrMoved]
// where the call is not here, or the error of the store.
func (h *Handles) Answer(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error) {
	var q question
	if err := json.Unmarshal(query, &q); err != nil {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%v", err)
	}
	a, err := h.askHere(ctx, principal, &q, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

// askHere answers a question if the call's session is here. of is the call of our tool, if its
// session is on this node, or nil. For a handle of no known call the answer is [handofftext.Unknown].
func (h *Handles) askHere(ctx context.Context, principal caller.Principal, q *question, of *toolCall) (answer, error) {
	s, number, err := h.sessions.FindSeal(seal, q.Handle, nil, principal)
	if errors.Is(err, session.ErrNotFound) || err == nil && !h.IsOn() {
		return answer{State: handofftext.State{Status: handofftext.Unknown}}, nil
	}
	if err != nil {
		return answer{}, err
	}
	if q.Host == nil { // a node of an earlier build asks
		host := s.HostOf(nil)
		q.Host = &host
	}
	tool := s.Watched.Tool(number)
	a := answer{State: handofftext.State{Tool: tool}, Most: h.mostWait(s, tool, *q.Host)}
	seconds, _ := json.Marshal(q)
	wait := handofftext.Seconds(seconds, a.Most)
	if q.Cancel {
		wait = cancelWait
		if c := s.CallAt(number); c != nil {
			c.Withdraw("the client cancelled the call")
		}
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	err = awaitHeir(ctx, s, number, of, &a.State)
	if errors.Is(err, session.ErrNotFound) { // clients cannot tell an old handle from a wrong one
		a.State, err = handofftext.State{Status: handofftext.Unknown}, nil
	}
	return a, err
}

// awaitHeir waits until an heir has ended, or ctx is done, and sets the state of the call.
// Meanwhile requests of the backend go to the client of the call of our tool.
func awaitHeir(ctx context.Context, s *session.Session, number uint64, of *toolCall, a *handofftext.State) error {
	ready := make(chan struct{}, 1)
	defer s.Watched.Watch(number, ready)()
	if of == nil || of.call.Session() != s {
		of = nil
	} else if c := s.CallAt(number); c != nil {
		defer asksOf(c).attend()()
	}
	for {
		st, err := s.Watched.Standing(context.WithoutCancel(ctx), number)
		if err != nil {
			return err
		}
		if !st.Running {
			a.End(st.Response)
			return nil
		}
		a.Status, a.Message = handofftext.Working, st.Message
		if c := s.CallAt(number); c != nil {
			if asking, _ := c.AwaitsInput(); asking {
				a.Status = handofftext.InputRequired
			}
			if of != nil {
				of.tell(asksOf(c))
			}
		}
		select {
		case <-ready:
		case <-ctx.Done():
			if c := s.CallAt(number); of != nil && c != nil && errors.Is(ctx.Err(), context.Canceled) {
				of.untell(asksOf(c))
			}
			return nil
		}
	}
}

// A toolCall is a call of one of our tools.
type toolCall struct {
	call         *session.Call
	capabilities []byte   // of a modern client
	asked        []string // the ids of the requests that it was told
	told         [][]byte // the requests that a legacy client was told
}

// asks are requests of the backend that an heir's client was not told yet: a [session.Heir].
type asks struct {
	call *session.Call

	mu       sync.Mutex
	waiting  [][]byte
	attended int // how many calls of our tools wait for the heir in its session
}

// Heir returns the asks of a new heir.
func (*Handles) Heir(c *session.Call) session.Heir { return &asks{call: c} }

// asksOf returns the asks of an heir, or nil.
func asksOf(c *session.Call) *asks {
	a, _ := c.Heir().(*asks)
	return a
}

// attend notes that a call of our tools waits for the heir, until done is called. The last done
// passes waiting requests on to a client that reads the standalone stream.
func (a *asks) attend() (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attended++
	return func() {
		s := a.call.Session()
		a.mu.Lock()
		a.attended--
		var left [][]byte
		if a.attended == 0 && s.Modern() == "" && s.Hears() {
			left, a.waiting = a.waiting, nil
		}
		a.mu.Unlock()
		for _, data := range left {
			if s.Asks(jsonrpc.Field(data, "id")) {
				s.Say(data)
			}
		}
	}
}

// Asked passes a request of the backend on to the client: through a call of our tools that waits
// for the heir, or else on the standalone stream, if the client reads that. Otherwise the request
// waits for a call of our tools: the client may have no other stream.
func (a *asks) Asked(data []byte) {
	s := a.call.Session()
	hears := s.Modern() == "" && s.Hears()
	a.mu.Lock()
	direct := hears && a.attended == 0
	if !direct {
		a.waiting = append(a.waiting, data)
	}
	a.mu.Unlock()
	switch {
	case !direct:
		s.Watched.Wake(a.call.Number())
	case s.Asks(jsonrpc.Field(data, "id")):
		s.Say(data)
	}
}

// tell passes the backend's requests of an heir on to the client. Each call of our tools asks a
// modern client again, until it has answered.
func (t *toolCall) tell(a *asks) {
	s := a.call.Session()
	modern := s.Modern() != ""
	var all [][]byte
	a.mu.Lock()
	if modern {
		all = append(all, a.waiting...)
	} else {
		all, a.waiting = a.waiting, nil
		t.told = append(t.told, all...)
	}
	a.mu.Unlock()
	for _, data := range all {
		switch {
		case !s.Asks(jsonrpc.Field(data, "id")):
		case modern && (!t.declares(data) || t.isAsked(data)):
		default:
			t.call.Say(data)
		}
	}
}

// untell lets the requests that a legacy client was told on this call wait again: the client has
// cancelled the call, and may not have read them. On a connection of its own it has read them.
func (t *toolCall) untell(a *asks) {
	if a.call.Session().SingleStream() || len(t.told) == 0 {
		return
	}
	a.mu.Lock()
	a.waiting = append(t.told, a.waiting...)
	a.mu.Unlock()
	a.call.Session().Watched.Wake(a.call.Number()) // other calls of our tools may wait
}

// isAsked reports whether a modern client was told a request on this call before, and notes that it is.
func (t *toolCall) isAsked(data []byte) bool {
	id := string(jsonrpc.Field(data, "id"))
	if slices.Contains(t.asked, id) {
		return true
	}
	t.asked = append(t.asked, id)
	return false
}

// declares reports whether the client has the capability that a request of a backend needs.
func (t *toolCall) declares(data []byte) bool {
	capability, _, _ := bytes.Cut([]byte(jsonrpc.String(jsonrpc.Field(data, "method"))), []byte("/"))
	return jsonrpc.Field(t.capabilities, string(capability)) != nil
}

// Run runs one of our tools, and returns its result.
func (h *Handles) Run(ctx context.Context, c *session.Call, m *jsonrpc.Message, host hosts.Host) []byte {
	s, arguments := c.Session(), jsonrpc.Field(m.Params, "arguments")
	q := question{Handle: jsonrpc.String(jsonrpc.Field(arguments, "handle")), Cancel: tools.Called(m) == handofftext.ToolCancel, Host: &host}
	if raw := jsonrpc.Field(arguments, "seconds"); raw != nil {
		q.Seconds = json.RawMessage(raw)
	}
	of := &toolCall{call: c, capabilities: jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities)}
	a := h.askFor(ctx, s, &q, of)
	if a.Handle = q.Handle; a.Status == handofftext.Unknown {
		a.Handle = ""
	}
	if a.Most <= 0 {
		a.Most = h.mostWait(s, "", host)
	}
	a.Seen = handofftext.Seen(arguments)
	form := handofftext.Form{Modern: s.Modern() != ""}
	if q.Cancel {
		return handofftext.Withdrawn(a.State, a.Most, form)
	}
	return handofftext.Waited(a.State, a.Most, form)
}

// askFor asks for a call that was handed off, on the node of its session.
func (h *Handles) askFor(ctx context.Context, s *session.Session, q *question, of *toolCall) (a answer) {
	raw, _ := json.Marshal(q)
	end := time.Now().Add(handofftext.Seconds(raw, h.mostWait(s, "", *q.Host)))
	for {
		a, err := h.askHere(ctx, s.Caller(), q, of)
		if _, ok := errors.AsType[*session.Redirect](err); ok && h.sessions.Elsewhere() != nil {
			var told []byte
			if told, err = h.sessions.Elsewhere().Ask(ctx, handofftext.MethodAsk, s.Caller(), raw); err == nil {
				err = json.Unmarshal(told, &a)
			}
		}
		switch {
		case err == nil:
			return a
		case errors.Is(err, session.ErrNotFound):
			return answer{State: handofftext.State{Status: handofftext.Unknown}}
		case ctx.Err() != nil || time.Now().After(end):
			h.logger.Warn("call that was handed off not asked for", "session", s.Name(), "error", err)
			return answer{State: handofftext.State{Status: handofftext.Unavailable}}
		}
		t := time.NewTimer(askAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}
