package holdfast

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/budget"
	"holdfast/internal/limit"
	"holdfast/internal/live"
	"holdfast/internal/metrics"
	"holdfast/internal/observe"
	"holdfast/internal/traces"
)

// figures are the counts of memory that metrics tell of.
type figures struct {
	flight      *budget.Flight
	connections *budget.Connections
}

// observers returns those of the handler: one for each thing that listens to what happens to calls
// (docs/decisions/0026-observers.md); nil if there is none.
func (h *Handler) observers(o *Options, memory figures, limits *limit.Limiter) (all observe.Observers) {
	if o.TracerProvider != nil { // first: the others say what span a call is
		h.traces = traces.New(traces.Options{Provider: o.TracerProvider, UnderHTTP: o.TraceUnderHTTP})
		all = append(all, h.traces)
	}
	if o.Audit != nil {
		h.audit = audit.New(audit.Options{Handler: o.Audit, Arguments: o.AuditArguments, Logger: o.Logger})
		all = append(all, h.audit)
	}
	if m := h.startMetrics(o, memory, limits); m != nil {
		all = append(all, m)
	}
	if o.Page != nil {
		h.page = live.New(live.Options{
			Hosts: o.AllowedHosts, Token: o.PageToken, Logger: o.Logger,
			Happened: func(e observe.Event) { all.Happened(e) }, // the page is served when all are there
		})
		all = append(all, h.page)
	}
	if all == nil {
		return nil
	}
	if store, ok := o.Store.(interface {
		Observe(f func(operation string, took time.Duration, err error))
	}); ok {
		store.Observe(func(operation string, took time.Duration, err error) {
			all.Happened(observe.EngineAsked{Operation: operation, Took: took, Err: err})
		})
	}
	return all
}

// startMetrics registers the handler's figures; nil if they are not wanted.
func (h *Handler) startMetrics(o *Options, memory figures, limits *limit.Limiter) *metrics.Metrics {
	if o.Metrics == nil {
		return nil
	}
	kept, _ := o.Store.(interface{ Kept() (bytes, most int64) })
	source := metrics.Source{
		Ready: h.Ready,
		Memory: func() []metrics.Memory {
			all := []metrics.Memory{
				{Part: "in_flight", Used: memory.flight.Used() + memory.flight.Arriving(), Most: memory.flight.Most()},
				{Part: "connections", Used: memory.connections.Used(), Most: memory.connections.Most()},
			}
			if kept != nil {
				bytes, most := kept.Kept()
				all = append(all, metrics.Memory{Part: "kept", Used: bytes, Most: most})
			}
			return all
		},
	}
	if h.audit != nil {
		source.AuditLost = h.audit.Lost
	}
	if limits != nil {
		source.Waiting = limits.Waiting
	}
	m := metrics.New(source)
	if err := o.Metrics.Register(m); err != nil {
		o.Logger.Error("no metrics: they could not be registered", "error", err)
		return nil
	}
	registry := o.Metrics
	h.unregister = func() { registry.Unregister(m) }
	return m
}

// auditGrace is how long Shutdown waits for the lines of the last calls.
const auditGrace = 2 * time.Second

// stopObserving ends what observers has begun.
func (h *Handler) stopObserving(ctx context.Context) (err error) {
	if h.page != nil {
		h.page.Close()
	}
	if h.audit != nil {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), auditGrace)
		defer stop()
		if err = h.audit.Close(ctx); err != nil {
			err = fmt.Errorf("the audit was not written to its end: %w", err)
		}
	}
	if h.unregister != nil {
		h.unregister()
	}
	if h.traces != nil {
		h.traces.Close()
	}
	return err
}
