package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"holdfast"
	spans "holdfast/internal/traces"
	"holdfast/traces"
)

// traceFlags are the flags of traces. OpenTelemetry's own variables say where they go.
type traceFlags struct{ parent choice }

// tracing exports spans until it is closed.
type tracing struct{ provider *spans.Provider }

// open begins to export, if the environment says so, and sets opts.Traces. The result is nil if it
// does not.
func (f *traceFlags) open(ctx context.Context, opts *holdfast.Options) (*tracing, error) {
	exporter, err := openExporter(ctx)
	if exporter == nil {
		return nil, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "holdfast"), attribute.String("service.version", versionText())),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv()) // the environment has the last word
	if err != nil {
		slog.Warn("traces: not all is known of where they come from", "error", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { slog.Warn("traces", "error", err) }))
	t := &tracing{provider: spans.NewProvider(nil, sdk.WithBatcher(exporter), sdk.WithResource(about))}
	opts.Traces = traces.New(t.provider, &traces.Options{UnderHTTP: f.parent.value == "http"})
	return t, nil
}

// openExporter returns the exporter of spans that the environment asks for (OpenTelemetry
// specification, "Environment Variable Specification"); nil: none.
func openExporter(ctx context.Context) (*otlptrace.Exporter, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return nil, nil
	case "": // by the specification it is otlp, to this machine: but a user who has set nothing wants no traces
		if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return nil, nil
		}
	case "otlp":
	default:
		return nil, usagef("OTEL_TRACES_EXPORTER %q: want otlp or none", exporter)
	}
	var client otlptrace.Client
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	switch protocol {
	case "http/protobuf":
		client = otlptracehttp.NewClient()
	case "grpc":
		client = otlptracegrpc.NewClient()
	default:
		return nil, usagef("OTEL_EXPORTER_OTLP_PROTOCOL %q: want http/protobuf or grpc", protocol)
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	slog.Info("sending traces", "protocol", protocol)
	return exporter, nil
}

// exportGrace bounds how long the end of the program waits for the last spans to be sent.
const exportGrace = 3 * time.Second

// close sends the spans that were not sent yet. t may be nil.
func (t *tracing) close() error {
	if t == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), exportGrace)
	defer stop()
	if err := t.provider.Shutdown(ctx); err != nil {
		slog.Warn("the last traces were not sent", "error", err)
	}
	return nil
}
