// Package servers is one backend for all servers of a configuration file: which one answers a
// session is said by the server's name (docs/decisions/0025-many-servers.md). The file may
// change while they are in use.
package servers

import (
	"context"
	"log/slog"
	"maps"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/config"
	"holdfast/internal/merge"
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
}

// A route is what is served at a path.
type route struct {
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

// A Change is what [Set.Apply] has done, by the names of servers.
type Change struct{ Added, Changed, Removed, Kept []string }

// Apply replaces the file. A server that runs as before keeps its sessions and its processes;
// other settings of it hold from now on. The sessions of one that runs differently go on in a
// new process as soon as they have nothing in flight. The sessions of one that was removed
// end, when their calls have ended. One that is left out goes on as it ran before.
func (s *Set) Apply(file *config.File) Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	var did Change
	if s.closed {
		return did
	}
	was := s.table.Load()
	before := s.membersOf(was)
	next := &table{byName: make(map[string]*server), routes: make(map[string]route)}
	var retired, removed []*server
	relisted := false // a server that runs as before has other tools for clients
	for _, conf := range file.Servers {
		old := was.byName[conf.Name]
		switch {
		case old != nil && old.runsLike(conf):
			relisted = relisted || !listsLike(old.conf.Load(), conf)
			old.conf.Store(conf)
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
		next.add(newServer(conf, s.versions, s.log))
	}
	for _, out := range file.LeftOut { // what ran goes on as it was
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
	for at, to := range was.routes { // the clients of removed servers come back for their calls
		if _, taken := next.routes[at]; !taken && next.byName[to.server] == nil {
			next.routes[at] = to
		}
	}
	s.table.Store(next)
	for _, old := range retired {
		s.wait.Go(old.retire)
	}
	for _, old := range removed {
		s.wait.Go(func() {
			old.retire()
			s.forget(old.name)
		})
	}
	if was.merged != next.merged || relisted && next.merged != 0 {
		s.merge.Changed()
	}
	for _, changed := range s.watchers {
		changed()
	}
	return did
}

// forget removes the routes of a removed server.
func (s *Set) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.table.Load()
	if next.byName[name] != nil {
		return // it is there again
	}
	next.routes = maps.Clone(next.routes)
	maps.DeleteFunc(next.routes, func(_ string, to route) bool { return to.server == name })
	s.table.Store(&next)
}

func (t *table) add(s *server) {
	t.byName[s.name] = s
	t.order = append(t.order, s)
	t.limited = t.limited || isLimited(s.conf.Load())
	t.serve(s.conf.Load().Path, s.name)
}

// serve adds an endpoint, and beside it the pair of revision 2024-11-05.
func (t *table) serve(at, name string) {
	t.routes[at] = route{server: name}
	dir := path.Dir(at)
	pair := route{server: name, stream: path.Join(dir, "sse"), pair: path.Join(dir, "messages")}
	for _, p := range []string{pair.stream, pair.pair} {
		if _, taken := t.routes[p]; !taken {
			t.routes[p] = pair
		}
	}
}

// An Entry is something that is served.
type Entry struct{ Name, Path string }

// List returns what is served, in the order of the file; all servers as one come first.
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
// all servers as one goes on with other members ([merge.Backend.Changed]). One that carries modern
// requests is replaced: what is discovered in it is for clients that come later.
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
	for _, one := range t.order { // it is silent when all may be stopped
		each := one.conf.Load().StopIdle
		if each == 0 {
			return version, 0
		}
		stopIdle = max(stopIdle, each)
	}
	return version, stopIdle
}

// StartsProcess reports whether each session of a server has a process of its own: not one
// over HTTP, and not one whose sessions share a process.
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

// members returns the servers as they are served as one.
func (s *Set) members() []merge.Member { return s.membersOf(s.table.Load()) }

func (s *Set) membersOf(t *table) []merge.Member {
	all := make([]merge.Member, len(t.order))
	for i, one := range t.order {
		conf := one.conf.Load()
		all[i] = merge.Member{Name: one.name, Backend: one, Prefix: conf.MergedPrefix(), Prefixed: conf.Prefix != nil, TakesToken: conf.Auth.Passthrough}
	}
	return all
}

// OnChange has a function called after each [Set.Apply].
func (s *Set) OnChange(changed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, changed)
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
