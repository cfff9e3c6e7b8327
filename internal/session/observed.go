package session

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/spans"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// This file tells observers of sessions and calls. Without observers, calls have no watch, and nothing is told.

// events tell observers of one session and of its calls.
type events struct {
	to *observe.Observers
	of *identity
}

// areTold reports whether there are observers.
func (e *events) areTold() bool { return *e.to != nil }

// happened tells observers of an event.
func (e *events) happened(what observe.Event) { e.to.Happened(what) }

// began tells that the session is open here.
func (e *events) began() {
	if e.areTold() {
		e.happened(observe.SessionBegan{Session: e.of.observed()})
	}
}

// ended tells that the session is over here, unless it had not begun.
func (e *events) ended(from, to sessionState) {
	if e.areTold() && from == sessionOpen {
		e.happened(observe.SessionEnded{Session: e.of.observed(), Left: to == sessionLeaving || to == sessionMoved})
	}
}

// opened tells that the backend was opened, or could not be.
func (e *events) opened(began time.Time, err error) {
	if e.areTold() {
		e.happened(observe.BackendOpened{Session: e.of.observed(), Took: time.Since(began), Err: err})
	}
}

// closed tells that the backend is over.
func (e *events) closed() {
	if e.areTold() {
		e.happened(observe.BackendClosed{Session: e.of.observed()})
	}
}

// tools tells which tools the session is known to have.
func (e *events) tools(names []string) {
	if len(names) > 0 {
		e.happened(observe.ToolsListed{Session: e.of.observed(), Tools: names})
	}
}

// toolsPage tells which tools a page of a tools/list result has.
func (e *events) toolsPage(result []byte) {
	var page struct{ Tools []struct{ Name string } }
	if !e.areTold() || json.Unmarshal(result, &page) != nil {
		return
	}
	names := make([]string, len(page.Tools))
	for i := range page.Tools {
		names[i] = page.Tools[i].Name
	}
	e.tools(names)
}

// watch tells observers of the requests of a call, which were put on record. revision is the session's, and again says that
// the requests began on another node. Session.mu is held.
func (e *events) watch(c *Call, msgs []jsonrpc.Message, revision string, again bool) {
	known := c.watch
	c.watch = nil
	for m := range protocol.Requests(msgs) {
		w := &observe.Watch{Call: observe.Call{
			Session: e.of.Name(), Server: e.of.Server(), Principal: e.of.Principal(), ID: string(m.ID), Method: m.Method,
			Revision: revision, BytesIn: len(m.Raw), Carrier: e.of.modern != "", Again: again, Trace: spans.Of(m),
		}}
		if m.Method == protocol.MethodCallTool {
			w.Tool = tools.Called(m)
		}
		if known != nil {
			w.HTTP, w.Was = known.HTTP, known.SpanOf(w.ID)
		}
		e.to.Begin(w, m.Params, c.watch)
		c.watch = w
	}
	if c.number != 0 { // it was taken over
		c.watch.Stored(c.number)
	}
}

// restored takes in the spans that the requests of a call had on the node that is lost, before the call is put on record here.
func (e *events) restored(c *Call, n *callNote, msgs []jsonrpc.Message) {
	if e.areTold() {
		c.watch = spans.Restore(c.watch, n.Spans, msgs)
	}
}

// outcomeOf returns how a response ends a request of a method, and the code of its error.
func outcomeOf(method string, response []byte) (how observe.Outcome, code int) {
	if e := jsonrpc.Field(response, "error"); e != nil {
		code, _ = strconv.Atoi(string(jsonrpc.Field(e, "code")))
		if protocol.OutcomeUnknown(code, jsonrpc.String(jsonrpc.Field(e, "message"))) {
			return observe.Unknown, code
		}
		return observe.Error, code
	}
	if method == protocol.MethodCallTool && string(jsonrpc.Field(response, "result", "isError")) == "true" {
		return observe.ToolError, 0
	}
	return observe.Result, 0
}

// notBegun tells that a call without a stream has ended before it began.
func (e *events) notBegun(c *Call, err error) {
	if errors.Is(err, ErrMoved) {
		c.watch.Leave(0)
		return
	}
	c.watch.End(0, observe.Error, jsonrpc.CodeServer)
}

// observeLeft tells that calls have left this node: those with an end among the entries, which this node can store no more.
func observeLeft(turn []entry) {
	for i := range turn {
		if x := &turn[i]; x.Last && !x.Note {
			x.By.watch.Leave(x.Number)
		}
	}
}
