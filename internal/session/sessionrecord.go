package session

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
)

// about is what a shared store's record of a session says of it beside its owner:
// all that another node needs to know whose it is. It holds the session's secret
// id, as whoever reads the engine reads the calls anyway.
type about struct {
	ID        string `json:"id"`
	Principal []byte `json:"principal,omitempty"` // any bytes
	// Tenant is whom the session is counted against where that is not the principal:
	// its client may come back from another address, to another node.
	Tenant string `json:"tenant,omitempty"`
	Single bool   `json:"single,omitempty"`
	Modern string `json:"modern,omitempty"` // see [Session.Modern]
	Life   uint64 `json:"life,omitempty"`   // see [identity]
	// Revision is what a client speaks whose session has begun again, until its first owner has noted that. What else it begins
	// with is in the id.
	Revision string `json:"revision,omitempty"`
}

func (a *about) text() []byte {
	text, _ := json.Marshal(a)
	return text
}

// parseAbout reads a record.
func parseAbout(at shared.Session) (*Remote, error) {
	var a about
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
	return &Remote{Session: at, ID: a.ID, Principal: principal, Tenant: a.Tenant, SingleStream: a.Single, Modern: a.Modern, Life: a.Life, revision: a.Revision, was: at}, nil
}

// LogValue implements [slog.LogValuer]: no log has the secret id.
func (a *Remote) LogValue() slog.Value { return slog.StringValue(string(a.Key)) }
