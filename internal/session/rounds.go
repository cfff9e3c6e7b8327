package session

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file is for watched calls of modern servers. Such a server asks by a result, after which it wants the
// request again, with the answers (2026-07-28, Multi Round-Trip Requests). A watched call does not end with such
// a result: its client is asked as by a server that asks while the call runs, and the request is made again here.

// mostRounds bounds how often a request is made again.
const mostRounds = 20

// rounds have the request of a watched call, to make it again.
type rounds struct {
	request jsonrpc.Message
	header  http.Header
	made    int // guarded by Session.mu
}

// A round is one result by which the server asks.
type round struct {
	c     *Call
	of    *rounds
	state []byte // requestState, as JSON, or nil

	mu     sync.Mutex
	inputs map[string][]byte // the client's answers so far
	open   int               // questions without an answer
}

// newRounds returns the rounds of a request. Its client may have made it again itself: the input in it is left out.
func newRounds(m *jsonrpc.Message, header http.Header) *rounds {
	request := *m
	if jsonrpc.Field(m.Params, "inputResponses") != nil || jsonrpc.Field(m.Params, "requestState") != nil {
		request.Params = protocol.Without(m.Params, "inputResponses", "requestState")
	}
	return &rounds{request: request, header: header}
}

// asksInRounds reports whether a response of the backend asks the client of a watched call, and if so, asks.
// The request stays in flight.
func (l *link) asksInRounds(call *Call, m *jsonrpc.Message) bool {
	s := l.s
	if s.modern == "" || !s.Watched.WereUsed() || jsonrpc.String(jsonrpc.Field(m.Result, "resultType")) != protocol.ResultInputRequired {
		return false
	}
	mayNot := s.carrier.checkInput(m.ID, m) != nil
	type input struct {
		name, method string
		params       []byte
	}
	var asked []input
	jsonrpc.Each(jsonrpc.Field(m.Result, "inputRequests"), func(name, value []byte) {
		if len(asked) <= mostServerRequests { // more than those cannot be asked
			asked = append(asked, input{string(name), jsonrpc.String(jsonrpc.Field(value, "method")), jsonrpc.Field(value, "params")})
		}
	})
	s.mu.Lock()
	rq := s.requests.at("", m.ID)
	if l.over || rq == nil || call != nil && rq.call != call || rq.call.record == nil || rq.call.record.rounds == nil {
		s.mu.Unlock()
		return false
	}
	c, of := rq.call, rq.call.record.rounds
	if mayNot {
		s.mu.Unlock()
		return false // the call ends with this response
	}
	of.made++
	var requests [][]byte
	var ids []int64
	w := &round{c: c, of: of, state: bytes.Clone(jsonrpc.Field(m.Result, "requestState")), inputs: make(map[string][]byte)}
	full := of.made > mostRounds
	for _, q := range asked {
		if full = full || s.asked.len() >= mostServerRequests; full {
			break
		}
		id := s.asked.add(serverRequest{link: l, call: c, round: w, name: q.name}, s.lease.Epoch)
		ids, requests = append(ids, id), append(requests, jsonrpc.AppendRequest(nil, s.askedID(c, id), q.method, q.params))
		w.open++
	}
	made := of.made
	s.mu.Unlock()
	if full {
		for _, id := range ids { // the client is not asked
			s.asked.take(id)
		}
		failAll(s.requests.takeCall(c), jsonrpc.Errorf(jsonrpc.CodeServer, "%s: the server asks for input again and again", c.method))
		return true
	}
	for i, q := range requests {
		if !c.emit(q, true) { // the call has ended just now
			s.asked.take(ids[i])
		}
	}
	if len(requests) == 0 { // the server's load is too high
		w.later(min(50*time.Millisecond<<made, 5*time.Second))
	}
	return true
}

// answered takes the client's answer to a question of the round.
func (w *round) answered(name string, m *jsonrpc.Message) {
	if m.Error != nil { // an input cannot be an error
		failAll(w.c.s.requests.takeCall(w.c), jsonrpc.Errorf(jsonrpc.CodeServer, "the client could not answer the server's question %q: %.200s", name,
			jsonrpc.String(jsonrpc.Field(m.Error, "message"))))
		return
	}
	result := bytes.Clone(m.Result) // without the body around it
	w.mu.Lock()
	w.inputs[name] = result
	w.open--
	last := w.open == 0
	w.mu.Unlock()
	if last {
		w.later(0)
	}
}

// later makes the request again, after a time.
func (w *round) later(after time.Duration) {
	m := w.c.s.m
	m.work.Go(func() {
		if m.work.Pause(after) {
			w.again()
		}
	})
}

// again makes the request again, with the client's answers.
func (w *round) again() {
	request := w.of.request
	params := request.Params
	if len(w.inputs) > 0 {
		inputs := []byte{'{'}
		for _, name := range slices.Sorted(maps.Keys(w.inputs)) {
			inputs = protocol.AppendMember(inputs, name, w.inputs[name])
		}
		params, _ = jsonrpc.Set(params, append(inputs, '}'), "inputResponses")
	}
	if w.state != nil {
		params, _ = jsonrpc.Set(params, w.state, "requestState")
	}
	again, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, request.ID, request.Method, params))
	if err != nil {
		failAll(w.c.s.requests.takeCall(w.c), jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error: %v", err))
		return
	}
	w.c.deliverOne(w.c.s.m.work.Context(), again, w.of.header, notDelivered)
}
