// Package traces has the spans of a handler's calls for OpenTelemetry. Only programs that import this package link OpenTelemetry.
//
// docs/observing.md in the repository lists the attributes of spans.
package traces

import (
	"go.opentelemetry.io/otel/trace"

	"holdfast"
	"holdfast/internal/observe"
	"holdfast/internal/traces"
)

// Options choose the parents of spans. The zero value is useful.
type Options struct {
	// UnderHTTP makes the span of the HTTP request the parent of a call's span, and links the
	// span that the message names. By default it is the other way round.
	UnderHTTP bool
}

// New returns an observer for Options.Traces. It makes a span of the provider for each call, by the semantic conventions for MCP.
// opts may be nil. The handler does not shut the provider down. A nil provider makes no spans.
func New(provider trace.TracerProvider, opts *Options) holdfast.Observer {
	if provider == nil {
		return nil
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	return observe.Attach(func(observe.Figures) (observe.Observer, func(), error) {
		t := traces.New(traces.Options{Provider: provider, UnderHTTP: o.UnderHTTP})
		return t, t.Close, nil
	})
}
