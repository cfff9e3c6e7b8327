package traces

import (
	"context"
	"crypto/rand"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// A Provider is the SDK's, with spans that can go on at another node: the one that a call ends at
// exports it, under the id that it had where the call began.
type Provider struct{ *sdk.TracerProvider }

// NewProvider returns a provider, which its caller must shut down. What the options do not say comes from
// the environment (OTEL_TRACES_SAMPLER, OTEL_BSP_…, OTEL_SPAN_…).
func NewProvider(opts ...sdk.TracerProviderOption) *Provider {
	return &Provider{sdk.NewTracerProvider(append(opts, sdk.WithIDGenerator(ids{}))...)}
}

// wanted is the key of the [trace.SpanContext] that a new span is to have, in the context that it is
// started in.
type wanted struct{}

// ids makes the ids of spans.
type ids struct{}

// NewIDs implements [sdk.IDGenerator].
func (ids) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	if c, ok := ctx.Value(wanted{}).(trace.SpanContext); ok && c.IsValid() {
		return c.TraceID(), c.SpanID()
	}
	for !id.IsValid() || !span.IsValid() {
		_, _ = rand.Read(id[:]) // never fails
		_, _ = rand.Read(span[:])
	}
	return id, span
}

// NewSpanID implements [sdk.IDGenerator].
func (ids) NewSpanID(ctx context.Context, of trace.TraceID) (span trace.SpanID) {
	if c, ok := ctx.Value(wanted{}).(trace.SpanContext); ok && c.IsValid() && c.TraceID() == of {
		return c.SpanID()
	}
	for !span.IsValid() {
		_, _ = rand.Read(span[:])
	}
	return span
}
