// Package traces makes spans of calls, for OpenTelemetry. It is an observer ([observe.Observer]).
//
// A call is one span, by the semantic conventions for MCP. Each connection that reads the call is a child
// of it. docs/decisions/0029-traces.md has the reasons.
package traces

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// scope names the instrumentation that makes the spans.
const scope = "holdfast"

// Attributes of our own; the others are those of the semantic conventions.
const (
	keyServer      = "holdfast.server"
	keyOutcome     = "holdfast.outcome"
	keyStream      = "holdfast.stream"
	keyConnections = "holdfast.connections"
	keyMessages    = "holdfast.messages"
	keyDoor        = "holdfast.door"
	keyAfter       = "holdfast.after"
	keyThrough     = "holdfast.through"
	keyReplayed    = "holdfast.replayed"
	keyWhy         = "holdfast.why"
)

// longest bounds a client's text in an attribute or a name, in bytes.
const longest = 256

// Options configure [Traces].
type Options struct {
	Provider  trace.TracerProvider // required
	UnderHTTP bool                 // the span of the HTTP request is the parent, and the span that the message names is linked
}

// Traces makes the spans of a handler's calls.
type Traces struct {
	tracer    trace.Tracer
	provider  *Provider // nil if it is of another kind; with it, a call that is taken over keeps its span
	underHTTP bool

	mu      sync.Mutex
	reading map[*observe.Reader]trace.Span // connections that read ended calls
	ended   endedCalls
}

// New returns an observer. If the provider comes from [NewProvider], the span of a call that is taken
// over goes on; otherwise a new span is linked to it.
func New(o Options) *Traces {
	own, _ := o.Provider.(*Provider)
	return &Traces{
		tracer: o.Provider.Tracer(scope), underHTTP: o.UnderHTTP, provider: own,
		reading: make(map[*observe.Reader]trace.Span), ended: endedCalls{spans: make(map[streamKey]trace.SpanContext)},
	}
}

// Began implements [observe.Observer].
func (t *Traces) Began(c *observe.Call, params []byte) observe.CallObserver {
	parent, link := contextOf(c.Trace), trace.SpanContext{}
	if c.HTTP != nil {
		link = contextOf(*c.HTTP)
	}
	if t.underHTTP && link.IsValid() || !parent.IsValid() {
		parent, link = link, parent
	}
	began := c.Began
	ctx := context.Background()
	var was trace.SpanContext
	if c.Was != nil {
		was, began = contextOf(c.Was.Trace), c.Was.Began
		parent = contextOf(observe.Trace{Parent: c.Was.Under, State: parent.TraceState().String()})
		switch {
		case t.provider != nil:
			ctx = context.WithValue(ctx, wanted{}, was)
		case !parent.IsValid(): // so that the trace is the same
			parent = was
		}
	}
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	name := nameOf(c, params)
	if t.provider != nil && c.Was == nil { // if one call in a hundred is recorded, this drops nearly all
		own, dropped := t.provider.drops(ctx, parent, name)
		if dropped {
			setSpan(c, own, parent, began)
			return nil
		}
		ctx = context.WithValue(ctx, wanted{}, own)
	}
	_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began))
	own := span.SpanContext()
	if !own.IsValid() { // the provider makes no traces
		return nil
	}
	setSpan(c, own, parent, began)
	if !span.IsRecording() {
		return nil
	}
	describe(span, c, params)
	if link.IsValid() && !link.Equal(parent) {
		span.AddLink(trace.Link{SpanContext: link})
	}
	if c.Again {
		span.AddEvent("taken over", trace.WithTimestamp(c.Began))
		if was.IsValid() && !was.Equal(own.WithRemote(true)) {
			span.AddLink(trace.Link{SpanContext: was})
		}
	}
	return &call{t: t, span: span}
}

// setSpan notes the call's span, unless it has a parent and neither of them is recorded.
func setSpan(c *observe.Call, own, parent trace.SpanContext, began time.Time) {
	if own.IsSampled() || !parent.IsValid() || parent.IsSampled() {
		c.Span = &observe.Span{Trace: observe.Trace{Parent: parentText(own), State: own.TraceState().String()}, Under: parentText(parent), Began: began}
	}
}

// Happened implements [observe.Observer].
func (t *Traces) Happened(e observe.Event) {
	switch e := e.(type) {
	case observe.ReaderCame:
		if e.Number == 0 {
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if of, ok := t.ended.spans[streamKey{e.Session, e.Number}]; ok {
			t.reading[e.Reader] = t.connection(of, e.Reader)
		}
	case observe.ReaderWent:
		t.mu.Lock()
		span := t.reading[e.Reader]
		delete(t.reading, e.Reader)
		t.mu.Unlock()
		if span != nil {
			went(span, &e)
		}
	}
}

// Close ends the spans of connections that still read ended calls.
func (t *Traces) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, span := range t.reading {
		span.End()
	}
	clear(t.reading)
}

// nameOf returns the name of a call's span.
func nameOf(c *observe.Call, params []byte) string {
	switch {
	case c.Tool != "":
		return c.Method + " " + bounded(c.Tool)
	case c.Method == protocol.MethodGetPrompt:
		return c.Method + " " + bounded(jsonrpc.String(jsonrpc.Field(params, "name")))
	}
	return bounded(c.Method)
}

func bounded(text string) string { return text[:min(len(text), longest)] }

// describe sets the attributes that a call has when it begins.
func describe(span trace.Span, c *observe.Call, params []byte) {
	all := make([]attribute.KeyValue, 0, 8)
	text := func(key, value string) {
		if value != "" {
			all = append(all, attribute.String(key, bounded(value)))
		}
	}
	text("mcp.method.name", c.Method)
	text("mcp.protocol.version", c.Revision)
	if !c.Carrier { // in a carrier the client has no session, and the id is ours
		text("mcp.session.id", c.Session)
		id := c.ID
		if name := jsonrpc.String([]byte(id)); name != "" {
			id = name
		}
		text("jsonrpc.request.id", id)
	}
	switch c.Method {
	case protocol.MethodCallTool:
		text("gen_ai.tool.name", c.Tool)
		text("gen_ai.operation.name", "execute_tool")
	case protocol.MethodGetPrompt:
		text("gen_ai.prompt.name", jsonrpc.String(jsonrpc.Field(params, "name")))
	}
	text(keyServer, c.Server)
	span.SetAttributes(all...)
}

// A call is the [observe.CallObserver] of a recorded call.
type call struct {
	t    *Traces
	span trace.Span

	mu    sync.Mutex
	conns map[*observe.Reader]trace.Span
}

// Happened implements [observe.CallObserver].
func (o *call) Happened(_ *observe.Call, e observe.Event) {
	switch e := e.(type) {
	case observe.BecameTask:
		o.span.AddEvent("became a task")
	case observe.Attached:
		o.span.AddEvent("attached: " + e.Reason)
	case observe.HandedOff:
		o.span.AddEvent("handed off")
	case observe.ReaderCame:
		span := o.t.connection(o.span.SpanContext(), e.Reader)
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.conns == nil {
			o.conns = make(map[*observe.Reader]trace.Span)
		}
		o.conns[e.Reader] = span
	case observe.ReaderWent:
		o.mu.Lock()
		span := o.conns[e.Reader]
		delete(o.conns, e.Reader)
		o.mu.Unlock()
		if span != nil {
			went(span, &e)
		}
	}
}

// Ended implements [observe.CallObserver].
func (o *call) Ended(c *observe.Call, e observe.End) {
	if e.Outcome == observe.Left && o.t.provider != nil {
		return // the span goes on at the session's new node, which exports it
	}
	number := c.Number()
	o.span.SetAttributes(
		attribute.String(keyOutcome, e.Outcome.String()),
		attribute.Int(keyConnections, c.Connections()),
		attribute.Int(keyMessages, c.Entries()),
	)
	if number != 0 {
		o.span.SetAttributes(attribute.Int64(keyStream, int64(number))) //nolint:gosec // an epoch and a count, far from 1<<63
	}
	switch e.Outcome {
	case observe.ToolError:
		o.span.SetAttributes(attribute.String("error.type", "tool_error"))
		o.span.SetStatus(codes.Error, "")
	case observe.Error, observe.Unknown, observe.CancelledByOperator:
		code := strconv.Itoa(e.Code)
		o.span.SetAttributes(attribute.String("error.type", code), attribute.String("rpc.response.status_code", code))
		o.span.SetStatus(codes.Error, e.Outcome.String())
	}
	o.span.End(trace.WithTimestamp(e.At))
	if number != 0 {
		o.t.mu.Lock()
		o.t.ended.add(streamKey{c.Session, number}, o.span.SpanContext())
		o.t.mu.Unlock()
	}
}

// connection begins the span of a connection that reads a call.
func (t *Traces) connection(of trace.SpanContext, r *observe.Reader) trace.Span {
	_, span := t.tracer.Start(trace.ContextWithSpanContext(context.Background(), of), "connection "+r.Door.String(), trace.WithTimestamp(r.Came), trace.WithAttributes(
		attribute.String(keyDoor, r.Door.String()),
		attribute.Int64(keyAfter, int64(r.After)), //nolint:gosec // a count of messages
	))
	return span
}

// went ends the span of a connection.
func went(span trace.Span, e *observe.ReaderWent) {
	span.SetAttributes(
		attribute.String(keyWhy, e.Why.String()),
		attribute.Int64(keyThrough, int64(e.Seq)),       //nolint:gosec // a count of messages
		attribute.Int64(keyReplayed, int64(e.Replayed)), //nolint:gosec // a count of messages
	)
	span.End()
}

// mostEnded is how many calls are known after their end, as parents of connections that come then.
const mostEnded = 1024

// A streamKey is a call's stream.
type streamKey struct {
	session string
	number  uint64
}

// endedCalls are the calls that have ended last.
type endedCalls struct {
	spans map[streamKey]trace.SpanContext
	order []streamKey // a ring
	next  int
}

func (l *endedCalls) add(k streamKey, of trace.SpanContext) {
	if len(l.order) < mostEnded {
		l.order = append(l.order, k)
	} else {
		delete(l.spans, l.order[l.next])
		l.order[l.next] = k
		l.next = (l.next + 1) % mostEnded
	}
	l.spans[k] = of
}

// contextOf parses the texts of W3C Trace Context. Invalid texts give an invalid context.
func contextOf(t observe.Trace) trace.SpanContext {
	if t.Parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": t.Parent, "tracestate": t.State}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// parentText returns a span context as a traceparent (W3C Trace Context, "traceparent Header"), or
// "" if it is not valid.
func parentText(c trace.SpanContext) string {
	if !c.IsValid() {
		return ""
	}
	const digits = "0123456789abcdef"
	var text [55]byte
	dst := append(text[:0], "00-"...)
	id, span := c.TraceID(), c.SpanID()
	for _, b := range id {
		dst = append(dst, digits[b>>4], digits[b&15])
	}
	dst = append(dst, '-')
	for _, b := range span {
		dst = append(dst, digits[b>>4], digits[b&15])
	}
	if c.IsSampled() {
		dst = append(dst, "-01"...)
	} else {
		dst = append(dst, "-00"...)
	}
	return string(dst)
}
