package translate

import (
	"sync"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A relay is a modern conversation with a modern server that sends all messages over one
// connection. Such a server does not say to which request a message belongs, but clients share
// the conversation. The relay finds the request: by the progress token, which it replaces, by
// the name of the subscription, or, for log messages, by the levels that the requests in flight
// want. It is the [backend.Conn] of Holdfast and the [backend.Sink] of the server.
type relay struct {
	sink backend.Sink
	conn backend.Conn // set before a message is delivered

	mu       sync.Mutex
	inFlight map[string]*request // by the keys of their ids
	tokens   map[string]*request // by the tokens that the server knows them by
}

// Account implements [budget.Accounted].
func (r *relay) Account() budget.Account { return budget.Of(r.sink) }

func newRelay(sink backend.Sink) *relay {
	return &relay{sink: sink, inFlight: make(map[string]*request), tokens: make(map[string]*request)}
}

// Deliver implements [backend.Conn].
func (r *relay) Deliver(in backend.Inbound) error {
	in = r.outgoing(in)
	err := r.conn.Deliver(in)
	if err != nil && in.Kind == jsonrpc.Request {
		r.end(in.ID)
	}
	return err
}

// outgoing notes a client's request or its cancellation, and returns a message as the server gets it.
func (r *relay) outgoing(in backend.Inbound) backend.Inbound {
	switch {
	case in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled:
		r.end(jsonrpc.Field(in.Params, "requestId"))
		return in
	case in.Kind != jsonrpc.Request:
		return in
	}
	m := readMeta(in.Params)
	level, ok := levelOf(m.logLevel)
	if !ok {
		level = noLevel // the server says what is wrong
	}
	rq := &request{id: in.ID, call: in.Call, method: in.Method, token: m.token, level: level}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight[key(in.ID)] = rq
	if m.token == nil {
		return in
	}
	rq.ours = string(NewToken())
	r.tokens[rq.ours] = rq
	params, _ := jsonrpc.Set(in.Params, []byte(rq.ours), "_meta", progressToken)
	in.Message = newRequest(in.ID, in.Method, params)
	return in
}

// end forgets the request with an id.
func (r *relay) end(id []byte) *request {
	r.mu.Lock()
	defer r.mu.Unlock()
	rq := r.inFlight[key(id)]
	if rq != nil {
		delete(r.inFlight, key(id))
		delete(r.tokens, rq.ours)
	}
	return rq
}

// Close implements [backend.Conn].
func (r *relay) Close() error { return r.conn.Close() }

// Closed implements [backend.Sink].
func (r *relay) Closed(why error, reopen bool) { r.sink.Closed(why, reopen) }

// EmitUnrelated implements [backend.Sink].
func (r *relay) EmitUnrelated(m jsonrpc.Message) { r.Emit(nil, m) }

// Emit implements [backend.Sink].
func (r *relay) Emit(of backend.Call, m jsonrpc.Message) {
	switch {
	case m.Kind == jsonrpc.Response:
		r.end(m.ID)
		r.sink.Emit(of, m)
	case m.Kind == jsonrpc.Request:
		r.sink.Emit(of, m)
	case m.Method == protocol.MethodProgress:
		r.progressed(m)
	case m.Method == protocol.MethodCancelled:
		r.cancelled(m)
	case m.Method == protocol.MethodLog:
		r.logged(of, m)
	default:
		r.notified(of, m)
	}
}

// progressed takes a progress notification to the request that has its token.
func (r *relay) progressed(m jsonrpc.Message) {
	r.mu.Lock()
	rq := r.tokens[key(jsonrpc.Field(m.Params, progressToken))]
	r.mu.Unlock()
	if rq != nil {
		params, _ := jsonrpc.Set(m.Params, rq.token, progressToken)
		r.sink.Emit(rq.call, newRequest(nil, m.Method, params))
	}
}

// cancelled ends a listen that the server has cancelled (2026-07-28, stdio): its client
// gets the result. Any other request stays in flight, as the server has to answer it.
func (r *relay) cancelled(m jsonrpc.Message) {
	id := jsonrpc.Field(m.Params, "requestId")
	r.mu.Lock()
	rq := r.inFlight[key(id)]
	r.mu.Unlock()
	if rq == nil || rq.method != protocol.MethodSubscriptions || r.end(id) == nil {
		return
	}
	result, _ := jsonrpc.Set([]byte("{}"), rq.id, "_meta", protocol.MetaSubscriptionID)
	r.sink.Emit(rq.call, newResult(rq.id, modernResult(rq.method, result, nil)))
}

// logged takes a log message to the requests that want it, as [legacyServer.logged] does.
func (r *relay) logged(of backend.Call, m jsonrpc.Message) {
	r.mu.Lock()
	wanted := loggedTo(r.inFlight, of, m)
	r.mu.Unlock()
	for _, call := range wanted {
		r.sink.Emit(call, m)
	}
}

// only returns the call of the only request in flight that is no listen, or nil.
func (r *relay) only() (only backend.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rq := range r.inFlight {
		switch {
		case rq.call == nil || rq.method == protocol.MethodSubscriptions:
		case only != nil:
			return nil
		default:
			only = rq.call
		}
	}
	return only
}

// notified takes any other notification to the listen that it names, or to the only request that it can be about.
func (r *relay) notified(of backend.Call, m jsonrpc.Message) {
	if id := jsonrpc.Field(m.Params, "_meta", protocol.MetaSubscriptionID); id != nil {
		r.mu.Lock()
		rq := r.inFlight[key(id)]
		r.mu.Unlock()
		if rq == nil || rq.method != protocol.MethodSubscriptions {
			return // it has ended, or is no listen
		}
		of = rq.call
	}
	if of == nil {
		of = r.only()
	}
	r.sink.Emit(of, m)
}
