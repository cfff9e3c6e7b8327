package session

import (
	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// An identity has the data of a session that never changes.
type identity struct {
	id        string // secret
	key       stream.SessionKey
	principal caller.Principal
	tenant    *tenant // that its use is counted against
	kind
	agent string // the User-Agent of the request that began or revived the session, if hosts are known; set before other goroutines know it
	taken bool   // it was taken over from another node; set before other goroutines know it
	// firstEpoch is the epoch with which the session has begun again (revive.go); 0: it has not. Streams of earlier lives are gone.
	firstEpoch uint64
}

// A kind tells kinds of sessions apart.
type kind struct {
	single  bool     // all its messages go to the standalone stream (revision 2024-11-05)
	modern  string   // of a carrier: the revision of its requests; "": the session is a client's
	carrier *carrier // that the session is; nil if it is a client's, or was taken over
}

// ID returns the session's secret id, which the client presents with each
// request. It must not be logged.
func (i *identity) ID() string { return i.id }

// HasID reports whether id is the session's secret id.
func (i *identity) HasID(id string) bool { return whereabouts.KeyOf(id) == i.key }

// Tickets makes the session's tickets.
func (i *identity) Tickets() ticket.Maker { return ticket.Maker{Session: string(i.key), Secret: i.id} }

// Name returns the session's public name, for logs and URLs: it is its key in the store.
func (i *identity) Name() string { return string(i.key) }

// Server returns the name of the server that the session belongs to, or "" where there is
// one server only.
func (i *identity) Server() string { return i.principal.Server() }

// Principal returns the name of the session's principal, or "" for anonymous clients.
func (i *identity) Principal() string { return i.principal.Name() }

// Tenant returns the name of the session's tenant; see [caller.TenantOf].
func (i *identity) Tenant() string { return i.tenant.name }

// SingleStream reports whether all the session's messages go to its standalone stream.
func (i *identity) SingleStream() bool { return i.single }

// Modern returns the revision of the requests that the session carries, or "" if it is a
// client's session.
func (i *identity) Modern() string { return i.modern }

// observed describes the session for observers.
func (i *identity) observed() observe.Session {
	return observe.Session{Name: i.Name(), Server: i.Server(), Principal: i.Principal(), Carrier: i.modern != ""}
}

// about returns the text about the session that the store gets when the session is created.
func (i *identity) about() []byte {
	a := whereabouts.About{Life: i.firstEpoch, ID: i.id, Principal: []byte(i.principal.Text()), Single: i.single, Modern: i.modern, Agent: i.agent}
	if i.principal.IsAnonymous() {
		a.Tenant = i.tenant.name
	}
	return a.Text()
}
