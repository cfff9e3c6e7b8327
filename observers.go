package holdfast

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/budget"
	"holdfast/internal/limit"
	"holdfast/internal/live"
	"holdfast/internal/observe"
)

// An Observer is told of the calls of a handler. [holdfast/metrics.New] and [holdfast/traces.New] return observers. A program
// cannot write its own; Options.Audit tells a program of calls.
type Observer interface{ observe.Attachment }

// counts are the counts of memory that metrics show.
type counts struct {
	flight      *budget.Flight
	connections *budget.Connections
}

// observers returns the handler's observers: traces, the audit, metrics and the live page, if they
// are set (docs/decisions/0026-observers.md). It returns nil without any.
func (h *Handler) observers(o *Options, memory counts, limits *limit.Limiter) (all observe.Observers) {
	h.attach(&all, o.Traces, "traces", observe.Figures{}, o) // first: the others name the span of a call
	if o.Audit != nil {
		h.audit = audit.New(audit.Options{Handler: o.Audit, Arguments: o.AuditArguments, Logger: o.Logger})
		all = append(all, h.audit)
	}
	h.attach(&all, o.Metrics, "metrics", h.figures(o, memory, limits), o)
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

// attach adds the observer of an option, unless it is nil.
func (h *Handler) attach(all *observe.Observers, from Observer, what string, f observe.Figures, o *Options) {
	if from == nil {
		return
	}
	one, detach, err := observe.To(f, from)
	if err != nil {
		o.Logger.Error("there are no "+what, "error", err)
		return
	}
	*all = append(*all, one)
	h.detach = append(h.detach, detach)
}

// figures returns the functions by which observers ask for the handler's figures.
func (h *Handler) figures(o *Options, memory counts, limits *limit.Limiter) observe.Figures {
	kept, _ := o.Store.(interface{ Kept() (bytes, most int64) })
	f := observe.Figures{
		Ready: h.Ready,
		Memory: func() []observe.Memory {
			all := []observe.Memory{
				{Part: "in_flight", Used: memory.flight.Used() + memory.flight.Arriving(), Most: memory.flight.Most()},
				{Part: "connections", Used: memory.connections.Used(), Most: memory.connections.Most()},
			}
			if kept != nil {
				bytes, most := kept.Kept()
				all = append(all, observe.Memory{Part: "kept", Used: bytes, Most: most})
			}
			return all
		},
	}
	if h.audit != nil {
		f.AuditLost = h.audit.Lost
	}
	if limits != nil {
		f.Waiting = limits.Waiting
	}
	return f
}

// auditGrace is how long Shutdown waits for the audit's records of the last calls.
const auditGrace = 2 * time.Second

// stopObserving ends the observers.
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
	for _, detach := range h.detach {
		detach()
	}
	return err
}
