package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
)

// calls are the figures of calls.
type calls struct {
	ended    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	stored   *prometheus.CounterVec
	handles  *prometheus.CounterVec
	entries  *prometheus.CounterVec
	received *prometheus.CounterVec
	sent     *prometheus.CounterVec
	conns    *prometheus.HistogramVec
	left     *prometheus.CounterVec
}

func (m *Metrics) newCalls() {
	m.ended = m.counter("holdfast_calls_total", "Calls that have ended here, by their outcome.", "server", "method", "tool", "outcome")
	m.duration = m.histogram("holdfast_call_duration_seconds", "How long calls took that have ended here, from their request to their response.", callBuckets, "server", "method", "tool")
	m.inFlight = m.gauge("holdfast_calls_in_flight", "Calls in flight: light (in memory) or stored.", "server", "kind")
	m.stored = m.counter("holdfast_calls_stored_total", "Calls that were given a stream. The others are answered from memory.", "server")
	m.handles = m.counter("holdfast_calls_detached_total", "Calls that became tasks, or go on behind another handle.", "server")
	m.left = m.counter("holdfast_calls_left_total", "Calls that have left this node with their session, and go on at another.", "server")
	m.entries = m.counter("holdfast_call_messages_total", "Messages of servers about calls.", "server")
	m.received = m.counter("holdfast_call_received_bytes_total", "Bytes of the requests of calls that have ended.", "server")
	m.sent = m.counter("holdfast_call_sent_bytes_total", "Bytes of the messages of servers about calls that have ended.", "server")
	m.conns = add(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "holdfast_call_connections", Help: "Connections that a call was read on until it ended.", Buckets: []float64{1, 2, 3, 5, 10, 20, 50},
	}, []string{"server"}))
}

// A serverSeries is what is counted for all calls of a server. (The one without a name may be the
// only one.)
type serverSeries struct {
	light, stored             prometheus.Gauge
	promoted, handles, left   prometheus.Counter
	entries, received, sentTo prometheus.Counter
	conns                     prometheus.Observer
}

// flies returns the gauge that the call is counted in while it is in flight.
func (s *serverSeries) flies(c *observe.Call) prometheus.Gauge {
	if c.Number() != 0 {
		return s.stored
	}
	return s.light
}

// A seriesKey has the labels of a call.
type seriesKey struct{ server, method, tool string }

// A series is what is counted for calls with the same labels, and their [observe.CallObserver]. It is
// looked up once for each.
type series struct {
	m        *Metrics
	outcomes [observe.Left]prometheus.Counter
	duration prometheus.Observer
	server   *serverSeries
}

// Began implements [observe.Observer].
func (m *Metrics) Began(c *observe.Call, _ []byte) observe.CallObserver {
	s := m.known(seriesKey{c.Server, c.Method, c.Tool})
	if s == nil {
		method, tool := m.tools.labels(c)
		s = m.seriesOf(seriesKey{c.Server, method, tool})
	}
	s.server.light.Inc()
	return s
}

// known returns the series with some labels, or nil.
func (m *Metrics) known(k seriesKey) *series {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.series[k]
}

// seriesOf returns what is counted for calls with some labels.
func (m *Metrics) seriesOf(k seriesKey) *series {
	if s := m.known(k); s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.series[k]; s != nil {
		return s
	}
	s := &series{m: m, duration: m.duration.WithLabelValues(k.server, k.method, k.tool), server: m.servers[k.server]}
	for i, outcome := range observe.Outcomes() {
		s.outcomes[i] = m.ended.WithLabelValues(k.server, k.method, k.tool, outcome.String())
	}
	if s.server == nil {
		s.server = &serverSeries{
			light: m.inFlight.WithLabelValues(k.server, "light"), stored: m.inFlight.WithLabelValues(k.server, "stored"),
			promoted: m.stored.WithLabelValues(k.server), handles: m.handles.WithLabelValues(k.server), left: m.left.WithLabelValues(k.server),
			entries: m.entries.WithLabelValues(k.server), received: m.received.WithLabelValues(k.server), sentTo: m.sent.WithLabelValues(k.server),
			conns: m.conns.WithLabelValues(k.server),
		}
		m.servers[k.server] = s.server
	}
	m.series[k] = s
	return s
}

// Happened implements [observe.CallObserver].
func (s *series) Happened(c *observe.Call, e observe.Event) {
	server := s.server
	switch e := e.(type) {
	case observe.Appended: // counted at the end
	case observe.Promoted:
		server.light.Dec()
		server.stored.Inc()
		if !c.Again {
			server.promoted.Inc()
		}
	case observe.BecameTask:
		server.handles.Inc()
	case observe.HandedOff:
		server.handles.Inc()
		if e.Was == 0 {
			server.light.Dec()
			server.stored.Inc()
		}
	default:
		s.m.read(e)
	}
}

// Ended implements [observe.CallObserver].
func (s *series) Ended(c *observe.Call, e observe.End) {
	server := s.server
	server.flies(c).Dec()
	if e.Outcome == observe.Left {
		server.left.Inc()
		return
	}
	s.outcomes[e.Outcome].Inc()
	took := max(e.At.Sub(c.Began), 0)
	of := c.Trace
	if c.Span != nil {
		of = c.Span.Trace
	}
	if id := of.SampledID(); id != "" {
		if with, ok := s.duration.(prometheus.ExemplarObserver); ok {
			with.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": id})
		}
	} else {
		s.duration.Observe(took.Seconds())
	}
	server.entries.Add(float64(c.Entries()))
	server.received.Add(float64(c.BytesIn))
	server.sentTo.Add(float64(c.BytesOut()))
	server.conns.Observe(float64(c.Connections()))
}
