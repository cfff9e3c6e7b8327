package tools

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"holdfast"
	spans "holdfast/internal/traces"
	"holdfast/traces"
)

// Trace returns a function that adds traces of a part of all calls to a handler's options, as
// holdfast serve does with OTEL_TRACES_SAMPLER=parentbased_traceidratio. The spans are sent to this
// process, until end is called.
func Trace(sampled float64) (trace func(*holdfast.Options), end func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	receiver := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})}
	go func() { _ = receiver.Serve(l) }()
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpoint(l.Addr().String()), otlptracehttp.WithInsecure())
	if err != nil {
		_ = receiver.Close()
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	p := spans.NewProvider(sdk.ParentBased(sdk.TraceIDRatioBased(sampled)), sdk.WithBatcher(exporter))
	return func(o *holdfast.Options) { o.Traces = traces.New(p, nil) }, func() {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
		defer stop()
		_ = p.Shutdown(ctx)
		_ = receiver.Close()
	}, nil
}
