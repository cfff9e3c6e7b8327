// Package metrics has the figures of a handler for Prometheus. Only programs that import this package link Prometheus' client.
//
// docs/observing.md in the repository lists the figures; the directory deploy has a dashboard and rules made of them.
package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/metrics"
	"holdfast/internal/observe"
)

// New returns an observer for Options.Metrics: the handler registers its figures with a registry, until its Shutdown. Of several
// handlers with one registry, each needs a label of its own: see [prometheus.WrapRegistererWith]. A nil registry counts nothing.
func New(registry prometheus.Registerer) holdfast.Observer {
	if registry == nil {
		return nil
	}
	return observe.Attach(func(f observe.Figures) (observe.Observer, func(), error) {
		m := metrics.New(f)
		if err := registry.Register(m); err != nil {
			return nil, nil, fmt.Errorf("register the metrics: %w", err)
		}
		return m, func() { registry.Unregister(m) }, nil
	})
}
