package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/metrics"
)

// observe sets the observers of calls: the figures of admin, and the audit and the traces, which admin closes.
func (f *serveFlags) observe(opts *holdfast.Options, admin *admin) (err error) {
	if figures := admin.serveMetrics(); figures != nil {
		opts.Metrics = metrics.New(figures)
	}
	if admin.audit, err = f.audit.open(); admin.audit != nil {
		opts.Audit = admin.audit
	}
	if err == nil {
		admin.traces, err = f.traces.open(context.Background(), opts)
	}
	return err
}

// serveMetrics serves /metrics beside the probes, and returns the registry of the figures; nil if
// there is no --admin.
func (a *admin) serveMetrics() *prometheus.Registry {
	if a.server == nil {
		return nil
	}
	all := prometheus.NewRegistry()
	all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	a.mux.Handle("GET /metrics", a.guard(promhttp.HandlerFor(all, promhttp.HandlerOpts{
		ErrorLog:            newHTTPLog(),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
		EnableOpenMetrics:   true, // this format has exemplars
	}).ServeHTTP))
	return all
}
