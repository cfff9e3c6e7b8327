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

// A Provider is the SDK's, with spans that can go on at another node: the one that a call ends at
// exports it, under the id that it had where the call began.
type Provider struct {
	*sdk.TracerProvider
	sampler sdk.Sampler
}

// NewProvider returns a provider, which its caller must shut down. The sampler, if it is nil, and what the
// options do not say come from the environment (OTEL_TRACES_SAMPLER, OTEL_BSP_…, OTEL_SPAN_…).
func NewProvider(sampler sdk.Sampler, opts ...sdk.TracerProviderOption) *Provider {
	if sampler == nil {
		sampler = samplerOfEnvironment()
	}
	return &Provider{sdk.NewTracerProvider(append(opts, sdk.WithSampler(sampler), sdk.WithIDGenerator(ids{}))...), sampler}
}

// samplerOfEnvironment returns what OTEL_TRACES_SAMPLER names, as the SDK has it (OpenTelemetry
// specification, "Environment Variable Specification", General SDK Configuration). The provider must
// know it, to make no span of a call that is not recorded. What is wrong there is told by the SDK.
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

// drops returns the context of a new span that is not recorded, or false and what one that is recorded must
// have as [wanted]. parent is that of ctx.
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
	return newIDs()
}

// newIDs returns ids that nobody has. They are no secrets.
func newIDs() (id trace.TraceID, span trace.SpanID) {
	binary.LittleEndian.PutUint64(id[:8], max(1, rand.Uint64())) // 0 is none
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
