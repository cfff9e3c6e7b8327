package placement

import (
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/session"
	"holdfast/stream"
)

// locatedFor is how long the location of another node's session is remembered, and
// mostLocated is for how many sessions.
const (
	locatedFor  = 10 * time.Second
	mostLocated = 1 << 12
)

// locations remembers where sessions of other nodes were just now, so that a forwarded
// request costs the engine no look-up. A location may be out of date: a node that does
// not have the session any more says so, and then the engine is asked.
//
// A lost node may come back, and not know for a moment that it has lost its sessions. So its
// locations are forgotten as soon as it is lost. The methods may be called concurrently.
type locations struct {
	mu  sync.Mutex
	all map[stream.SessionKey]location
}

type location struct {
	remote *session.Remote
	at     time.Time
}

// find returns the location of a session of the principal, or nil.
func (l *locations) find(key stream.SessionKey, principal caller.Principal) *session.Remote {
	l.mu.Lock()
	defer l.mu.Unlock()
	is, ok := l.all[key]
	if !ok || is.remote.Principal != principal {
		return nil
	}
	if time.Since(is.at) > locatedFor {
		delete(l.all, key)
		return nil
	}
	return is.remote
}

// keep remembers a location that the engine has just returned.
func (l *locations) keep(remote *session.Remote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil || len(l.all) >= mostLocated {
		l.all = make(map[stream.SessionKey]location)
	}
	l.all[remote.Key] = location{remote, time.Now()}
}

// forget forgets a location that has turned out to be wrong.
func (l *locations) forget(remote *session.Remote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all[remote.Key].remote == remote {
		delete(l.all, remote.Key)
	}
}

// forgetNode forgets all sessions of a node.
func (l *locations) forgetNode(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, is := range l.all {
		if is.remote.Owner == node {
			delete(l.all, key)
		}
	}
}

// forgetAll is called after this node was away: other nodes may have been lost meanwhile.
func (l *locations) forgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}
