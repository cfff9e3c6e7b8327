// Package servers is one backend for all servers of a configuration file: the server's name
// says which one answers a session (docs/decisions/0025-many-servers.md). The file may change
// while they are in use.
package servers

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/config"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/merge"
	front "holdfast/internal/server"
	"holdfast/internal/translate"
)

// A Set is the servers of a file. It is a [backend.Backend] that is given to one handler. Its
// methods may be called concurrently.
type Set struct {
	log  *slog.Logger
	wait sync.WaitGroup // servers that are being closed

	mu       sync.Mutex // held while servers are changed
	versions uint64     // of servers, so far
	watchers []func()
	closed   bool
	serverOf func(ctx context.Context, session string) (server string, ok bool) // nil until there is a handler

	table  atomic.Pointer[table]
	merge  *merge.Backend
	merged backend.Backend // merge, in both eras
}

// table is the servers at one time. It is not changed.
type table struct {
	byName  map[string]*server
	routes  map[string]route // by path
	order   []*server
	merged  uint64 // the version of all servers as one; 0: they are not served so
	since   uint64 // the version that merged had when they began to be served so
	limited bool   // there are limits
	hosts   []hosts.Rule
}

// A route has the servers of a path.
type route struct {
	place          // of the present server; its server is "" if there is none any more
	former []place // of other servers that were at the path, the latest first: sessions that were begun there go on there
}

// A place is a server at a path.
type place struct {
	server string // its name
	// For clients of revision 2024-11-05: the paths of the stream that they read, and that
	// they post to; else "".
	stream, pair string
}

// New returns the servers of a file. The logger may be nil. The caller must call [Set.Close],
// after the handler's Shutdown.
func New(file *config.File, log *slog.Logger) *Set {
	s := &Set{log: log}
	if log == nil {
		s.log = slog.Default()
	}
	s.table.Store(&table{})
	s.merge = merge.New(s.members, s.log)
	s.merged = translate.New(s.merge, s.log)
	s.Apply(file)
	return s
}

// A Change says what [Set.Apply] has done, by the names of servers.
type Change struct{ Added, Changed, Removed, Kept []string }

// Apply replaces the file. A server that runs as before keeps its sessions and its processes;
// other settings of it hold from now on. The sessions of a server that runs differently go on
// in a new process as soon as they have nothing in flight. The sessions of a server that was
// removed end when their calls have ended. A server that is left out goes on as it ran before.
func (s *Set) Apply(file *config.File) Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	var did Change
	if s.closed {
		return did
	}
	was := s.table.Load()
	before := s.membersOf(was)
	next := &table{byName: make(map[string]*server), routes: make(map[string]route), hosts: file.Hosts}
	var retired, removed []*server
	relisted := false // a server that runs as before has other tools for clients
	for _, conf := range file.Servers {
		old := was.byName[conf.Name]
		switch {
		case old != nil && old.runsLike(conf):
			relisted = relisted || !listsLike(old.conf.Load(), conf)
			shows := showsLike(old.conf.Load(), conf)
			old.conf.Store(conf)
			if !shows {
				s.versions++
				old.lists.Store(s.versions)
			}
			next.add(old)
			did.Kept = append(did.Kept, conf.Name)
			continue
		case old != nil:
			retired = append(retired, old)
			did.Changed = append(did.Changed, conf.Name)
		default:
			did.Added = append(did.Added, conf.Name)
		}
		s.versions++
		now := newServer(conf, s.versions, s.log)
		now.before.Store(old)
		next.add(now)
	}
	for _, one := range next.order {
		one.ruleBefore()
	}
	for _, out := range file.LeftOut { // a server that ran goes on as it was
		if old := was.byName[out.Name]; old != nil {
			if _, taken := next.routes[old.conf.Load().Path]; !taken {
				next.add(old)
				did.Kept = append(did.Kept, old.name)
			}
		}
	}
	for _, old := range was.order {
		if next.byName[old.name] == nil {
			removed = append(removed, old)
			did.Removed = append(did.Removed, old.name)
		}
	}
	if file.Merge {
		next.serve(config.MergedPath, config.MergedName)
		if next.merged, next.since = was.merged, was.since; was.merged == 0 || !slices.Equal(before, s.membersOf(next)) {
			s.versions++
			next.merged = s.versions
		}
		if was.merged == 0 {
			next.since = next.merged
		}
	}
	next.inherit(was)
	s.table.Store(next)
	for _, old := range retired {
		now := next.byName[old.name]
		s.wait.Go(func() {
			old.retire()
			now.before.CompareAndSwap(old, old.before.Load()) // the server before that may have calls yet
		})
	}
	for _, old := range removed {
		s.wait.Go(func() {
			old.retire()
			s.forget(old.name)
		})
	}
	if was.merged != 0 && next.merged == 0 {
		time.AfterFunc(forgetMerged, func() { s.forget(config.MergedName) })
	}
	if was.merged != next.merged || relisted && next.merged != 0 {
		s.merge.Changed()
	}
	for _, changed := range s.watchers {
		changed()
	}
	return did
}

// forgetMerged is how long the path of all servers as one stays when they are not served so any more, for clients that come
// back for their calls: a moment longer than their sessions go on.
const forgetMerged = 35 * time.Second

// forget removes the routes of a removed server.
func (s *Set) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.table.Load()
	if next.byName[name] != nil || name == config.MergedName && next.merged != 0 {
		return // it is there again
	}
	next.routes = make(map[string]route)
	for at, to := range s.table.Load().routes {
		to.former = slices.DeleteFunc(slices.Clone(to.former), func(p place) bool { return p.server == name })
		if to.server != "" || len(to.former) > 0 {
			next.routes[at] = to
		}
	}
	s.table.Store(&next)
}

// ruleBefore applies the server's lists of allowed tools to the former servers of its name, too: calls end there,
// and others may begin until they have.
func (s *server) ruleBefore() {
	now := s.conf.Load()
	for old := s.before.Load(); old != nil; old = old.before.Load() {
		conf := *old.conf.Load()
		conf.Allow, conf.Deny = now.Allow, now.Deny
		old.conf.Store(&conf)
	}
}

func (t *table) add(s *server) {
	t.byName[s.name] = s
	t.order = append(t.order, s)
	t.limited = t.limited || isLimited(s.conf.Load())
	t.serve(s.conf.Load().Path, s.name)
}

// serve adds an endpoint, and beside it the pair of revision 2024-11-05.
func (t *table) serve(at, name string) {
	t.routes[at] = route{place: place{server: name}}
	dir := path.Dir(at)
	pair := place{server: name, stream: path.Join(dir, "sse"), pair: path.Join(dir, "messages")}
	for _, p := range []string{pair.stream, pair.pair} {
		if _, taken := t.routes[p]; !taken {
			t.routes[p] = route{place: pair}
		}
	}
}

// mostFormer bounds the servers that were at a path and are remembered there.
const mostFormer = 8

// inherit keeps the former paths of servers that are elsewhere now or were removed: their clients come back there for their
// calls, and know no other path.
func (t *table) inherit(was *table) {
	for at, to := range was.routes {
		next := t.routes[at]
		for _, p := range append([]place{to.place}, to.former...) {
			known := p.server == next.server || slices.ContainsFunc(next.former, func(f place) bool { return f.server == p.server })
			if p.server != "" && !known && len(next.former) < mostFormer {
				next.former = append(next.former, p)
			}
		}
		if next.server != "" || len(next.former) > 0 {
			t.routes[at] = next
		}
	}
}

// present returns the place of the server that is at the path, or of the last one that was.
func (to route) present() place {
	if to.server == "" && len(to.former) > 0 {
		return to.former[0]
	}
	return to.place
}

// has reports whether a place is at the path, or was.
func (to route) has(p place) bool { return to.place == p || slices.Contains(to.former, p) }

// choose returns the place that a request is for, by the session that it names.
func (s *Set) choose(to route, r *http.Request) place {
	s.mu.Lock()
	serverOf := s.serverOf
	s.mu.Unlock()
	if serverOf == nil || to.server == "" && len(to.former) == 1 {
		return to.present()
	}
	for _, session := range front.SessionsNamed(r) {
		server, ok := serverOf(r.Context(), session)
		if i := slices.IndexFunc(to.former, func(p place) bool { return p.server == server }); ok && i >= 0 {
			return to.former[i]
		}
	}
	return to.present()
}

// AskSessions sets the function that returns the server of a session. The session manager calls it.
func (s *Set) AskSessions(serverOf func(ctx context.Context, session string) (server string, ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serverOf = serverOf
}

// An Entry is a server, or all servers as one.
type Entry struct{ Name, Path string }

// List returns the servers that are served, in the order of the file; all servers as one come first.
func (s *Set) List() (all []Entry) {
	t := s.table.Load()
	if t.merged != 0 {
		all = append(all, Entry{"all servers as one", config.MergedPath})
	}
	for _, one := range t.order {
		all = append(all, Entry{one.name, one.conf.Load().Path})
	}
	return all
}

// Eras implements [backend.EraSpeaker]: each server is translated by itself.
func (s *Set) Eras() backend.Eras { return backend.Both }

// Processes implements [backend.ProcessStarter].
func (s *Set) Processes() bool { return true }

// Open implements [backend.Backend]. The server is the one that start names.
func (s *Set) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	t := s.table.Load()
	one := t.byName[start.Server]
	switch {
	case start.Server == config.MergedName && t.merged != 0:
		return s.merged.Open(ctx, start, sink)
	case one == nil:
		return nil, backend.ErrNoServer
	}
	return one.Open(ctx, start, sink)
}

// Server says how sessions of a server are treated: see package session. A client's conversation with
// all servers as one goes on with other members ([merge.Backend.Changed]). A conversation that
// carries modern requests is replaced: clients that come later discover the servers in it.
func (s *Set) Server(name string, carrier bool) (version uint64, stopIdle time.Duration) {
	t := s.table.Load()
	if one := t.byName[name]; one != nil {
		return one.version, one.conf.Load().StopIdle
	}
	if name != config.MergedName {
		return 0, 0
	}
	version = t.since
	if carrier {
		version = t.merged
	}
	for _, one := range t.order { // a conversation with all is silent when each may be stopped
		each := one.conf.Load().StopIdle
		if each == 0 {
			return version, 0
		}
		stopIdle = max(stopIdle, each)
	}
	return version, stopIdle
}

// Lists returns a number that changes when clients of a server must hear that its lists have changed: with its settings, and when
// it runs differently. All servers as one tell their clients themselves.
func (s *Set) Lists(name string) uint64 {
	if one := s.table.Load().byName[name]; one != nil {
		return one.lists.Load()
	}
	return 0
}

// StartsProcess reports whether each session of a server has a process of its own: not a server
// over HTTP, and not one that its sessions share.
func (s *Set) StartsProcess(name string) bool {
	t := s.table.Load()
	if name != config.MergedName {
		one := t.byName[name]
		return one != nil && one.startsProcess()
	}
	return slices.ContainsFunc(t.order, (*server).startsProcess)
}

// SafeTool reports whether a tool of a server may be called again.
func (s *Set) SafeTool(name, tool string) bool {
	t := s.table.Load()
	if name == config.MergedName {
		members := s.membersOf(t)
		i, own, ok := merge.Route(members, tool)
		if !ok {
			return false
		}
		name, tool = members[i].Name, own
	}
	one := t.byName[name]
	return one != nil && one.safe(tool)
}

// members returns the members of all servers as one.
func (s *Set) members() []merge.Member { return s.membersOf(s.table.Load()) }

func (s *Set) membersOf(t *table) []merge.Member {
	all := make([]merge.Member, len(t.order))
	for i, one := range t.order {
		conf := one.conf.Load()
		all[i] = merge.Member{Name: one.name, Backend: one, Prefix: conf.MergedPrefix(), Prefixed: conf.Prefix != nil, TakesToken: conf.Auth.Passthrough,
			OwnCredentials: !conf.Auth.Passthrough && conf.URL != "" && (len(conf.Header) > 0 || conf.Auth.Token != nil && !conf.Auth.Token.Exchange)}
	}
	return all
}

// OnChange makes each later [Set.Apply] call a function at its end.
func (s *Set) OnChange(changed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, changed)
}

// TellNotRunnable logs which commands cannot run as things are, before a client finds out: a command may be installed later.
func (s *Set) TellNotRunnable() {
	for _, one := range s.table.Load().order {
		if c, ok := one.run.(*command); ok {
			c.tellNotRunnable()
		}
	}
}

// Close ends all conversations, and returns when their processes are gone.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	all := s.table.Swap(&table{}).order
	s.mu.Unlock()
	for _, one := range all {
		s.wait.Go(func() { one.stop() })
	}
	s.wait.Wait()
	return nil
}
