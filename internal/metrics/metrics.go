// Package metrics is the observer that counts calls and events for Prometheus.
//
// docs/observing.md lists the figures; deploy/ has a dashboard and rules made of them.
package metrics

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
)

// Metrics are the figures of one handler: an [observe.Observer], and a [prometheus.Collector].
type Metrics struct {
	source observe.Figures
	tools  listedTools
	calls
	readers
	nodes
	forwarded passed
	all       []prometheus.Collector

	series atomic.Pointer[map[seriesKey]*series] // the map is replaced, not changed

	mu      sync.Mutex // held to replace series; guards servers
	servers map[string]*serverSeries
}

// New returns figures that are all zero, except those of source. Their prefix is holdfast_.
func New(source observe.Figures) *Metrics {
	m := &Metrics{source: source, tools: listedTools{all: make(map[toolKey]struct{})}, servers: make(map[string]*serverSeries)}
	m.series.Store(&map[seriesKey]*series{})
	m.newCalls()
	m.newReaders()
	m.newNodes()
	m.newPassed()
	return m
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(to)
	}
	to <- memoryUsed
	to <- memoryMost
	to <- ready
	to <- auditLost
	to <- waiting
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.settle()
	for _, c := range m.all {
		c.Collect(to)
	}
	if m.source.Memory != nil {
		for _, part := range m.source.Memory() {
			to <- prometheus.MustNewConstMetric(memoryUsed, prometheus.GaugeValue, float64(part.Used), part.Part)
			to <- prometheus.MustNewConstMetric(memoryMost, prometheus.GaugeValue, float64(part.Most), part.Part)
		}
	}
	if m.source.Ready != nil {
		is := 1.0
		if m.source.Ready() != nil {
			is = 0
		}
		to <- prometheus.MustNewConstMetric(ready, prometheus.GaugeValue, is)
	}
	if m.source.AuditLost != nil {
		to <- prometheus.MustNewConstMetric(auditLost, prometheus.CounterValue, float64(m.source.AuditLost()))
	}
	if m.source.Waiting != nil {
		to <- prometheus.MustNewConstMetric(waiting, prometheus.GaugeValue, float64(m.source.Waiting()))
	}
}

var (
	memoryUsed = prometheus.NewDesc("holdfast_memory_bytes", "Bytes used of a part of the memory budget: kept (messages of calls, and what sessions keep), in_flight (requests, and messages on their way) or connections (those that are open, which have a bound of their own).", []string{"part"}, nil)
	memoryMost = prometheus.NewDesc("holdfast_memory_limit_bytes", "Bytes that a part of the memory budget has.", []string{"part"}, nil)
	auditLost  = prometheus.NewDesc("holdfast_audit_lost_total", "Lines of the audit that could not be written.", nil, nil)
	waiting    = prometheus.NewDesc("holdfast_queue_calls", "Calls that wait for others to end, because of a limit.", nil, nil)
	ready      = prometheus.NewDesc("holdfast_ready", "1 if the handler accepts requests, as /readyz says, else 0.", nil, nil)
)

// add adds a collector to m.all.
func add[C prometheus.Collector](m *Metrics, c C) C {
	m.all = append(m.all, c)
	return c
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return add(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return add(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// histogram returns a histogram with classic buckets, and native ones for servers that ask for them.
func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return add(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, labels))
}

// Buckets, in seconds.
var (
	// Calls take from less than a millisecond to hours.
	callBuckets = []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 10, 30, 120, 600, 3600}
	// An engine takes from less than a millisecond to the time at which it is given up.
	engineBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 3, 30}
	// A call waits in the queue of calls over a limit for some seconds at most.
	queueBuckets = []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	// A take-over, and the start of a backend.
	startBuckets = []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// Happened implements [observe.Observer].
func (m *Metrics) Happened(e observe.Event) {
	switch e := e.(type) {
	case observe.ReaderCame, observe.ReaderRead, observe.ReaderWent:
		m.read(e)
	case observe.ToolsListed:
		m.tools.add(&e)
	case observe.StreamPassed, observe.StreamPassedOver, observe.RequestPassed:
		m.forwarded.pass(e)
	default:
		m.node(e)
	}
}
