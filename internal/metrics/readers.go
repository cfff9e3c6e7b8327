package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
)

// readers are the figures of connections that read streams.
type readers struct {
	reading  []prometheus.Gauge   // by door
	resumes  []prometheus.Counter // by door; nil for doors that resume nothing
	replayed []prometheus.Counter
	went     [][]prometheus.Counter // by door and reason
}

func (m *Metrics) newReaders() {
	reading := m.gauge("holdfast_readers", "Connections that read a stream, by the door through which they came.", "door")
	resumes := m.counter("holdfast_resumes_total", "Connections that went on with a call which another connection had begun, by the door through which they came.", "door")
	replayed := m.counter("holdfast_replayed_messages_total", "Messages that such a connection was sent, and that were stored before it came.", "door")
	went := m.counter("holdfast_disconnects_total", "Connections that have stopped to read a stream, by why: finished, cut, superseded, disconnected (to come back), moved.", "door", "reason")
	for _, door := range observe.Doors() {
		m.reading = append(m.reading, reading.WithLabelValues(door.String()))
		var again, sent prometheus.Counter
		if door.Resumes() {
			again, sent = resumes.WithLabelValues(door.String()), replayed.WithLabelValues(door.String())
		}
		m.resumes, m.replayed = append(m.resumes, again), append(m.replayed, sent)
		var of []prometheus.Counter
		for _, why := range observe.Whys() {
			of = append(of, went.WithLabelValues(door.String(), why.String()))
		}
		m.went = append(m.went, of)
	}
}

// read counts an event of a reader.
func (m *Metrics) read(e observe.Event) {
	switch e := e.(type) {
	case observe.ReaderCame:
		m.reading[e.Door].Inc()
		if c := m.resumes[e.Door]; c != nil && e.Number != 0 {
			c.Inc()
		}
	case observe.ReaderWent:
		m.reading[e.Door].Dec()
		m.went[e.Door][e.Why].Inc()
		if c := m.replayed[e.Door]; c != nil && e.Number != 0 {
			c.Add(float64(e.Replayed))
		}
	}
}
