package guard

import (
	"net/http"
	"net/netip"
	"testing"
)

// X-Forwarded-For is read from its end, as far as trusted proxies have named the addresses.
func TestClientAddress(t *testing.T) {
	t.Parallel()
	g := New(nil, nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")})
	for _, c := range []struct {
		from string
		says []string
		want string
	}{
		{"192.0.2.1:5", []string{"203.0.113.9"}, "192.0.2.1:5"}, // the sender is not a trusted proxy
		{"10.0.0.1:5", nil, "10.0.0.1:5"},
		{"10.0.0.1:5", []string{"203.0.113.9"}, "203.0.113.9:5"},
		{"10.0.0.1:5", []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9:5"}, // the first address may be the client's invention
		{"10.0.0.1:5", []string{"203.0.113.9", "10.1.1.1, fd00::1"}, "203.0.113.9:5"},
		{"10.0.0.1:5", []string{"198.51.100.1, unknown, 10.1.1.1"}, "10.1.1.1:5"},
		{"10.0.0.1:5", []string{"203.0.113.9:1234"}, "203.0.113.9:5"},
		{"[fd00::2]:5", []string{"[2001:db8::1]:77"}, "[2001:db8::1]:5"},
		{"[::ffff:10.0.0.1]:5", []string{"::ffff:203.0.113.9"}, "203.0.113.9:5"},
		{"10.0.0.1:5", []string{"10.9.9.9"}, "10.9.9.9:5"},
		{"", []string{"203.0.113.9"}, ""},
	} {
		r := &http.Request{RemoteAddr: c.from, Header: http.Header{headerForwardedFor: c.says}}
		if got := g.OfClient(r).RemoteAddr; got != c.want {
			t.Errorf("from %s, which says %q: %s, want %s", c.from, c.says, got, c.want)
		}
	}
}
