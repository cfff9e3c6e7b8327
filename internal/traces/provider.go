package traces

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// A Provider is the SDK's provider with spans that can go on at another node: the node at which a
// call ends exports its span, under the id that the span had where the call began.
type Provider struct {
	*sdk.TracerProvider
	sampler sdk.Sampler
}

// NewProvider returns a provider, which its caller must shut down. A nil sampler, and settings that the
// options do not have, come from the environment (OTEL_TRACES_SAMPLER, OTEL_BSP_…, OTEL_SPAN_…).
func NewProvider(sampler sdk.Sampler, opts ...sdk.TracerProviderOption) *Provider {
	if sampler == nil {
		sampler = samplerOfEnvironment()
	}
	return &Provider{sdk.NewTracerProvider(append(opts, sdk.WithSampler(sampler), sdk.WithIDGenerator(ids{}))...), sampler}
}

// samplerOfEnvironment returns the sampler that OTEL_TRACES_SAMPLER names, as in the SDK (OpenTelemetry
// specification, "Environment Variable Specification", General SDK Configuration). The provider must
// know it, to make no span of a call that is not recorded. The SDK reports errors in the environment.
func samplerOfEnvironment() sdk.Sampler {
	ratio := func() sdk.Sampler {
		part, err := strconv.ParseFloat(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")), 64)
		if err != nil || !(part >= 0 && part <= 1) {
			part = 1
		}
		return sdk.TraceIDRatioBased(part)
	}
	switch strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER"))) {
	case "parentbased_always_off":
		return sdk.ParentBased(sdk.NeverSample())
	case "parentbased_traceidratio":
		return sdk.ParentBased(ratio())
	case "always_on":
		return sdk.AlwaysSample()
	case "always_off":
		return sdk.NeverSample()
	case "traceidratio":
		return ratio()
	}
	return sdk.ParentBased(sdk.AlwaysSample())
}

// drops returns the context of a new span, and whether the span is not recorded. The context of a recorded
// span must be passed on as [wanted]. parent is the span context of ctx.
func (p *Provider) drops(ctx context.Context, parent trace.SpanContext, name string) (trace.SpanContext, bool) {
	id, span := newIDs()
	if parent.IsValid() {
		id = parent.TraceID()
	}
	is := p.sampler.ShouldSample(sdk.SamplingParameters{ParentContext: ctx, TraceID: id, Name: name, Kind: trace.SpanKindServer})
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: parent.TraceFlags() &^ trace.FlagsSampled, TraceState: is.Tracestate,
	}), is.Decision == sdk.Drop
}

// wanted is the key, in the context in which a span is started, of the [trace.SpanContext] that the
// span must have.
type wanted struct{}

// ids makes the ids of spans.
type ids struct{}

// NewIDs implements [sdk.IDGenerator].
func (ids) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	if c, ok := ctx.Value(wanted{}).(trace.SpanContext); ok && c.IsValid() {
		return c.TraceID(), c.SpanID()
	}
	return newIDs()
}

// newIDs returns new random ids. They are not secret.
func newIDs() (id trace.TraceID, span trace.SpanID) {
	binary.LittleEndian.PutUint64(id[:8], max(1, rand.Uint64())) // 0 is not a valid id
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	return id, newSpanID()
}

func newSpanID() (span trace.SpanID) {
	binary.LittleEndian.PutUint64(span[:], max(1, rand.Uint64()))
	return span
}

// NewSpanID implements [sdk.IDGenerator].
func (ids) NewSpanID(ctx context.Context, of trace.TraceID) (span trace.SpanID) {
	if c, ok := ctx.Value(wanted{}).(trace.SpanContext); ok && c.IsValid() && c.TraceID() == of {
		return c.SpanID()
	}
	return newSpanID()
}
