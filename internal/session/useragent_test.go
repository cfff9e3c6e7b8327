package session

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/mcptest"
	"holdfast/internal/revival"
	"holdfast/internal/sessionid"
	"holdfast/internal/whereabouts"
)

// agents are the User-Agents by which hosts were looked for.
type agents struct {
	mu  sync.Mutex
	all []string
}

// host is an [Options.Host].
func (a *agents) host(name, agent string) hosts.Host {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, agent)
	return hosts.Of(name, agent, nil)
}

// limitOf returns how long the host of a session's client waits.
func limitOf(s *Session) (limit time.Duration) {
	locked(s, func() { limit = s.patience.host.Limit })
	return limit
}

// agentRequest is a request with a User-Agent.
func agentRequest(agent string) *http.Request {
	r := newRequest()
	r.Header.Set("User-Agent", agent)
	return r
}

const (
	codeAgent = "claude-code/2"
	codeLimit = 300 * time.Second
)

// A host that is known by the User-Agent with which its session began is known by it at the node that takes the session over, too.
func TestAgentTakenOver(t *testing.T) {
	t.Parallel()
	var told agents
	o := safeTools()
	o.Host = told.host
	f := newShelf()
	a, b := f.add(t, "a", o), f.add(t, "b", o)
	s := mcptest.Must(a.New(agentRequest(codeAgent), caller.Principal{}, false, nil))(t)
	begin(t, s, true, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	a.kill()
	if got := limitOf(b.take(s)); got != codeLimit {
		t.Errorf("the host waits for %v", got)
	}
	if !slices.Equal(told.all, []string{codeAgent, codeAgent}) {
		t.Errorf("the host is told by %q", told.all)
	}
}

// The record of a session has its User-Agent, in part, only if hosts are known by theirs. A record of the last build has none.
func TestAgentRecord(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		var o Options
		if known {
			o.Host = new(agents).host
		}
		f := newShelf()
		a := f.add(t, "a", o)
		s := mcptest.Must(a.New(agentRequest(codeAgent+strings.Repeat("n", 1000)), caller.Principal{}, false, nil))(t)
		is := f.session(s.key)
		if got := mcptest.Must(whereabouts.Parse(*is))(t); len(got.Agent) > longestAgent || strings.HasPrefix(got.Agent, codeAgent) != known {
			t.Errorf("known: %v: the record has the User-Agent %q", known, got.Agent)
		}
		is.About = []byte(`{"id":"` + s.ID() + `"}`)
		if got := mcptest.Must(whereabouts.Parse(*is))(t); got.Agent != "" || got.ID != s.ID() {
			t.Errorf("the record of the last build is read as %v", got)
		}
	}
}

// A session that begins again by its id alone has the User-Agent of the request that revives it. One that wakes has its own, if the host is known by nothing else.
func TestAgentRevived(t *testing.T) {
	t.Parallel()
	const other = "opencode/1"
	for what, test := range map[string]struct {
		name, agent string
		sleeps      bool
		noted       bool
		limit       time.Duration
	}{
		"revived":          {"mcp", other, false, false, codeLimit},
		"woken":            {"mcp", codeAgent, true, true, codeLimit},
		"woken, by a name": {"Gemini-CLI", codeAgent, true, false, 400 * time.Second},
		"woken, unknown":   {"mcp", "curl/8", true, false, codeLimit},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			o := Options{Host: new(agents).host, Revival: revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})}
			by := agentRequest(codeAgent)
			if test.noted {
				by = agentRequest(other)
			}
			if test.sleeps {
				o.SleepAfter, o.Forgets = 50*time.Millisecond, true
			}
			params := `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"` + test.name + `"}}`
			before, after := newHouse(t, o, nil), newHouse(t, o, nil)
			defer after.close()
			s := mcptest.Must(before.New(agentRequest(test.agent), caller.Principal{}, false, []byte(params)))(t)
			begin(t, s, true, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":`+params+`}`)
			if test.sleeps {
				mcptest.Eventually(t, "the session to sleep", time.Minute, func() bool { return before.Sessions() == 0 })
			}
			before.close()
			if note := mcptest.Must(o.Revival.Noted(t.Context(), s.key))(t); (note != nil) != test.noted {
				t.Errorf("the note is %q", note)
			}
			revived := mcptest.Must(after.Revive(t.Context(), s.ID(), caller.Principal{}, by, ""))(t)
			if got := limitOf(revived); got != test.limit {
				t.Errorf("the host waits for %v, not %v", got, test.limit)
			}
		})
	}
}

// A session that was revived in a store that nodes share is taken over with the User-Agent of the request that revived it, also if its owner had noted nothing.
func TestAgentRevivedShared(t *testing.T) {
	t.Parallel()
	for _, noted := range []bool{false, true} {
		o := Options{Host: new(agents).host, Revival: revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})}
		lost, f := newShelf(), newShelf()
		was := lost.add(t, "a", o)
		s := mcptest.Must(was.New(agentRequest("curl/8"), caller.Principal{}, false, []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`)))(t)
		was.kill()
		a, b := f.add(t, "a", o), f.add(t, "b", o)
		at := mcptest.Must(a.Revivable(t.Context(), s.ID(), caller.Principal{}, agentRequest(codeAgent), ""))(t)
		s = mcptest.Must(a.TakeOver(t.Context(), at))(t)
		if noted {
			s.noteStored(true)
		}
		a.kill()
		if got := limitOf(b.take(s)); got != codeLimit {
			t.Errorf("noted: %v: the host waits for %v", noted, got)
		}
	}
}
