package caller

import (
	"net/http"
	"testing"
)

// A server and a principal come out of their text as they were put in, and no two pairs are the
// same. The anonymous principal has one spelling at each server.
func TestPrincipalText(t *testing.T) {
	t.Parallel()
	texts, all := make(map[string]bool), make(map[Principal]bool)
	for _, server := range []string{"", "files", "a b/c", "*"} {
		for _, name := range []string{"", "alice", "\x00", "\x00files\x00alice", "a\x00b", "\x00\x00x"} {
			p := At(server, name)
			if got := Parse(p.Text()); got != p || got.Server() != server || got.Name() != name {
				t.Errorf("At(%q, %q) comes out as %q, %q", server, name, got.Server(), got.Name())
			}
			if texts[p.Text()] || all[p] {
				t.Errorf("%q, %q is the same as another", server, name)
			}
			texts[p.Text()], all[p] = true, true
			if p.IsAnonymous() != (name == "") {
				t.Errorf("%q is nobody in particular: %v", p.Text(), name != "")
			}
		}
	}
	if got := At("", "alice").Text(); got != "alice" { // as in older records
		t.Errorf("without servers alice is %q", got)
	}
	if Parse("\x00\x00") != (Principal{}) || Parse("") != (Principal{}) {
		t.Error("nobody in particular has two spellings")
	}
}

// A credential distinguishes all bytes of the header that a server gets. Without the header there is no credential.
func TestCredential(t *testing.T) {
	t.Parallel()
	of := func(values ...string) Credential { return CredentialOf(http.Header{"Authorization": values}) }
	none := Credential{}
	if CredentialOf(nil) != none || of() != none || of("") != none || none.Bytes() != nil {
		t.Error("no Authorization is a credential")
	}
	a := of("Bearer a")
	if a == none || a != of("Bearer a", "Bearer b") || a == of("Bearer b") || a == of("bearer a") || a == of("Bearer a ") || Credential(a.Bytes()) != a {
		t.Error("credentials are not told apart")
	}
}

func TestTenantOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ principal, remote, want string }{
		{"alice", "192.0.2.1:1234", "user alice"},
		{"", "192.0.2.1:1234", "address 192.0.2.1"},
		{"", "192.0.2.1", "address 192.0.2.1"},
		{"", "[::ffff:192.0.2.1]:1234", "address 192.0.2.1"},
		{"", "[2001:db8:1:2:3:4:5:6]:1234", "address 2001:db8:1:2::/64"},
		{"", "[2001:db8:1:2:ffff::1]:99", "address 2001:db8:1:2::/64"},
		{"", "[fe80::1%eth0]:99", "address fe80::/64"},
		{"", "", ""},
		{"", "@", ""},
		{"", "pipe", ""},
	} {
		if got := TenantOf(At("", test.principal), test.remote); got != test.want {
			t.Errorf("TenantOf(%q, %q) = %q; want %q", test.principal, test.remote, got, test.want)
		}
	}
}
