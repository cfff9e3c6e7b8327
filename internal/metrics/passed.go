package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
)

// passed are the figures of exchanges that this node forwards between its clients and other nodes, which have the
// sessions. They have names of their own, as those nodes count the same calls and readers. Without other nodes they have
// no series.
type passed struct {
	reading  *prometheus.GaugeVec
	resumes  *prometheus.CounterVec
	went     *prometheus.CounterVec
	requests *prometheus.CounterVec
	refused  *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

func (m *Metrics) newPassed() {
	p := &m.forwarded
	p.reading = m.gauge("holdfast_forwarded_readers", "Connections of clients of this node that read a stream of a session on another node. That node has them among its holdfast_readers.", "door")
	p.resumes = m.counter("holdfast_forwarded_resumes_total", "Those that went on with a call which another connection had begun.", "door")
	p.went = m.counter("holdfast_forwarded_disconnects_total", "Those that have stopped to read, by why: finished, cut, superseded, disconnected (to come back).", "door", "reason")
	p.requests = m.counter("holdfast_forwarded_requests_total", "Requests of clients of this node that another node has answered, by the status of HTTP; none: the client has left before.", "status")
	p.refused = m.counter("holdfast_forwarded_refusals_total", "Those that the other node has refused before there was a call. That node has them among its holdfast_refusals_total.", "reason", "status")
	p.took = m.histogram("holdfast_forwarded_call_duration_seconds", "How long the client of this node waited for the whole answer to a call in a session on another node, or until it left.", callBuckets)
}

// pass counts an event of forwarding.
func (p *passed) pass(e observe.Event) {
	switch e := e.(type) {
	case observe.StreamPassed:
		p.reading.WithLabelValues(e.Door.String()).Inc()
		if e.Resumes {
			p.resumes.WithLabelValues(e.Door.String()).Inc()
		}
	case observe.StreamPassedOver:
		p.reading.WithLabelValues(e.Door.String()).Dec()
		p.went.WithLabelValues(e.Door.String(), e.Why.String()).Inc()
	case observe.RequestPassed:
		status := "none"
		if e.Status != 0 {
			status = strconv.Itoa(e.Status)
		}
		p.requests.WithLabelValues(status).Inc()
		if e.Refused != "" {
			p.refused.WithLabelValues(e.Refused, status).Inc()
		}
		if e.Begins && e.Refused == "" {
			p.took.WithLabelValues().Observe(e.Took.Seconds())
		}
	}
}
