package main

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"holdfast"
)

// A score is what became of the calls. Its clients tell it what they hear, and the
// tools, over HTTP, when they begin to run.
type score struct {
	mu             sync.Mutex
	calls          map[string]*call
	kills          int
	made, answered int
	unknown        int // told that nobody knows whether the tool did its work
	lost, doubled  int
	again          int           // answered after their tool was run again, which may be
	gap            time.Duration // the longest that a client heard nothing of a call
	why            []string
}

// A call is one of them.
type call struct {
	safe bool // its tool may run again
	runs int
	last float64   // progress
	at   time.Time // of the last word
}

func newScore() *score { return &score{calls: make(map[string]*call)} }

func (s *score) killed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills++
}

func (s *score) begin(id string, safe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	s.calls[id] = &call{safe: safe, at: time.Now()}
}

// ServeHTTP takes note of a run.
func (s *score) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	id, err := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[string(id)]; err == nil && c != nil {
		c.runs++
	}
}

// heard takes note of a progress notification.
func (s *score) heard(id string, progress float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	switch {
	case progress == c.last+1:
	case progress == 1 && c.safe: // it runs again
	case progress <= c.last:
		s.doubled++
		s.why = append(s.why, fmt.Sprintf("%s: progress %v came after %v", id, progress, c.last))
	default:
		s.lost++
		s.why = append(s.why, fmt.Sprintf("%s: progress %v came after %v", id, progress, c.last))
	}
	c.last = progress
	s.silent(c)
}

// silent takes note of how long a client has heard nothing. s.mu is held.
func (s *score) silent(c *call) {
	s.gap = max(s.gap, time.Since(c.at))
	c.at = time.Now()
}

// end takes note of a call's end.
func (s *score) end(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	s.silent(c)
	switch {
	case err == nil:
		s.answered++
	case holdfast.OutcomeUnknown(err) && !c.safe:
		s.unknown++
	default:
		s.lost++
		s.why = append(s.why, fmt.Sprintf("%s: %v", id, err))
	}
}

// judge counts runs, when all calls have ended.
func (s *score) judge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.calls {
		switch {
		case c.runs > 1 && c.safe:
			s.again++
		case c.runs > 1:
			s.doubled++
			s.why = append(s.why, fmt.Sprintf("%s ran %d times", id, c.runs))
		}
	}
}

func (s *score) line() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("nodes killed %d   calls %d   answered %d   outcome unknown %d   lost %d   doubled %d   longest silence %.1f s",
		s.kills, s.made, s.answered, s.unknown, s.lost, s.doubled, s.gap.Seconds())
}

func (s *score) report() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(`
%6d  nodes were killed
%6d  calls were made
%6d  were answered, %d of them after their tool was run again, which it says is safe
%6d  were told that their outcome is unknown: their node died, and their tool does not say that it may run again
%6d  were lost
%6d  were doubled
%5.1f s  is the longest that a client heard nothing of a call
`, s.kills, s.made, s.answered, s.again, s.unknown, s.lost, s.doubled, s.gap.Seconds())
	for i, w := range s.why {
		if i == 10 {
			break
		}
		text += w + "\n"
	}
	return text
}
