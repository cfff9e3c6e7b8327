package process

import (
	"encoding/json"
	"strconv"
	"sync"

	"holdfast/jsonrpc"
	"holdfast/session"
)

// ids are the requests that the process has yet to answer, by the ids that it
// knows them by: small numbers, which any language reads and writes back as they
// are, whatever the client's own look like.
type ids struct {
	mu   sync.Mutex
	last int64
	open map[int64]asked
}

// asked is a request under the id that it came with.
type asked struct {
	id   []byte
	call *session.Call
}

// outbound returns the line that the process is given for a message, and the id
// that it has in it if it is a request.
func (s *ids) outbound(in *session.Inbound) (line []byte, n int64) {
	switch {
	case in.Kind == jsonrpc.Request:
		s.mu.Lock()
		s.last++
		n = s.last
		if s.open == nil {
			s.open = make(map[int64]asked)
		}
		s.open[n] = asked{id: append([]byte(nil), in.ID...), call: in.Call}
		s.mu.Unlock()
		return in.WithID(strconv.AppendInt(nil, n, 10)), n
	case in.Kind == jsonrpc.Notification && in.Method == "notifications/cancelled":
		return s.cancelled(in), 0
	}
	return in.Raw, 0
}

// cancelled returns the cancellation of a request under the id that the process
// knows. Nobody waits for its answer any more.
func (s *ids) cancelled(in *session.Inbound) []byte {
	key := string(jsonrpc.Key(jsonrpc.Field(in.Params, "requestId")))
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, a := range s.open {
		if string(jsonrpc.Key(a.id)) != key {
			continue
		}
		delete(s.open, n)
		params := map[string]json.RawMessage{}
		_ = json.Unmarshal(in.Params, &params) // well-formed: it was parsed
		params["requestId"] = strconv.AppendInt(nil, n, 10)
		text, err := json.Marshal(params)
		if err != nil {
			break
		}
		return jsonrpc.AppendRequest(nil, nil, in.Method, text)
	}
	return in.Raw
}

// inbound returns a message of the process as its client is to see it, and the
// call that it belongs to, if that is known. It is false for a response to
// nothing.
func (s *ids) inbound(m jsonrpc.Message) (jsonrpc.Message, *session.Call, bool) {
	if m.Kind != jsonrpc.Response {
		return m, nil, true
	}
	n, err := strconv.ParseInt(string(m.ID), 10, 64)
	if err != nil {
		n, err = strconv.ParseInt(jsonrpc.String(m.ID), 10, 64) // some turn numbers into strings
	}
	s.mu.Lock()
	a, ok := s.open[n]
	delete(s.open, n)
	s.mu.Unlock()
	if err != nil || !ok {
		return m, nil, false
	}
	m.Raw = m.WithID(a.id)
	m.ID = a.id
	return m, a.call, true
}

// forget takes back a request that the process was not given.
func (s *ids) forget(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, n)
}
