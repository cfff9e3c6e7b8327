// Package spans passes the spans of requests on, in the form of W3C Trace Context: to the backend, and to a node that takes their call over.
package spans

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// In returns a watch without observers that has the trace of an HTTP request; nil if it has none.
func In(h http.Header) *observe.Watch {
	parent := h.Get("Traceparent")
	if parent == "" {
		return nil
	}
	trace := observe.NewTrace(parent, strings.Join(h["Tracestate"], ","))
	return &observe.Watch{Call: observe.Call{HTTP: &trace}}
}

// Of returns the trace that a request names.
func Of(m *jsonrpc.Message) (t observe.Trace) {
	if parent := jsonrpc.Field(m.Params, "_meta", protocol.MetaTraceParent); parent != nil {
		t = observe.NewTrace(jsonrpc.String(parent), jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaTraceState)))
	}
	return t
}

// A Note has the span of a request in the note of a call.
type Note struct {
	Is    string `json:"is"`
	State string `json:"state"`
	Under string `json:"under"`
	Began int64  `json:"began"` // in nanoseconds since 1970
}

// AppendNote appends the spans of a call's requests to its note, in their order, if any of them has one.
func AppendNote(dst []byte, w *observe.Watch, msgs []jsonrpc.Message) []byte {
	some := false
	for m := range protocol.Requests(msgs) {
		some = some || w.SpanOf(string(m.ID)) != nil
	}
	if !some {
		return dst
	}
	dst = append(dst, `,"spans":[`...)
	from := len(dst)
	for m := range protocol.Requests(msgs) {
		dst = append(dst, ","[:min(len(dst)-from, 1)]...)
		span := w.SpanOf(string(m.ID))
		if span == nil {
			dst = append(dst, "null"...)
			continue
		}
		dst = append(append(dst, `{"is":`...), jsonrpc.Quote(span.Parent)...)
		dst = append(append(dst, `,"state":`...), jsonrpc.Quote(span.State)...)
		dst = append(append(dst, `,"under":`...), jsonrpc.Quote(span.Under)...)
		dst = strconv.AppendInt(append(dst, `,"began":`...), span.Began.UnixNano(), 10)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// Restore returns a watch without observers that has the spans of a call's requests on the lost node, before w.
func Restore(w *observe.Watch, spans []*Note, msgs []jsonrpc.Message) *observe.Watch {
	if len(spans) != len(msgs) {
		return w
	}
	for i, span := range spans {
		if span != nil {
			w = w.Before(string(msgs[i].ID), &observe.Span{
				Trace: observe.Trace{Parent: span.Is, State: span.State}, Under: span.Under, Began: time.Unix(0, span.Began),
			})
		}
	}
	return w
}

// Into returns a request of a call as the backend gets it: with the span that the backend's work is
// part of.
func Into(m jsonrpc.Message, w *observe.Watch) jsonrpc.Message {
	if w == nil {
		return m
	}
	span := w.SpanOf(string(m.ID))
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

// withMeta adds a member _meta with the traceparent, which needs no escapes, to the params of a
// request, an object that has none.
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
