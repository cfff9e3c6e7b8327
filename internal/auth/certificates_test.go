package auth

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// secured serves a client's principal, by certificate and token, and returns the URL.
func secured(t *testing.T, c *Certificates, p *Policy) string {
	t.Helper()
	l := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &http.Server{
		Handler: Require(func(*http.Request) *Policy { return p }, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s %s", Principal(r), r.Proto, tls.VersionName(r.TLS.Version))
		})),
		ReadHeaderTimeout: time.Minute,
	}
	server.ErrorLog = log.New(io.Discard, "", 0) // the test makes requests that are refused
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tls.NewListener(l, c.Config()))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "https://" + l.Addr().String()
}

// ask returns a server's answer to a client, or the error.
func ask(t *testing.T, c *http.Client, at, token string) (said string, by string) {
	t.Helper()
	c.CloseIdleConnections() // each request has a connection of its own
	req := mcptest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil))(t)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "error: " + err.Error(), ""
	}
	defer resp.Body.Close()
	text := mcptest.Must(io.ReadAll(resp.Body))(t)
	if resp.StatusCode != http.StatusOK {
		return resp.Status, ""
	}
	return string(text), resp.TLS.PeerCertificates[0].Subject.CommonName
}

// A client's certificate determines its principal, and is required.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ca, other := authtest.NewCA(t, "ca"), authtest.NewCA(t, "other")
	cert, key := ca.Server("one")
	names := authtest.Files(t, cert, key, ca.PEM)
	c := mcptest.Must(OpenCertificates(names[0], names[1], names[2]))(t)
	at := secured(t, c, &Policy{Certificates: true})
	const proto = " HTTP/2.0 TLS 1.3"
	for want, own := range map[string][]tls.Certificate{
		"cert:CN=ada,O=a\\+b" + proto:           {ca.Client(pkix.Name{CommonName: "ada", Organization: []string{"a+b"}})},
		"spiffe://example.org/worker/1" + proto: {ca.Client(pkix.Name{CommonName: "x"}, "spiffe://example.org/worker/1")},
		"cert:CN=y" + proto:                     {ca.Client(pkix.Name{CommonName: "y"}, "https://example.org")},
		"error: ":                               nil,
		"error: \x00two URIs":                   {ca.Client(pkix.Name{CommonName: "z"}, "spiffe://example.org/a", "https://example.org")},
		"error: \x00nobody":                     {ca.Client(pkix.Name{})},
		"error: \x00foreign":                    {other.Client(pkix.Name{CommonName: "ada"})},
		"error: \x00expired":                    {ca.Expired("ada")},
	} {
		want, what, _ := strings.Cut(want, "\x00")
		if got, _ := ask(t, ca.Browse(own...), at, ""); got != want && (want != "error: " || !strings.HasPrefix(got, want)) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	old := ca.Browse(ca.Client(pkix.Name{CommonName: "ada"}))
	old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	old.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS10
	if got, _ := ask(t, old, at, ""); !strings.HasPrefix(got, "error: ") {
		t.Errorf("TLS 1.1: %s", got)
	}
	for _, wrong := range [][3]string{{names[0], names[0], ""}, {names[0], names[1], names[1]}, {names[0], "none", ""}, {names[1], names[1], ""}} {
		if _, err := OpenCertificates(wrong[0], wrong[1], wrong[2]); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// Changed files apply to new connections. Invalid files change nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	ca, other := authtest.NewCA(t, "ca"), authtest.NewCA(t, "other")
	cert, key := ca.Server("one")
	names := authtest.Files(t, cert, key, ca.PEM)
	c := mcptest.Must(OpenCertificates(names[0], names[1], names[2]))(t)
	at := secured(t, c, &Policy{Certificates: true})
	ada, bob := ca.Browse(ca.Client(pkix.Name{CommonName: "ada"})), ca.Browse(other.Client(pkix.Name{CommonName: "bob"}))
	write := func(file int, text []byte) {
		t.Helper()
		mcptest.Check(t, os.WriteFile(names[file], text, 0o600))
		c.Reload(false)
		c.Reload(false)
	}
	expect := func(what, by string, adas, bobs bool) {
		t.Helper()
		for client, may := range map[*http.Client]bool{ada: adas, bob: bobs} {
			if said, is := ask(t, client, at, ""); strings.HasPrefix(said, "cert:") != may || may && is != by {
				t.Errorf("%s: %q, by %q", what, said, is)
			}
		}
	}
	expect("at first", "one", true, false)
	cert2, key2 := ca.Server("two")
	write(0, cert2)
	expect("a certificate without its key", "one", true, false)
	c.Reload(true)
	expect("still", "one", true, false)
	write(1, key2)
	expect("with its key", "two", true, false)
	write(2, other.PEM)
	expect("other clients", "two", false, true)
	write(2, nil)
	expect("no issuer of clients", "two", false, true)
	write(2, append(ca.PEM, other.PEM...))
	expect("both", "two", true, true)
	mcptest.Check(t, os.Remove(names[1]))
	c.Reload(false)
	expect("no key", "two", true, true)
}

// A token that is bound to a certificate is refused without that certificate.
func TestBoundToken(t *testing.T) {
	t.Parallel()
	ca, as := authtest.NewCA(t, "ca"), authtest.New(t)
	cert, key := ca.Server("one")
	names := authtest.Files(t, cert, key, ca.PEM)
	c := mcptest.Must(OpenCertificates(names[0], names[1], names[2]))(t)
	issuer := mcptest.Must(NewIssuer(as.URL))(t)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	at := secured(t, c, &Policy{Issuer: issuer, Audience: []string{"us"}, Certificates: true})
	own := ca.Client(pkix.Name{CommonName: "ada"})
	ada, bob := ca.Browse(own), ca.Browse(ca.Client(pkix.Name{CommonName: "bob"}))
	sum := sha256.Sum256(own.Certificate[0])
	token := func(cnf map[string]any) string { return as.Token(authtest.Claims{"aud": "us", "cnf": cnf}) }
	bound := token(map[string]any{"x5t#S256": base64.RawURLEncoding.EncodeToString(sum[:])})
	for _, c := range []struct {
		what   string
		client *http.Client
		token  string
		want   string
	}{
		{"its own", ada, bound, as.URL + " ada HTTP/2.0 TLS 1.3"},
		{"another's", bob, bound, "401 Unauthorized"},
		{"not bound", bob, token(nil), as.URL + " ada HTTP/2.0 TLS 1.3"},
		{"none", ada, "", "401 Unauthorized"},
		{"DPoP", ada, token(map[string]any{"jkt": "x"}), "401 Unauthorized"},
		{"empty", ada, token(map[string]any{}), "401 Unauthorized"},
	} {
		if got, _ := ask(t, c.client, at, c.token); got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
}
