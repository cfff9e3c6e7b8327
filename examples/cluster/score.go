package main

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"holdfast"
)

// A score counts what happens to the calls. Clients report the messages that they receive. Tools
// report by HTTP that they begin to run.
type score struct {
	mu             sync.Mutex
	calls          map[string]*call
	kills          int
	made, answered int
	unknown        int // ended with "outcome unknown"
	lost, doubled  int
	again          int           // calls with a tool that is safe to retry and has run again
	gap            time.Duration // the longest time without a message of a call
	why            []string
}

// A call is the state of one call.
type call struct {
	safe bool // its tool may run again
	runs int
	last float64   // progress
	at   time.Time // of the last message
}

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

// ServeHTTP counts a run of a tool.
func (s *score) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	id, err := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[string(id)]; err == nil && c != nil {
		c.runs++
	}
}

// progress counts a progress notification.
func (s *score) progress(id string, value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	switch {
	case value == c.last+1:
	case value == 1 && c.safe: // it runs again
	case value <= c.last:
		s.doubled++
		s.why = append(s.why, fmt.Sprintf("%s: progress %v came after %v", id, value, c.last))
	default:
		s.lost++
		s.why = append(s.why, fmt.Sprintf("%s: progress %v came after %v", id, value, c.last))
	}
	c.last = value
	s.silent(c)
}

// silent measures the time since the last message of a call. s.mu is held.
func (s *score) silent(c *call) {
	s.gap = max(s.gap, time.Since(c.at))
	c.at = time.Now()
}

// end counts the end of a call.
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

// judge counts the runs of each call, when all calls have ended.
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
%6d  were answered, %d of them after their tool, which is annotated as safe to retry, has run again
%6d  ended with "outcome unknown": their node died, and their tool is not annotated as safe to retry
%6d  were lost
%6d  were doubled
%5.1f s  is the longest time without a message of a call
`, s.kills, s.made, s.answered, s.again, s.unknown, s.lost, s.doubled, s.gap.Seconds())
	for i, w := range s.why {
		if i == 10 {
			break
		}
		text += w + "\n"
	}
	return text
}
