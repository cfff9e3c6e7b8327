//go:build unix

package redis

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/testport"
)

// Over TLS a server must have a trusted certificate, unless the URL says otherwise.
func TestTLS(t *testing.T) {
	t.Parallel()
	addr := testport.Addr(t)
	_, port, _ := net.SplitHostPort(addr)
	cert, key := authtest.NewCA(t, "ca").Server("redis")
	files := authtest.Files(t, cert, key)
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", files[0], "--tls-key-file", files[1], "--tls-auth-clients", "no")
	url := "rediss://" + addr + "/0"
	for end := time.Now().Add(30 * time.Second); ; { // on a busy machine a try may end before the certificate is checked
		l, err := Open(t.Context(), url, durable.Options{Logger: quiet})
		if err == nil {
			l.Close()
			t.Fatal("a certificate of an unknown CA is trusted")
		}
		if strings.Contains(err.Error(), "x509") {
			if !errors.Is(err, driver.ErrURL) {
				t.Errorf("%v: want %v", err, driver.ErrURL)
			}
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			t.Fatalf("a certificate of an unknown CA: %v", err)
		}
	}
	appendAll(t, open(t, url+"?skip_verify=true"), "e.k", 0, "one", "two")
}
