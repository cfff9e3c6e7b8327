package process

import (
	"fmt"
	"sync"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// ids replaces ids that the process may not write back unchanged: Node reads
// 9007199254740993 as another number, and Python writes "é" as "\u00e9". The process gets
// a substitute for such an id ([protocol.PlainID]).
type ids struct {
	mu   sync.Mutex
	last int
	open map[string]string // the client's id, by its substitute
}

// outbound returns the text of a message for the process, and the substitute for its id, if
// it has one.
func (s *ids) outbound(in *backend.Inbound) (line []byte, substitute string) {
	switch {
	case in.Kind == jsonrpc.Request && !protocol.PlainID(in.ID):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last++
		substitute = fmt.Sprintf(`"holdfast-id-%d"`, s.last)
		if s.open == nil {
			s.open = make(map[string]string)
		}
		s.open[substitute] = string(in.ID)
		return in.WithID([]byte(substitute)), substitute
	case in.Kind == jsonrpc.Notification && in.Method == "notifications/cancelled":
		return s.cancelled(in), ""
	}
	return in.Raw, ""
}

// cancelled returns a cancellation with the id that the process knows.
func (s *ids) cancelled(in *backend.Inbound) []byte {
	substitute := s.takeOpen(string(jsonrpc.Key(jsonrpc.Field(in.Params, "requestId"))))
	if substitute == "" {
		return in.Raw
	}
	params, _ := jsonrpc.Set(in.Params, []byte(substitute), "requestId")
	return jsonrpc.AppendRequest(nil, nil, in.Method, params)
}

// takeOpen returns the substitute for an id of the client, by its key, and forgets it: nobody waits for
// the answer any more. It is "" if there is none.
func (s *ids) takeOpen(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for substitute, id := range s.open {
		if string(jsonrpc.Key([]byte(id))) == key {
			delete(s.open, substitute)
			return substitute
		}
	}
	return ""
}

// inbound returns a message of the process with the client's id.
func (s *ids) inbound(m jsonrpc.Message) jsonrpc.Message {
	if m.Kind != jsonrpc.Response {
		return m
	}
	s.mu.Lock()
	id, ok := s.open[string(m.ID)]
	delete(s.open, string(m.ID))
	s.mu.Unlock()
	if ok {
		m.Raw = m.WithID([]byte(id))
		m.ID = []byte(id)
	}
	return m
}

// forget removes a substitute that the process did not get.
func (s *ids) forget(substitute string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, substitute)
}
