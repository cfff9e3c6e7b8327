package session

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/protocol"
	"holdfast/internal/whereabouts"
)

// A session of one server is unknown at another server. A client is one tenant at all
// servers. Servers do not share keys or carriers.
func TestServersAreApart(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	files, memory := caller.At("files", "alice"), caller.At("memory", "alice")
	s, other := h.openAt("files", "alice"), h.openAt("memory", "alice")
	if s.Server() != "files" || s.Principal() != "alice" {
		t.Errorf("the session is of %q, and of %q", s.Server(), s.Principal())
	}
	for _, who := range []caller.Principal{memory, caller.At("", "alice"), {}, caller.At("files", "")} {
		if _, err := h.Find(s.ID(), who); !errors.Is(err, ErrNotFound) {
			t.Errorf("found by %q: %v", who.Text(), err)
		}
	}
	if _, err := h.Find(s.ID(), files); err != nil {
		t.Error(err)
	}
	if s.tenant != other.tenant || s.Tenant() != "user alice" {
		t.Errorf("tenants %q and %q", s.Tenant(), other.Tenant())
	}
	if s.keys() == other.keys() {
		t.Error("two servers share idempotency keys")
	}
	clients := func(server string) (all []Client) {
		for _, token := range []string{"", "Bearer a", "Bearer b"} {
			for _, name := range []string{"", "alice"} {
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Header.Set("Authorization", token)
				all = append(all, h.ClientOf(r, caller.At(server, name), caller.CredentialOf(r.Header)))
			}
		}
		return all
	}
	carrier := func(c *Client) *Session {
		s, err := h.Carrier(httptest.NewRequest(http.MethodPost, "/", nil), c, protocol.V20260728, "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
		return s
	}
	seen, keys := make(map[*Session]string), make(map[idempotency.Scope]string)
	for _, server := range []string{"", "files", "memory"} {
		for _, c := range clients(server) {
			who := fmt.Sprintf("%q %x", c.principal.Text(), c.apart())
			if was, ok := seen[carrier(&c)]; ok && was != who {
				t.Errorf("%s and %s share a carrier", who, was)
			}
			if was, ok := keys[c.keys()]; ok && was != who {
				t.Errorf("%s and %s share idempotency keys", who, was)
			}
			seen[carrier(&c)], keys[c.keys()] = who, who
		}
	}
	if len(seen) != 3*(3+1) || len(keys) != len(seen) { // alice is one tenant, whatever her token is
		t.Errorf("%d carriers, and keys of %d", len(seen), len(keys))
	}
}

// A session's record has its server, and the records without one stay readable.
func TestServerOnRecord(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	for _, who := range []caller.Principal{{}, caller.At("", "alice"), caller.At("files", ""), caller.At("files", "alice")} {
		s := h.openAt(who.Server(), who.Name())
		at, err := whereabouts.Parse(shared.Session{Key: s.key, About: s.about()})
		if err != nil || at.Principal != who || at.Tenant != s.Tenant() {
			t.Errorf("%q is on record as %q of %q: %v", who.Text(), at.Principal, at.Tenant, err)
		}
	}
}
