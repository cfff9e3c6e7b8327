package e2e

import (
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// TestLogBounded has clients that cause many errors that are logged: connections that are not TLS, and tokens that
// cannot be checked, as the issuer fails. The log has lines for some of the errors, and counts all.
func TestLogBounded(t *testing.T) {
	t.Parallel()
	const each = 100
	as, ca := authtest.New(t), authtest.NewCA(t, "ca")
	cert, key := ca.Server("one")
	names := authtest.Files(t, cert, key)
	as.Down.Store(true)
	p := serve(t, "--demo", "--tls-cert", names[0], "--tls-key", names[1], "--auth-issuer", as.URL, "--auth-audience", "us")
	token := as.Token(authtest.Claims{"aud": "us"})
	web := ca.Browse()
	var work sync.WaitGroup
	for range 10 {
		work.Go(func() {
			for range each / 10 {
				c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = c.Write([]byte("this is no TLS\r\n\r\n"))
				_, _ = c.Read(make([]byte, 100)) // until the connection was refused
				_ = c.Close()
			}
		})
	}
	for range each {
		work.Go(func() {
			r, err := (&mcptest.Client{URL: p.URL, HTTP: web}).Exchange(t.Context(), http.MethodPost, begins, "Authorization", "Bearer "+token)
			if r.Status != http.StatusServiceUnavailable {
				t.Errorf("a token that cannot be checked: %d, %v", r.Status, err)
			}
		})
	}
	work.Wait()
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
	log := p.log.String()
	for _, text := range []string{"a TLS connection failed", "a token cannot be checked"} {
		n := strings.Count(log, `msg="`+text+`"`)
		if n > each/2 {
			t.Errorf("%q is logged %d times", text, n)
		}
		for _, more := range regexp.MustCompile(`msg="`+text+`: and (\d+) more in the last minute"`).FindAllStringSubmatch(log, -1) {
			m, _ := strconv.Atoi(more[1])
			n += m
		}
		if n != each {
			t.Errorf("%q is counted %d times, not %d", text, n, each)
		}
	}
}
