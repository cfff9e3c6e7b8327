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

// A series is what is counted for calls with the same labels. They are looked up once.
type series struct {
	outcomes [observe.Left]prometheus.Counter
	duration prometheus.Observer
	server   *serverSeries
}

// Began implements [observe.Observer].
func (m *Metrics) Began(c *observe.Call, _ []byte) observe.CallObserver {
	m.serverOf(c.Server).light.Inc()
	return (*ofCalls)(m)
}

// serverOf returns what is counted for the calls of a server.
func (m *Metrics) serverOf(name string) *serverSeries {
	return m.seriesOf(seriesKey{server: name}).server
}

// seriesFor returns what is counted for a call that has ended. Once there is a series of its method
// and tool, that is found at once.
func (m *Metrics) seriesFor(c *observe.Call) *series {
	m.mu.RLock()
	s := m.series[seriesKey{c.Server, c.Method, c.Tool}]
	m.mu.RUnlock()
	if s != nil && s.duration != nil {
		return s
	}
	method, tool := m.tools.labels(c)
	return m.seriesOf(seriesKey{c.Server, method, tool})
}

// seriesOf returns what is counted for calls with some labels. Without a method it is for their
// server only.
func (m *Metrics) seriesOf(k seriesKey) *series {
	m.mu.RLock()
	s := m.series[k]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	s = &series{}
	if k.method == "" {
		s.server = &serverSeries{
			light: m.inFlight.WithLabelValues(k.server, "light"), stored: m.inFlight.WithLabelValues(k.server, "stored"),
			promoted: m.stored.WithLabelValues(k.server), handles: m.handles.WithLabelValues(k.server), left: m.left.WithLabelValues(k.server),
			entries: m.entries.WithLabelValues(k.server), received: m.received.WithLabelValues(k.server), sentTo: m.sent.WithLabelValues(k.server),
			conns: m.conns.WithLabelValues(k.server),
		}
	} else {
		for i, outcome := range observe.Outcomes() {
			s.outcomes[i] = m.ended.WithLabelValues(k.server, k.method, k.tool, outcome.String())
		}
		s.duration = m.duration.WithLabelValues(k.server, k.method, k.tool)
		s.server = m.serverOf(k.server)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.series[k]; was != nil {
		return was
	}
	m.series[k] = s
	return s
}

// ofCalls is the [observe.CallObserver] of all calls.
type ofCalls Metrics

// Happened implements [observe.CallObserver].
func (o *ofCalls) Happened(c *observe.Call, e observe.Event) {
	m := (*Metrics)(o)
	switch e := e.(type) {
	case observe.Appended: // counted at the end
	case observe.Promoted:
		server := m.serverOf(c.Server)
		server.light.Dec()
		server.stored.Inc()
		if !c.Again {
			server.promoted.Inc()
		}
	case observe.BecameTask:
		m.serverOf(c.Server).handles.Inc()
	case observe.HandedOff:
		server := m.serverOf(c.Server)
		server.handles.Inc()
		if e.Was == 0 {
			server.light.Dec()
			server.stored.Inc()
		}
	default:
		m.read(e)
	}
}

// Ended implements [observe.CallObserver].
func (o *ofCalls) Ended(c *observe.Call, e observe.End) {
	m := (*Metrics)(o)
	if e.Outcome == observe.Left {
		server := m.serverOf(c.Server)
		server.flies(c).Dec()
		server.left.Inc()
		return
	}
	s := m.seriesFor(c)
	server := s.server
	server.flies(c).Dec()
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
