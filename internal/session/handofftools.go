package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for our own tools, by which clients ask for calls that were handed off. Calls
// of them are calls like others, that no backend gets.

// askAgain is how long it is waited before a call is asked for again that has just moved to
// another node.
const askAgain = 100 * time.Millisecond

// cancelWait is how long our tool waits for the end of a call that it has cancelled.
const cancelWait = 5 * time.Second

// A HandOffQuery asks the node of a call that was handed off for it.
type HandOffQuery struct {
	Handle  string `json:"handle"`
	Seconds any    `json:"seconds,omitempty"` // a JSON value, as the client gave it
	Cancel  bool   `json:"cancel,omitempty"`
	// Host is the host that asks; nil: as that of the call.
	Host *hosts.Host `json:"host,omitempty"`
}

// A handOffAnswer is the answer.
type handOffAnswer struct {
	handoff.State
	Most time.Duration `json:"most"` // see [handoff.Most]
}

// Elsewhere asks other nodes for what concerns a principal.
type Elsewhere interface {
	// HandedOff asks the node of a call that was handed off: query is a [HandOffQuery] for
	// [Manager.HandedOff] there.
	HandedOff(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error)
	// List asks all nodes for [Manager.ListHere]. It returns their answers, and the range
	// of sessions after one that they are of.
	List(ctx context.Context, principal caller.Principal, after stream.SessionKey, query []byte) ([]json.RawMessage, Range, error)
	// Strand tells all nodes that this one knows a stranded call, by a name: for [Manager.Hint] there. It does not wait.
	Strand(keys []byte, name uint64)
	// Unstrand tells them that a node, this one if it is "", does not know it any more: for [Manager.Unhint] there. It does not wait.
	Unstrand(node string, keys []byte, name uint64)
	// Alone reports whether there are none.
	Alone() bool
	// Fly tells them of calls in flight: for [Manager.HintFlights] there. It does not wait.
	Fly(all []Flight)
	// Borrow asks a node for a stranded call: query is for [Manager.Lend] there. It returns what that writes; nil: nothing.
	Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error)
}

// OnElsewhere sets what asks other nodes. It is called once, before there are sessions.
func (m *Manager) OnElsewhere(ask Elsewhere) { m.elsewhere = ask }

// HandOffSession returns the session of a handle, as [Manager.FindSeal] does.
func (m *Manager) HandOffSession(handle string, principal caller.Principal) (*Session, uint64, error) {
	return m.FindSeal(sealHandOff, handle, nil, principal)
}

// HandedOff answers a [HandOffQuery] of another node. The error is a [*Redirect] or [ErrMoved]
// where the call is not here, or that of a store that can't tell.
func (m *Manager) HandedOff(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error) {
	var q HandOffQuery
	if err := json.Unmarshal(query, &q); err != nil {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%v", err)
	}
	a, err := m.askHere(ctx, principal, &q, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

// askHere answers a query if the call's session is here. of is the call of our tool, if that is
// in a session of this node, or nil. A handle that is good for nothing is an answer too.
func (m *Manager) askHere(ctx context.Context, principal caller.Principal, q *HandOffQuery, of *toolCall) (handOffAnswer, error) {
	s, number, err := m.HandOffSession(q.Handle, principal)
	if errors.Is(err, ErrNotFound) || err == nil && !m.handsOff() {
		return handOffAnswer{State: handoff.State{Status: handoff.Unknown}}, nil
	}
	if err != nil {
		return handOffAnswer{}, err
	}
	if q.Host == nil { // a node of an earlier build asks
		s.mu.Lock()
		host := s.patience.host
		s.mu.Unlock()
		q.Host = &host
	}
	tool := s.watchedTable().tool(number)
	a := handOffAnswer{State: handoff.State{Tool: tool}, Most: s.mostWait(tool, *q.Host)}
	seconds, _ := json.Marshal(q)
	wait := handoff.Seconds(seconds, a.Most)
	if q.Cancel {
		wait = cancelWait
		if c := s.CallAt(number); c != nil {
			c.Withdraw("the client cancelled the call")
		}
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	err = s.awaitHeir(ctx, number, of, &a.State)
	if errors.Is(err, ErrNotFound) { // who has an old handle hears no more than who has none
		a.State, err = handoff.State{Status: handoff.Unknown}, nil
	}
	return a, err
}

// tool returns the tool of a call that was handed off.
func (t *watchedCalls) tool(number uint64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if is := t.all[number]; is != nil {
		return is.tool
	}
	return ""
}

// awaitHeir waits until an heir has ended, or ctx is done, and says how it is. Meanwhile what the
// backend asks goes to the client of the call of our tool.
func (s *Session) awaitHeir(ctx context.Context, number uint64, of *toolCall, a *handoff.State) error {
	ready := make(chan struct{}, 1)
	defer s.Watch(number, ready)()
	if of == nil || of.call.s != s {
		of = nil
	} else if h := s.CallAt(number); h != nil {
		defer h.attend()()
	}
	for {
		st, err := s.Standing(context.WithoutCancel(ctx), number)
		if err != nil {
			return err
		}
		if !st.Running {
			a.End(st.Response)
			return nil
		}
		a.Status, a.Message = handoff.Working, st.Message
		if c := s.CallAt(number); c != nil {
			if asking, _ := c.AwaitsInput(); asking {
				a.Status = handoff.InputRequired
			}
			if of != nil {
				of.tell(c)
			}
		}
		select {
		case <-ready:
		case <-ctx.Done():
			if c := s.CallAt(number); of != nil && c != nil && errors.Is(ctx.Err(), context.Canceled) {
				of.untell(c)
			}
			return nil
		}
	}
}

// A toolCall is a call of one of our tools.
type toolCall struct {
	call         *Call
	capabilities []byte   // of its client, if it is a modern one
	asked        []string // what that was told
	told         [][]byte // what a legacy client was told
}

// attend notes that one of our tools waits for an heir, until done is called.
func (c *Call) attend() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.record.handOff
	h.attended++
	return func() {
		c.mu.Lock()
		h.attended--
		var left [][]byte
		if h.attended == 0 && c.s.modern == "" && c.s.listens() {
			left, h.waiting = h.waiting, nil
		}
		c.mu.Unlock()
		c.s.emitStandalone(left)
	}
}

// listens reports whether the client hears what is said on the standalone stream.
func (s *Session) listens() bool { return s.single || s.streams.IsRead(standalone) }

// question has the client told of a request of the backend: by one of our tools that waits for
// the call, or else on the standalone stream, if the client reads that. If there is neither it
// waits for one of our tools: the client may have no other stream.
func (c *Call) question(data []byte) {
	listens := c.s.modern == "" && c.s.listens()
	c.mu.Lock()
	h := c.record.handOff
	direct := listens && h.attended == 0
	if !direct {
		h.waiting = append(h.waiting, data)
	}
	c.mu.Unlock()
	if direct {
		c.s.emitStandalone([][]byte{data})
		return
	}
	c.s.wakeWatchers(c.number)
}

// emitStandalone tells requests of the backend on the standalone stream.
func (s *Session) emitStandalone(all [][]byte) {
	for _, data := range all {
		if s.Asks(jsonrpc.Field(data, "id")) {
			s.standalone.emit(data, false)
		}
	}
}

// tell tells the client what the backend of an heir asks. A modern client is asked again each
// time, until it has answered.
func (t *toolCall) tell(c *Call) {
	modern := c.s.modern != ""
	var all [][]byte
	c.mu.Lock()
	if h := c.record.handOff; modern {
		all = append(all, h.waiting...)
	} else {
		all, h.waiting = h.waiting, nil
		t.told = append(t.told, all...)
	}
	c.mu.Unlock()
	for _, data := range all {
		switch {
		case !c.s.Asks(jsonrpc.Field(data, "id")):
		case modern && (!t.declares(data) || t.isAsked(data)):
		default:
			t.call.emit(data, false)
		}
	}
}

// untell has a legacy client be asked again what it was asked on this call, which it has
// cancelled: it may have read nothing of it. On a connection of its own it has.
func (t *toolCall) untell(c *Call) {
	if c.s.single || len(t.told) == 0 {
		return
	}
	c.mu.Lock()
	h := c.record.handOff
	h.waiting = append(t.told, h.waiting...)
	c.mu.Unlock()
	c.s.wakeWatchers(c.number) // others may wait
}

// isAsked reports whether a modern client was told a request on this call before.
func (t *toolCall) isAsked(data []byte) bool {
	id := string(jsonrpc.Field(data, "id"))
	for _, was := range t.asked {
		if was == id {
			return true
		}
	}
	t.asked = append(t.asked, id)
	return false
}

// declares reports whether the client has the capability that a request of a backend needs.
func (t *toolCall) declares(data []byte) bool {
	capability, _, _ := bytes.Cut([]byte(jsonrpc.String(jsonrpc.Field(data, "method"))), []byte("/"))
	return jsonrpc.Field(t.capabilities, string(capability)) != nil
}

// callsOurTool reports whether a request calls a tool of the name of one of ours.
func (m *Manager) callsOurTool(x *jsonrpc.Message) bool {
	return m.handsOff() && x.Method == protocol.MethodCallTool && handoff.IsTool(toolOf(x))
}

// serveTool has a request answered by Holdfast that calls such a tool. Where the server's tools
// are not known they are listed before: if one has that name the request is for the server, and
// it is false.
func (s *Session) serveTool(ctx context.Context, c *Call, m jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) bool {
	s.mu.Lock()
	rq := s.inFlight[string(jsonrpc.Key(m.ID))]
	if s.tools.clash {
		s.mu.Unlock()
		return false
	}
	if rq == nil || rq.call != c || !s.m.startWork() {
		s.mu.Unlock()
		return true // it was cancelled, or all calls end now
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	rq.stop, rq.ours = stop, true
	s.mu.Unlock()
	go func() {
		defer s.m.work.Done()
		defer stop()
		if !s.ownsTool(ctx, &m, header) {
			s.mu.Lock()
			rq.ours = false
			s.mu.Unlock()
			c.deliverOne(context.WithoutCancel(ctx), m, header, failed)
			return
		}
		data := jsonrpc.AppendResult(nil, []byte(rq.id), s.runTool(ctx, c, &m))
		s.mu.Lock()
		got := s.takeRequest(m.ID, c)
		s.mu.Unlock()
		if got != nil {
			got.call.respond(got, data)
			s.requestEnded(got)
		}
	}()
	return true
}

// ownsTool reports whether the tool of a call is ours, and not the server's.
func (s *Session) ownsTool(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	if ticket.Is(jsonrpc.String(jsonrpc.Field(m.Params, "arguments", "handle"))) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tools.complete && s.backend.link != nil && s.backend.link.conn != nil && s.revision != "" {
		if learning := s.learnTools(s.askingFor(ctx, m, header)); learning != nil {
			s.mu.Unlock()
			awaitTools(ctx, learning, hintsTimeout)
			s.mu.Lock()
		}
	}
	return !s.tools.clash
}

// runTool runs one of our tools, and returns its result.
func (s *Session) runTool(ctx context.Context, c *Call, m *jsonrpc.Message) []byte {
	arguments := jsonrpc.Field(m.Params, "arguments")
	s.mu.Lock()
	host := s.patience.hostOf(s, m)
	s.mu.Unlock()
	if info := jsonrpc.Field(m.Params, "_meta", protocol.MetaClientInfo); info != nil && s.modern != "" && s.m.opts.Host != nil {
		host = s.m.opts.Host(clientkind.Of(info).Name, "") // the carrier is the call's, and may be another kind's
	}
	q := HandOffQuery{Handle: jsonrpc.String(jsonrpc.Field(arguments, "handle")), Cancel: toolOf(m) == handoff.ToolCancel, Host: &host}
	if raw := jsonrpc.Field(arguments, "seconds"); raw != nil {
		q.Seconds = json.RawMessage(raw)
	}
	of := &toolCall{call: c, capabilities: jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities)}
	a := s.askFor(ctx, &q, of)
	if a.Handle = q.Handle; a.Status == handoff.Unknown {
		a.Handle = ""
	}
	if a.Most <= 0 {
		a.Most = s.mostWait("", host)
	}
	a.Seen = handoff.Seen(arguments)
	form := handoff.Form{Modern: s.modern != ""}
	if q.Cancel {
		return handoff.Withdrawn(a.State, a.Most, form)
	}
	return handoff.Waited(a.State, a.Most, form)
}

// askFor asks for a call that was handed off, wherever its session is.
func (s *Session) askFor(ctx context.Context, q *HandOffQuery, of *toolCall) (a handOffAnswer) {
	raw, _ := json.Marshal(q)
	end := time.Now().Add(handoff.Seconds(raw, s.mostWait("", *q.Host)))
	for {
		a, err := s.m.askHere(ctx, s.principal, q, of)
		var away *Redirect
		if errors.As(err, &away) && s.m.elsewhere != nil {
			var answer []byte
			if answer, err = s.m.elsewhere.HandedOff(ctx, s.principal, raw); err == nil {
				err = json.Unmarshal(answer, &a)
			}
		}
		switch {
		case err == nil:
			return a
		case errors.Is(err, ErrNotFound):
			return handOffAnswer{State: handoff.State{Status: handoff.Unknown}}
		case ctx.Err() != nil || time.Now().After(end):
			s.m.logger.Warn("call that was handed off not asked for", "session", s.Name(), "error", err)
			return handOffAnswer{State: handoff.State{Status: handoff.Unavailable}}
		}
		t := time.NewTimer(askAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// Reserve has a carrier stay for a request as [Manager.Carrier] does. It reports false if the
// carrier has ended.
func (s *Session) Reserve() bool {
	s.use.reserved.Add(1)
	if s.isClosed() {
		s.use.reserved.Add(-1)
		return false
	}
	return true
}
