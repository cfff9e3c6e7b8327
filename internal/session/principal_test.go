package session

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"holdfast/internal/engine/shared"
	"holdfast/internal/protocol"
)

// A server and a principal come out as they were put in, and no two pairs are the same.
func TestPrincipalAt(t *testing.T) {
	t.Parallel()
	seen := make(map[string][2]string)
	for _, server := range []string{"", "files", "a b/c", "*"} {
		for _, name := range []string{"", "alice", "\x00", "\x00files\x00alice", "a\x00b", "\x00\x00x"} {
			p := PrincipalAt(server, name)
			if s, n := SplitPrincipal(p); s != server || n != name {
				t.Errorf("PrincipalAt(%q, %q) comes out as %q, %q", server, name, s, n)
			}
			if was, ok := seen[p]; ok {
				t.Errorf("%q, %q is the same as %q", server, name, was)
			}
			seen[p] = [2]string{server, name}
			if IsAnonymous(p) != (name == "") {
				t.Errorf("IsAnonymous(%q) = %v", p, name != "")
			}
		}
	}
	if got := PrincipalAt("", "alice"); got != "alice" { // as older records have it
		t.Errorf("without servers alice is %q", got)
	}
}

// A session of one server is unknown at another, its client is one tenant everywhere, and
// keys and carriers are not shared between servers.
func TestServersAreApart(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	files, memory := PrincipalAt("files", "alice"), PrincipalAt("memory", "alice")
	s, other := h.open(files), h.open(memory)
	if s.Server() != "files" || s.Principal() != "alice" {
		t.Errorf("the session is of %q, and of %q", s.Server(), s.Principal())
	}
	for _, who := range []string{memory, "alice", "", PrincipalAt("files", "")} {
		if _, err := h.Find(s.ID(), who); !errors.Is(err, ErrNotFound) {
			t.Errorf("found by %q: %v", who, err)
		}
	}
	if _, err := h.Find(s.ID(), files); err != nil {
		t.Error(err)
	}
	if s.tenant != other.tenant || s.Tenant() != "user alice" {
		t.Errorf("tenants %q and %q", s.Tenant(), other.Tenant())
	}
	if s.keyID("k") == other.keyID("k") {
		t.Error("two servers share an idempotency key")
	}
	carrier := func(server, name string) *Session {
		c, err := h.Carrier(httptest.NewRequest(http.MethodPost, "/", nil), PrincipalAt(server, name), protocol.V20260728, "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		c.Release()
		return c
	}
	if a, b := carrier("files", ""), carrier("memory", ""); a == b || a.keyID("k") == b.keyID("k") {
		t.Error("two servers share a carrier, or the keys of one")
	}
	if a, b := carrier("files", ""), carrier("files", ""); a != b {
		t.Error("one server has two carriers for the same client")
	}
}

// Records have the server, and those without one stay readable.
func TestServerOnRecord(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	for _, who := range []string{"", "alice", PrincipalAt("files", ""), PrincipalAt("files", "alice")} {
		s := h.open(who)
		at, err := parseAbout(shared.Session{Key: s.key, About: s.about()})
		if err != nil || at.Principal != who || at.Tenant != s.Tenant() {
			t.Errorf("%q is on record as %q of %q: %v", who, at.Principal, at.Tenant, err)
		}
	}
}
