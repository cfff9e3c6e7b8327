package bridge

import (
	"encoding/json"
	"time"

	"holdfast/client"
)

// A sessionRecord is the JSON in which a session is kept. See [store] for the files.
//
// Builds of holdfast that run side by side read each other's records. A member is never
// renamed and never gets another meaning; an unknown member is ignored.
type sessionRecord struct {
	fingerprint              // of the host's initialize or server/discover request
	Alive       time.Time    `json:"alive"`            // when the record was written
	Modern      bool         `json:"modern,omitempty"` // there is no session: the calls are of revision 2026-07-28 or later
	Conn        client.State `json:"conn"`             // without its calls
	Calls       []callRecord `json:"calls,omitempty"`
}

// A callRecord is the JSON of a call that must not run twice. It has Place or Answer.
type callRecord struct {
	ID          json.RawMessage `json:"id"` // at the server
	Method      string          `json:"method"`
	fingerprint                 // of the request
	// Left is when the host left the call. Zero: the host waits for the response, or the
	// process ended without notice.
	Left   time.Time         `json:"left,omitzero"`
	Place  *client.CallState `json:"place,omitempty"`  // the call's place at the server
	Answer json.RawMessage   `json:"answer,omitempty"` // the response, which no host has taken
	// Task is when the call became a task; the task's id names the call. Zero: it has not.
	Task time.Time `json:"task,omitzero"`
}

// usable reports whether the record is enough to continue the call.
func (c *callRecord) usable() bool { return c.Answer != nil || c.Place != nil }

// leftAt returns when the host left a call of the session. ended says that the process that
// wrote the record has ended: the host left before that, or then.
func (s *sessionRecord) leftAt(c *callRecord, ended bool) time.Time {
	if c.Left.IsZero() && ended {
		return s.Alive
	}
	return c.Left
}

// repeatable returns the calls that a host may repeat, of a process that has ended.
func (s *sessionRecord) repeatable() (calls []callRecord) {
	for _, c := range s.Calls {
		c.Left = s.leftAt(&c, true)
		if c.usable() && time.Since(c.Left) <= keptFor(c.Task) {
			calls = append(calls, c)
		}
	}
	return calls
}

// preferred reports whether a host that comes back is likelier to have had the session of s
// than that of other: s has calls in flight, or was written later.
func (s *sessionRecord) preferred(other *sessionRecord) bool {
	if some, others := len(s.Calls) > 0, len(other.Calls) > 0; some != others {
		return some
	}
	return s.Alive.After(other.Alive)
}

// keepTask is how long a task is kept after its end, or after its host has left.
const keepTask = time.Hour

// keptFor returns how long a call that no host waits for is kept. task is when it became a
// task, or zero.
func keptFor(task time.Time) time.Duration {
	if task.IsZero() {
		return repeatWithin
	}
	return keepTask
}
