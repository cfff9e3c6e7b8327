package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows tells observers of sessions and calls. Where there are none, a call has no watch,
// and nothing is done.

// events tell observers what becomes of one session and of its calls.
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

// watch has observers told of the requests of a call, which were put on record. revision is the session's, and again says that
// they began on another node. Session.mu is held.
func (e *events) watch(c *Call, msgs []jsonrpc.Message, revision string, again bool) {
	known := c.watch
	c.watch = nil
	for i := range msgs {
		m := &msgs[i]
		if m.Kind != jsonrpc.Request {
			continue
		}
		w := &observe.Watch{Call: observe.Call{
			Session: e.of.Name(), Server: e.of.Server(), Principal: e.of.Principal(), ID: string(m.ID), Method: m.Method,
			Revision: revision, BytesIn: len(m.Raw), Carrier: e.of.modern != "", Again: again,
		}}
		if m.Method == protocol.MethodCallTool {
			w.Tool = tools.Called(m)
		}
		if parent := jsonrpc.Field(m.Params, "_meta", protocol.MetaTraceParent); parent != nil {
			w.Trace = observe.NewTrace(jsonrpc.String(parent), jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaTraceState)))
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

// cameIn notes what the headers of the HTTP request say of a trace that the call's requests came
// in, before the call begins. There is one at the most.
func (c *Call) cameIn(from []Origin) {
	if len(from) == 0 || !c.s.events.areTold() {
		return
	}
	if parent := from[0].Header.Get("Traceparent"); parent != "" {
		trace := observe.NewTrace(parent, strings.Join(from[0].Header["Tracestate"], ","))
		c.watch = &observe.Watch{Call: observe.Call{HTTP: &trace}}
	}
}

// A spanNote is what a call's note says of the span of a request.
type spanNote struct {
	Is    string `json:"is"`
	State string `json:"state"`
	Under string `json:"under"`
	Began int64  `json:"began"` // in nanoseconds since 1970
}

// appendSpans appends the spans of the call's requests to its note, in their order, if there are
// any.
func (c *Call) appendSpans(dst []byte) []byte {
	w, some := c.watch, false
	if c.isHeir() && c.record.inherits.of != nil { // nobody has told its own yet
		w = c.record.inherits.of.watch
	}
	if w == nil {
		return dst
	}
	for i := range c.recovery.msgs {
		m := &c.recovery.msgs[i]
		if m.Kind != jsonrpc.Request {
			continue
		}
		span := w.SpanOf(string(m.ID))
		switch {
		case span == nil && !some:
			return dst // there are none
		case span == nil:
			dst = append(dst, ",null"...)
			continue
		case !some:
			dst = append(dst, `,"spans":[`...)
		default:
			dst = append(dst, ',')
		}
		some = true
		dst = append(append(dst, `{"is":`...), jsonrpc.Quote(span.Parent)...)
		dst = append(append(dst, `,"state":`...), jsonrpc.Quote(span.State)...)
		dst = append(append(dst, `,"under":`...), jsonrpc.Quote(span.Under)...)
		dst = strconv.AppendInt(append(dst, `,"began":`...), span.Began.UnixNano(), 10)
		dst = append(dst, '}')
	}
	if some {
		dst = append(dst, ']')
	}
	return dst
}

// restoreSpans notes what spans the requests of a call had on the node that is lost, before the call
// is put on record here.
func (c *Call) restoreSpans(n *callNote, msgs []jsonrpc.Message) {
	if !c.s.events.areTold() || len(n.Spans) != len(msgs) {
		return
	}
	for i := range n.Spans {
		if span := n.Spans[i]; span != nil {
			c.watch = c.watch.Before(string(msgs[i].ID), &observe.Span{
				Trace: observe.Trace{Parent: span.Is, State: span.State}, Under: span.Under, Began: time.Unix(0, span.Began),
			})
		}
	}
}

// traced returns a request of the call as the backend is to have it: it says what span the work is
// part of.
func (c *Call) traced(m jsonrpc.Message) jsonrpc.Message {
	span := c.watch.SpanOf(string(m.ID))
	if span == nil {
		return m
	}
	params := m.Params
	if params == nil {
		params = []byte("{}")
	}
	if span.State == "" && !bytes.Contains(params, []byte(`_meta`)) && bytes.IndexByte(params, '\\') < 0 && params[0] == '{' {
		return withMeta(m, params, span.Parent)
	}
	params, ok := jsonrpc.Set(params, jsonrpc.Quote(span.Parent), "_meta", protocol.MetaTraceParent)
	if ok && (span.State != "" || jsonrpc.Field(params, "_meta", protocol.MetaTraceState) != nil) {
		params, ok = jsonrpc.Set(params, jsonrpc.Quote(span.State), "_meta", protocol.MetaTraceState)
	}
	if ok {
		m.Raw = jsonrpc.AppendRequest(make([]byte, 0, len(m.Raw)+len(params)-len(m.Params)+len(`,"params":`)), m.ID, m.Method, params)
		m.Params = m.Raw[len(m.Raw)-1-len(params) : len(m.Raw)-1]
	}
	return m
}

// withMeta returns a request whose params, an object, have no member _meta, with one that has the
// traceparent, which needs no escapes.
func withMeta(m jsonrpc.Message, params []byte, parent string) jsonrpc.Message {
	const begin, end = `"_meta":{"` + protocol.MetaTraceParent + `":"`, `"}}`
	raw := make([]byte, 0, len(m.Raw)+len(`,"params":{},`)+len(begin)+len(parent)+len(end))
	raw = jsonrpc.AppendRequest(raw, m.ID, m.Method, nil)
	raw = append(raw[:len(raw)-1], `,"params":`...)
	from := len(raw)
	raw = append(raw, params[:len(params)-1]...)
	if len(bytes.TrimSpace(params[1:len(params)-1])) > 0 {
		raw = append(raw, ',')
	}
	raw = append(append(append(raw, begin...), parent...), end+"}"...)
	m.Raw, m.Params = raw, raw[from:len(raw)-1:len(raw)-1]
	return m
}

// settle notes how a request was answered: observers are told when the call ends. c.mu is held.
func (c *Call) settle(rq *inflight, response []byte) {
	if c.watch == nil {
		return
	}
	outcome, code := observe.Result, 0
	if e := jsonrpc.Field(response, "error"); e != nil {
		outcome = observe.Error
		code, _ = strconv.Atoi(string(jsonrpc.Field(e, "code")))
		if protocol.OutcomeUnknown(code, jsonrpc.String(jsonrpc.Field(e, "message"))) {
			outcome = observe.Unknown
		}
	} else if c.method == protocol.MethodCallTool && string(jsonrpc.Field(response, "result", "isError")) == "true" {
		outcome = observe.ToolError
	}
	c.watch.Settle(c.number, rq.id, outcome, code)
	if c.number == 0 || c.sharesStream() {
		c.watch.Answered(c.number, rq.id, response)
	}
}

// settleRefused notes that the store has refused how requests ended, or the call's note: then they
// did not run.
func (c *Call) settleRefused(number uint64, ids [][]byte, note bool) {
	if c.watch == nil {
		return
	}
	outcome, code := observe.Unknown, protocol.CodeOutcomeUnknown
	if note {
		outcome, code = observe.Error, jsonrpc.CodeServer
	}
	for _, id := range ids {
		c.watch.Resettle(number, string(id), outcome, code)
	}
}

// observeLightEnd tells how a call has ended of which nothing is stored. Of a stored one that is
// told when its end is in the store. c.mu is held.
func (c *Call) observeLightEnd() {
	if c.number == 0 || c.sharesStream() {
		c.watch.End(c.number, observe.Cancelled, 0)
	}
}

// observeNotBegun tells that the call has ended before it began.
func (c *Call) observeNotBegun(err error) {
	number := c.Number()
	if errors.Is(err, ErrMoved) {
		c.watch.Leave(number)
		return
	}
	c.watch.End(number, observe.Error, jsonrpc.CodeServer)
}

// observeLeft tells that the call has left this node. What was answered from memory has been. c.mu is
// held.
func (c *Call) observeLeft() {
	if c.number == 0 {
		c.watch.End(0, observe.Left, 0)
	} else {
		c.watch.Leave(c.number)
	}
}

// observeLeft tells that the calls have left this node whose ends are not stored here any more.
func observeLeft(turn []entry) {
	for i := range turn {
		if x := &turn[i]; x.Last && !x.Note {
			x.By.watch.Leave(x.Number)
		}
	}
}

// observeEntry tells of an entry of the call's stream that is in the store.
func (c *Call) observeEntry(number uint64, e *stream.Entry) {
	if c.watch == nil {
		return
	}
	c.watch.Append(number, observe.Appended{Seq: e.Seq, Data: e.Data, Last: e.Last})
	if e.Last {
		c.watch.End(number, observe.Cancelled, 0)
	}
}
