package client

import "testing"

// A session is begun, lost and begun again, which forgets the old session's id, revision and capabilities.
func TestSessionState(t *testing.T) {
	t.Parallel()
	result := []byte(`{"capabilities":{"experimental":{"holdfast/idempotencyKey":{}}}}`)
	var s session
	if s.state != sessionNone {
		t.Errorf("new: state %d", s.state)
	}
	s.begin("2025-11-25", result)
	if s.state != sessionBegun || s.keys {
		t.Errorf("without an id: %+v", s)
	}
	s.id = "a"
	s.begin("2025-11-25", result)
	if s.state != sessionBegun || !s.keys || s.revision != "2025-11-25" {
		t.Errorf("begun: %+v", s)
	}
	s.lose()
	if s != (session{state: sessionLost}) {
		t.Errorf("lost: %+v", s)
	}
	s.id = "b"
	s.begin("2025-06-18", []byte(`{}`))
	if s != (session{id: "b", revision: "2025-06-18", state: sessionBegun}) {
		t.Errorf("begun again: %+v", s)
	}
	s.leave()
	if s != (session{}) {
		t.Errorf("left: %+v", s)
	}
}
