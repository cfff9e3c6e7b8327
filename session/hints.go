package session

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"holdfast/jsonrpc"
)

// hints is what a session knows of its backend's tools.
type hints struct {
	complete bool            // every tool has been seen
	listed   int             // how often the list has changed
	safe     map[string]bool // tools that say they may be called again
}

// hintsTimeout bounds how long a first call waits to learn of its tool.
const hintsTimeout = 2 * time.Second

// toolList is the part of a tools/list result that matters here.
type toolList struct {
	Tools []struct {
		Name        string `json:"name"`
		Annotations struct {
			ReadOnly   bool `json:"readOnlyHint"`
			Idempotent bool `json:"idempotentHint"`
		} `json:"annotations"`
	} `json:"tools"`
	NextCursor string `json:"nextCursor"`
}

// learn takes in one page of a tools/list result and returns the cursor of the
// next.
func (h *hints) learn(result []byte) (next string) {
	var page toolList
	if json.Unmarshal(result, &page) != nil {
		return ""
	}
	for _, t := range page.Tools {
		if !t.Annotations.ReadOnly && !t.Annotations.Idempotent {
			delete(h.safe, t.Name)
			continue
		}
		if h.safe == nil {
			h.safe = make(map[string]bool)
		}
		h.safe[t.Name] = true
	}
	return page.NextCursor
}

// Light says whether a request may start light: whether asking it again would do
// no harm. For a tool that is not known yet the backend's list is read, once.
func (s *Session) Light(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	if m.Method != "tools/call" {
		return true
	}
	name := jsonrpc.String(jsonrpc.Field(m.Params, "name"))
	if s.m.opts.Safe != nil && s.m.opts.Safe(name) {
		return true
	}
	s.mu.Lock()
	safe, complete, l := s.hints.safe[name], s.hints.complete, s.link
	usable := l != nil && l.conn != nil && s.revision != ""
	s.mu.Unlock()
	if safe || complete || !usable {
		return safe
	}
	s.learnAll(ctx, l, header)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hints.safe[name]
}

// learnAll reads the backend's whole list of tools.
func (s *Session) learnAll(ctx context.Context, l *link, header http.Header) {
	wait, stop := context.WithTimeout(ctx, hintsTimeout)
	defer stop()
	in := Inbound{Context: context.WithoutCancel(ctx), Header: header}
	s.mu.Lock()
	all := hints{listed: s.hints.listed}
	s.mu.Unlock()
	params := []byte("{}")
	for range 100 { // pages; a server that has no last one is not believed
		m, err := s.ask(wait, l, "tools/list", params, in)
		if err != nil {
			s.m.logger.Debug("tools not listed", "session", s.Name(), "error", err)
			if ctx.Err() != nil {
				return // its client has left, and another may ask
			}
			break
		}
		cursor := all.learn(m.Result)
		if cursor == "" {
			break
		}
		params, _ = json.Marshal(map[string]string{"cursor": cursor})
	}
	all.complete = true
	s.mu.Lock()
	defer s.mu.Unlock()
	if all.listed == s.hints.listed { // else it is an old list
		s.hints = all
	}
}
