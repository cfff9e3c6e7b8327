// Package whereabouts says where sessions are that nodes share: their records in the store, the sessions of a principal on all nodes,
// and the sweep for sessions of nodes that are gone.
package whereabouts

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// KeyOf returns the public name of a session: good for logs and URLs, and no
// help in guessing its id.
func KeyOf(id string) stream.SessionKey {
	var text [512]byte // else a long id would be copied to the heap
	sum := sha256.Sum256(append(text[:0], id...))
	return stream.SessionKey(base64.RawURLEncoding.EncodeToString(sum[:12]))
}

// A Record is the record of a session that is not, or no longer, on this node.
type Record struct {
	shared.Session        // Owner is "" if it has none, or if that was this node
	ID             string // its secret id: to make requests as its client; it must not be logged
	Principal      caller.Principal
	Tenant         string // see [caller.TenantOf]
	SingleStream   bool
	Modern         string // see [About]
	Life           uint64
	Revision       string
	Agent          string         // see [About]
	Was            shared.Session // as it was looked up
}

// About is the record of a session in a shared store, beside its owner: all that
// another node needs to know the session's client. It holds the session's secret
// id, as any reader of the engine can read the calls anyway.
type About struct {
	ID        string `json:"id"`
	Principal []byte `json:"principal,omitempty"` // any bytes
	// Tenant is the tenant of the session, if that is not the principal: its client
	// may come back from another address, to another node.
	Tenant string `json:"tenant,omitempty"`
	Single bool   `json:"single,omitempty"`
	Modern string `json:"modern,omitempty"` // the revision of the requests that it carries
	Life   uint64 `json:"life,omitempty"`   // the epoch with which its life began, if that was not the first
	// Revision is the one that the client of a session speaks which has begun again, until the first owner has noted it. All
	// else that the session begins with, but for Agent, is in the id.
	Revision string `json:"revision,omitempty"`
	// Agent is the User-Agent of the request that began the session, or that revived it, if hosts are known by theirs.
	Agent string `json:"agent,omitempty"`
}

// Text returns the record.
func (a *About) Text() []byte {
	text, _ := json.Marshal(a)
	return text
}

// Parse reads a record.
func Parse(at shared.Session) (*Record, error) {
	var a About
	if err := json.Unmarshal(at.About, &a); err != nil {
		return nil, fmt.Errorf("record of session %s: %w", at.Key, err)
	}
	if KeyOf(a.ID) != at.Key {
		return nil, fmt.Errorf("record of session %s is of another", at.Key)
	}
	principal := caller.Parse(string(a.Principal))
	if !principal.IsAnonymous() {
		a.Tenant = caller.TenantOf(principal, "")
	}
	return &Record{Session: at, ID: a.ID, Principal: principal, Tenant: a.Tenant, SingleStream: a.Single, Modern: a.Modern, Life: a.Life, Revision: a.Revision, Agent: a.Agent, Was: at}, nil
}

// LogValue implements [slog.LogValuer]: no log has the secret id.
func (a *Record) LogValue() slog.Value { return slog.StringValue(string(a.Key)) }

// A Range is a range of sessions by their keys.
type Range = shared.Range
