package process

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

// ids are the requests whose id the process is not given as it is. What every
// language reads and writes back unchanged goes through: numbers that fit a
// float64, and ASCII without escapes. Other ids get a stand-in, since Node reads
// 9007199254740993 as another number, and Python writes "é" back as "\u00e9".
type ids struct {
	mu   sync.Mutex
	last int
	open map[string]string // the client's raw id, by the stand-in
}

// plain says whether a raw id comes back from any process as it is.
func plain(id []byte) bool {
	if id[0] != '"' {
		n, err := strconv.ParseInt(string(id), 10, 64)
		return err == nil && n > -1<<53 && n < 1<<53 && string(id) != "-0"
	}
	for _, b := range id {
		if b < ' ' || b > '~' || b == '\\' {
			return false
		}
	}
	return true
}

// outbound returns the line that the process is given for a message, and the
// stand-in that it has in it, if any.
func (s *ids) outbound(in *backend.Inbound) (line []byte, stand string) {
	switch {
	case in.Kind == jsonrpc.Request && !plain(in.ID):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last++
		stand = fmt.Sprintf(`"holdfast-id-%d"`, s.last)
		if s.open == nil {
			s.open = make(map[string]string)
		}
		s.open[stand] = string(in.ID)
		return in.WithID([]byte(stand)), stand
	case in.Kind == jsonrpc.Notification && in.Method == "notifications/cancelled":
		return s.cancelled(in), ""
	}
	return in.Raw, ""
}

// cancelled returns the cancellation of a request under the id that the process
// knows.
func (s *ids) cancelled(in *backend.Inbound) []byte {
	key := string(jsonrpc.Key(jsonrpc.Field(in.Params, "requestId")))
	s.mu.Lock()
	defer s.mu.Unlock()
	for stand, id := range s.open {
		if string(jsonrpc.Key([]byte(id))) != key {
			continue
		}
		delete(s.open, stand) // nobody waits for the answer any more
		params := map[string]json.RawMessage{}
		_ = json.Unmarshal(in.Params, &params) // well-formed: it was parsed
		params["requestId"] = json.RawMessage(stand)
		if text, err := json.Marshal(params); err == nil {
			return jsonrpc.AppendRequest(nil, nil, in.Method, text)
		}
	}
	return in.Raw
}

// inbound returns a message of the process as its client is to see it.
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

// forget takes back a stand-in that the process was not given.
func (s *ids) forget(stand string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, stand)
}
