// Package spans says what spans requests are, as W3C Trace Context has it: to the backend, and to the node that takes their call over.
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

// In returns a watch of nobody that says which trace an HTTP request is part of; nil: of none.
func In(h http.Header) *observe.Watch {
	parent := h.Get("Traceparent")
	if parent == "" {
		return nil
	}
	trace := observe.NewTrace(parent, strings.Join(h["Tracestate"], ","))
	return &observe.Watch{Call: observe.Call{HTTP: &trace}}
}

// Of returns what a request says of its trace.
func Of(m *jsonrpc.Message) (t observe.Trace) {
	if parent := jsonrpc.Field(m.Params, "_meta", protocol.MetaTraceParent); parent != nil {
		t = observe.NewTrace(jsonrpc.String(parent), jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaTraceState)))
	}
	return t
}

// A Note is what a call's note says of the span of a request.
type Note struct {
	Is    string `json:"is"`
	State string `json:"state"`
	Under string `json:"under"`
	Began int64  `json:"began"` // in nanoseconds since 1970
}

// AppendNote appends the spans of a call's requests to its note, in their order, if there are
// any.
func AppendNote(dst []byte, w *observe.Watch, msgs []jsonrpc.Message) []byte {
	some := false
	for m := range protocol.Requests(msgs) {
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

// Restore returns a watch of nobody, which says what spans the requests of a call had on the node that is lost, and what w says.
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

// Into returns a request of a call as the backend is to have it: it says what span the work is
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
