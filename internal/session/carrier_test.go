package session

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A carrier stays for a request that has not begun, however many others come meanwhile; and
// those that nobody uses are ended.
func TestCarrierStaysForItsRequest(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	carrier := func(kind string) *Session {
		s, err := h.Carrier(httptest.NewRequest(http.MethodPost, "/", nil), "alice", protocol.V20260728, []byte(kind))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := carrier("first")
	for i := range 3 * mostCarriers {
		carrier(fmt.Sprint(i)).Release()
	}
	if all := len(h.all()); all > mostCarriers+2 {
		t.Errorf("%d sessions", all)
	}
	if _, err := s.Begin([]jsonrpc.Message{parse(request(1))}, true); err != nil {
		t.Error(err)
	}
	s.Release()
}
