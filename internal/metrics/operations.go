package metrics

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
	"holdfast/stream"
)

// nodes are the figures of sessions, backends, take-overs, refusals, webhooks and the engine.
type nodes struct {
	sessions      *prometheus.GaugeVec
	begun         *prometheus.CounterVec
	backends      *prometheus.GaugeVec
	opened        *prometheus.HistogramVec
	failed        *prometheus.CounterVec
	revived       *prometheus.CounterVec
	slept, woken  *prometheus.CounterVec
	took          *prometheus.HistogramVec
	again         *prometheus.CounterVec
	refused       *prometheus.CounterVec
	waited        *prometheus.HistogramVec
	webhooks      *prometheus.CounterVec
	engine        *prometheus.HistogramVec
	engineRefused *prometheus.CounterVec
	acted         *prometheus.CounterVec
	noToken       *prometheus.CounterVec
	operations    sync.Map // of the engine, by name: an operation
}

// An operation is an operation of the engine. The series of its errors exist from its first use on: Prometheus sees an
// increase only of a series that existed before.
type operation struct {
	took    prometheus.Observer
	refused map[string]prometheus.Counter // by reason
}

func (m *Metrics) operationOf(name string) *operation {
	if known, ok := m.operations.Load(name); ok {
		return known.(*operation)
	}
	o := &operation{took: m.engine.WithLabelValues(name), refused: make(map[string]prometheus.Counter)}
	for _, reason := range []string{"full", "too_large", "unavailable", other} {
		o.refused[reason] = m.engineRefused.WithLabelValues(name, reason)
	}
	known, _ := m.operations.LoadOrStore(name, o)
	return known.(*operation)
}

func (m *Metrics) newNodes() {
	m.sessions = m.gauge("holdfast_sessions", "Sessions that are open on this node: of clients, or carriers of modern requests.", "server", "kind")
	m.begun = m.counter("holdfast_sessions_total", "Sessions that were opened on this node, those that were taken over included.", "server", "kind")
	m.backends = m.gauge("holdfast_backends", "Conversations with servers that are open: processes, for servers on stdio.", "server")
	m.opened = m.histogram("holdfast_backend_open_seconds", "How long it took to open a conversation, or to fail.", startBuckets, "server")
	m.failed = m.counter("holdfast_backend_errors_total", "Conversations that could not be opened.", "server")
	m.revived = m.counter("holdfast_sessions_revived_total", "Sessions that have begun again on this node of which no node had anything but their ids.")
	m.revived.WithLabelValues()
	m.slept = m.counter("holdfast_sessions_slept_total", "Sessions that have fallen asleep on this node: nothing is kept of them, and their ids wake them.")
	m.slept.WithLabelValues()
	m.woken = m.counter("holdfast_sessions_woken_total", "Sessions that were asleep, and that their clients have woken on the node on which they had fallen asleep.")
	m.woken.WithLabelValues()
	m.took = m.histogram("holdfast_takeover_duration_seconds", "How long it took to take a session of another node over.", startBuckets)
	m.took.WithLabelValues()
	m.again = m.counter("holdfast_takeover_calls_total", "Calls in flight of sessions that were taken over: made again, or ended with outcome_unknown.", "result")
	m.again.WithLabelValues("again")
	m.again.WithLabelValues("outcome_unknown")
	m.refused = m.counter("holdfast_refusals_total", "Requests that were refused before there was a call.", "reason", "status")
	m.waited = m.histogram("holdfast_queue_wait_seconds", "How long calls over a limit have waited for others to end, by what became of them: began, or refused, which includes those whose client has left.", queueBuckets, "result")
	m.waited.WithLabelValues("began")
	m.waited.WithLabelValues("refused")
	m.webhooks = m.counter("holdfast_webhooks_total", "Webhooks, by what became of a try: sent, failed (tried again), given_up, refused, dropped.", "result")
	for _, result := range []string{"sent", "failed", "given_up", "refused", "dropped"} {
		m.webhooks.WithLabelValues(result)
	}
	m.acted = m.counter("holdfast_page_actions_total", "Actions that operators have asked for on the live page, by what became of them: done, failed.", "action", "result")
	m.noToken = m.counter("holdfast_page_refusals_total", "Requests to the live page that were refused for their token: missing, wrong, or limited (too many were wrong).", "reason")
	for _, reason := range []string{"missing", "wrong", "limited"} {
		m.noToken.WithLabelValues(reason)
	}
	m.engine = m.histogram("holdfast_engine_operation_duration_seconds", "How long the engine of the store took to answer.", engineBuckets, "operation")
	m.engineRefused = m.counter("holdfast_engine_errors_total", "What the engine did not do: full, too_large, unavailable, other.", "operation", "reason")
}

// node counts an event of no call and no reader.
func (m *Metrics) node(e observe.Event) {
	switch e := e.(type) {
	case observe.SessionBegan:
		m.sessions.WithLabelValues(e.Server, kindOf(e.Session)).Inc()
		m.begun.WithLabelValues(e.Server, kindOf(e.Session)).Inc()
	case observe.SessionEnded:
		m.sessions.WithLabelValues(e.Server, kindOf(e.Session)).Dec()
	case observe.SessionRevived:
		if e.Woke {
			m.woken.WithLabelValues().Inc()
			return
		}
		m.revived.WithLabelValues().Inc()
	case observe.SessionSlept:
		m.slept.WithLabelValues().Inc()
	case observe.TakenOver:
		m.took.WithLabelValues().Observe(e.Took.Seconds())
		m.again.WithLabelValues("again").Add(float64(e.Again))
		m.again.WithLabelValues("outcome_unknown").Add(float64(e.Unknown))
	case observe.BackendOpened:
		m.opened.WithLabelValues(e.Server).Observe(e.Took.Seconds())
		failed := m.failed.WithLabelValues(e.Server) // exists before the first failure, too
		if e.Err != nil {
			failed.Inc()
			return
		}
		m.backends.WithLabelValues(e.Server).Inc()
	case observe.BackendClosed:
		m.backends.WithLabelValues(e.Server).Dec()
	case observe.Refused:
		m.refused.WithLabelValues(e.Reason, strconv.Itoa(e.Status)).Inc()
	case observe.Waited:
		result := "refused"
		if e.Began {
			result = "began"
		}
		m.waited.WithLabelValues(result).Observe(e.Took.Seconds())
	case observe.WebhookTried:
		m.webhooks.WithLabelValues(e.Result).Inc()
	case observe.PageActed:
		result := "failed"
		if e.Done {
			result = "done"
		}
		m.acted.WithLabelValues(e.Action, result).Inc()
	case observe.PageRefused:
		m.noToken.WithLabelValues(e.Reason).Inc()
	case observe.EngineAsked:
		o := m.operationOf(e.Operation)
		o.took.Observe(e.Took.Seconds())
		if reason := engineError(e.Err); reason != "" {
			o.refused[reason].Inc()
		}
	}
}

func kindOf(s observe.Session) string {
	if s.Carrier {
		return "carrier"
	}
	return "client"
}

// engineError returns the reason that an engine's error counts as; "" for a refusal because another
// node was first, or because the entry does not exist.
func engineError(err error) string {
	switch {
	case err == nil, errors.Is(err, stream.ErrNotFound), errors.Is(err, stream.ErrConflict), errors.Is(err, stream.ErrFenced), errors.Is(err, stream.ErrExists):
		return ""
	case errors.Is(err, stream.ErrFull):
		return "full"
	case errors.Is(err, stream.ErrTooLarge):
		return "too_large"
	case errors.Is(err, stream.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "unavailable"
	}
	return other
}
