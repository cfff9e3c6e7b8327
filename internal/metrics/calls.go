package metrics

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
)

// calls are the figures of calls.
type calls struct {
	ended    *prometheus.CounterVec
	outcomes *prometheus.CounterVec
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
	m.outcomes = m.counter("holdfast_call_outcomes_total", "Calls that have ended here, by their outcome, whatever their method and tool.", "server", "outcome")
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

// A serverSeries has the figures for all calls of a server. (The server without a name may be the only one.) All
// exist from its first call on, even if they are zero: Prometheus sees an increase only of a series that existed
// before.
type serverSeries struct {
	light, stored             prometheus.Gauge
	outcomes                  [observe.Left]prometheus.Counter
	promoted, handles, left   prometheus.Counter
	entries, received, sentTo prometheus.Counter
	conns                     prometheus.Observer
}

// A seriesKey has the labels of a call.
type seriesKey struct{ server, method, tool string }

// A series has the figures for calls with the same labels, and is their [observe.CallObserver]. It is
// looked up once for each call.
type series struct {
	m      *Metrics
	key    seriesKey
	server *serverSeries

	mu    sync.Mutex
	tally tally
	// Nil until the first call counts there: there may be hundreds of tools, with few outcomes each.
	outcomes [observe.Left]prometheus.Counter
	duration prometheus.Observer
}

// A tally has the counts of a series' calls that are not in the figures yet. Writing them under one lock
// costs a call less than writing to each figure: figures are atomic, and all processors write to them.
type tally struct {
	light, stored             int // changes of the gauges
	promoted, handles, left   int
	outcomes                  [observe.Left]int
	entries, received, sentTo int64
	ended                     []ending
}

// An ending has the values of a call for histograms.
type ending struct {
	seconds     float64
	connections int
	trace       string // id of the trace, if the trace is recorded
}

// mostEndings is how many ended calls a tally has before it is added to the figures, if no scrape
// comes before.
const mostEndings = 64

// settle adds the tally to the figures. Its caller holds the lock.
func (s *series) settle() {
	t, server := &s.tally, s.server
	server.light.Add(float64(t.light))
	server.stored.Add(float64(t.stored))
	server.promoted.Add(float64(t.promoted))
	server.handles.Add(float64(t.handles))
	server.left.Add(float64(t.left))
	server.entries.Add(float64(t.entries))
	server.received.Add(float64(t.received))
	server.sentTo.Add(float64(t.sentTo))
	for i, n := range t.outcomes {
		if n > 0 {
			s.outcome(observe.Outcome(i)).Add(float64(n))
			server.outcomes[i].Add(float64(n))
		}
	}
	if len(t.ended) > 0 && s.duration == nil {
		s.duration = s.m.duration.WithLabelValues(s.key.server, s.key.method, s.key.tool)
	}
	exemplars, _ := s.duration.(prometheus.ExemplarObserver)
	for _, e := range t.ended {
		server.conns.Observe(float64(e.connections))
		if e.trace != "" && exemplars != nil {
			exemplars.ObserveWithExemplar(e.seconds, prometheus.Labels{"trace_id": e.trace})
		} else {
			s.duration.Observe(e.seconds)
		}
	}
	clear(t.ended)
	s.tally = tally{ended: t.ended[:0]}
}

// outcome returns the counter of calls with an outcome. Its caller holds the lock.
func (s *series) outcome(o observe.Outcome) prometheus.Counter {
	if s.outcomes[o] == nil {
		s.outcomes[o] = s.m.ended.WithLabelValues(s.key.server, s.key.method, s.key.tool, o.String())
	}
	return s.outcomes[o]
}

// Began implements [observe.Observer].
func (m *Metrics) Began(c *observe.Call, _ []byte) observe.CallObserver {
	s := m.known(seriesKey{c.Server, c.Method, c.Tool})
	if s == nil {
		method, tool := m.tools.labels(c)
		s = m.seriesOf(seriesKey{c.Server, method, tool})
	}
	s.mu.Lock()
	s.tally.light++
	s.mu.Unlock()
	return s
}

// known returns the series with some labels, or nil.
func (m *Metrics) known(k seriesKey) *series { return (*m.series.Load())[k] }

// seriesOf returns the series with some labels, which it makes if needed.
func (m *Metrics) seriesOf(k seriesKey) *series {
	if s := m.known(k); s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.known(k); s != nil {
		return s
	}
	s := &series{m: m, key: k, server: m.servers[k.server]}
	if s.server == nil {
		s.server = &serverSeries{
			light: m.inFlight.WithLabelValues(k.server, "light"), stored: m.inFlight.WithLabelValues(k.server, "stored"),
			promoted: m.stored.WithLabelValues(k.server), handles: m.handles.WithLabelValues(k.server), left: m.left.WithLabelValues(k.server),
			entries: m.entries.WithLabelValues(k.server), received: m.received.WithLabelValues(k.server), sentTo: m.sent.WithLabelValues(k.server),
			conns: m.conns.WithLabelValues(k.server),
		}
		for i, outcome := range observe.Outcomes() {
			s.server.outcomes[i] = m.outcomes.WithLabelValues(k.server, outcome.String())
		}
		m.servers[k.server] = s.server
	}
	all := maps.Clone(*m.series.Load())
	all[k] = s
	m.series.Store(&all)
	return s
}

// settle adds all tallies to the figures.
func (m *Metrics) settle() {
	for _, s := range *m.series.Load() {
		s.mu.Lock()
		s.settle()
		s.mu.Unlock()
	}
}

// Happened implements [observe.CallObserver].
func (s *series) Happened(c *observe.Call, e observe.Event) {
	switch e := e.(type) {
	case observe.Appended: // counted at the end
	case observe.Promoted, observe.BecameTask, observe.HandedOff:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tally.moved(c, e)
	default:
		s.m.read(e)
	}
}

// moved notes that the call has a stream, or goes on behind a handle.
func (t *tally) moved(c *observe.Call, e observe.Event) {
	switch e := e.(type) {
	case observe.Promoted:
		t.light--
		t.stored++
		if !c.Again {
			t.promoted++
		}
	case observe.BecameTask:
		t.handles++
	case observe.HandedOff:
		t.handles++
		if e.Was == 0 {
			t.light--
			t.stored++
		}
	}
}

// Ended implements [observe.CallObserver].
func (s *series) Ended(c *observe.Call, e observe.End) {
	of := c.Trace
	if c.Span != nil {
		of = c.Span.Trace
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tally
	if c.Number() != 0 {
		t.stored--
	} else {
		t.light--
	}
	if e.Outcome == observe.Left {
		t.left++
		return
	}
	t.outcomes[e.Outcome]++
	t.entries += int64(c.Entries())
	t.received += int64(c.BytesIn)
	t.sentTo += c.BytesOut()
	t.ended = append(t.ended, ending{max(e.At.Sub(c.Began), 0).Seconds(), c.Connections(), of.SampledID()})
	if len(t.ended) >= mostEndings {
		s.settle()
	}
}
