package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"crypto/tls"
	"crypto/x509"

	"holdfast/internal/mcptest"
	"holdfast/webhook"
)

// trusting returns a TLS configuration that trusts a receiver's certificate.
func trusting(r *receiver) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(r.Certificate())
	return &tls.Config{RootCAs: pool}
}

func portOf(t testing.TB, r *receiver) string {
	t.Helper()
	u := mcptest.Must(url.Parse(r.URL))(t)
	return u.Port()
}

// URLs that are refused while the operator has allowed no address, in all spellings.
// The log has no secret of the URL.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, why string }{
		{"https://127.0.0.1/secret", "is loopback"},
		{"https://[::1]/secret", "is loopback"},
		{"https://[::ffff:127.0.0.1]/secret", "is loopback"},
		{"https://[64:ff9b::7f00:1]/secret", "is loopback"},
		{"https://[2002:7f00:1::]/secret", "is loopback"},
		{"https://169.254.169.254/latest/secret", "is link-local"},
		{"https://[64:ff9b::a9fe:a9fe]/secret", "is link-local"},
		{"https://[::ffff:a9fe:a9fe]/secret", "is link-local"},
		{"https://[fe80::1]/secret", "is link-local"},
		{"https://[fe80::1%25lo]/secret", "is link-local"},
		{"https://10.1.2.3/?secret", "is private"},
		{"https://localhost/secret", "is loopback"},
		{"https://LOCALHOST/secret", "is loopback"},
		{"https://0.0.0.0/secret", "is unspecified"},
		{"https://[::]/secret", "is unspecified"},
		{"http://example.com/secret", "http, and not"},
		{"https://example.com:8443/secret", "not port 443"},
		{"https://user:secret@example.com/", "user name or password"},
		{"https://secret@example.com/", "user name or password"},
		{"https:///secret", "want an absolute https URL"},
		{"https:secret", "want an absolute https URL"},
		{"/secret", "want an absolute https URL"},
		{"", "want an absolute https URL"},
		{"ftp://example.com/secret", "want an absolute https URL"},
		{"file:///etc/secret", "want an absolute https URL"},
		{"https://example.com:secret/", "want an absolute https URL"},
		{"https://exa mple.com/secret", "want an absolute https URL"},
		{"https://example.com/\nsecret", "want an absolute https URL"},
		{"https://example.com/secret" + strings.Repeat("x", 2048), "longer than 2048 bytes"},
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			s, log := newSender(t, webhook.Options{})
			s.Send(event(c.url))
			log.has(t, "refused")
			if text := log.String(); !strings.Contains(text, c.why) || strings.Contains(text, "secret") || !strings.Contains(text, `"INFO"`) {
				t.Errorf("%s: the log is %s", c.url, text)
			}
		})
	}
}

// A public name with a private address is refused, also if the receiver has a valid
// certificate.
func TestNameOfPrivateAddress(t *testing.T) {
	t.Parallel()
	for addr, why := range map[string]string{
		"127.0.0.1":       "is loopback",
		"169.254.169.254": "is link-local",
		"100.64.0.1":      "is a carrier's own",
		"0.0.0.0":         "is unspecified",
	} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			r := serve(t, nil, (*httptest.Server).StartTLS)
			s, log := newSender(t, webhook.Options{
				// Allow another address, so that the receiver's port is not the reason.
				Allow:    allow(t, "192.0.2.0/24"),
				Resolver: names(t, func(int) netip.Addr { return netip.MustParseAddr(addr) }),
				TLS:      trusting(r),
			})
			s.Send(event("https://example.com:" + portOf(t, r) + "/hook"))
			log.has(t, "webhook refused")
			if !strings.Contains(log.String(), why) {
				t.Errorf("the log is %s", log)
			}
			r.silent(t)
		})
	}
}

// A name is checked again at each try, as its address may have changed.
func TestRebinding(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })
	s, log := newSender(t, webhook.Options{
		Allow: allow(t, "127.0.0.1"),
		Resolver: names(t, func(n int) netip.Addr {
			if n == 0 {
				return netip.MustParseAddr("127.0.0.1")
			}
			return netip.MustParseAddr("127.0.0.2")
		}),
	})
	s.Send(event("http://example.com:" + portOf(t, r)))
	r.next(t)
	log.has(t, "webhook refused")
	if !strings.Contains(log.String(), "127.0.0.2 is loopback") {
		t.Errorf("the log is %s", log)
	}
	r.silent(t)
}

// A redirect is not followed.
func TestRedirect(t *testing.T) {
	t.Parallel()
	inner := newReceiver(t, nil)
	outer := newReceiver(t, func(_ int, w http.ResponseWriter) {
		w.Header().Set("Location", inner.URL)
		w.WriteHeader(http.StatusPermanentRedirect)
	})
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Tries: 2})
	s.Send(event(outer.URL))
	outer.next(t)
	outer.next(t)
	log.has(t, "it answered 308")
	log.has(t, "webhook given up")
	inner.silent(t)
}

// The proxy in the environment is not used: it would connect to unchecked addresses.
func TestNoProxy(t *testing.T) {
	proxy := newReceiver(t, nil)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("HTTPS_PROXY", proxy.URL)
	s, log := newSender(t, webhook.Options{
		Allow:    allow(t, "example.com"),
		Resolver: names(t, func(int) netip.Addr { return netip.MustParseAddr("127.0.0.1") }),
		Tries:    1,
	})
	// A port without a listener.
	s.Send(event("http://example.com:1/"))
	log.has(t, "webhook given up")
	proxy.silent(t)
}

// The operator can allow an address, a range, or a name with any address. Nothing
// else is allowed.
func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allow string
		host  string
		ok    bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.0/8", "127.0.0.1", true},
		{"127.0.0.1/8", "127.0.0.1", true},
		{"::ffff:127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "[::ffff:127.0.0.1]", true},
		{"hooks.example.com", "hooks.example.com", true},
		{"Hooks.Example.com.", "HOOKS.example.COM", true},
		{"hooks.example.com", "hooks.example.com.", true},
		{"127.0.0.1", "hooks.example.com", true},
		{"127.0.0.2", "127.0.0.1", false},
		{"10.0.0.0/8", "127.0.0.1", false},
		{"::1", "127.0.0.1", false},
		{"example.com", "hooks.example.com", false},
		{"hooks.example.com", "example.com", false},
		{"hooks.example.com", "127.0.0.1", false},
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, nil)
			s, log := newSender(t, webhook.Options{
				Allow:    allow(t, c.allow),
				Resolver: names(t, func(int) netip.Addr { return netip.MustParseAddr("127.0.0.1") }),
			})
			s.Send(event("http://" + c.host + ":" + portOf(t, r) + "/"))
			if c.ok {
				r.next(t)
				log.has(t, "webhook sent")
				return
			}
			log.has(t, "webhook refused")
			r.silent(t)
		})
	}
}

// An https receiver must have a certificate for the name in the URL.
func TestTLS(t *testing.T) {
	t.Parallel()
	r := serve(t, nil, (*httptest.Server).StartTLS)
	resolver := names(t, func(int) netip.Addr { return netip.MustParseAddr("127.0.0.1") })
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Resolver: resolver, TLS: trusting(r), Tries: 1})
	s.Send(event("https://example.com:" + portOf(t, r)))
	r.next(t)
	log.has(t, "webhook sent")
	s.Send(event("https://other.test:" + portOf(t, r)))
	log.has(t, "webhook given up")
	if !strings.Contains(log.String(), "certificate is valid for") {
		t.Errorf("the log is %s", log)
	}
	r.silent(t)
}
