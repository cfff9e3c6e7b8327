//go:build unix

package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	cert, key := certificate(t)
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
	url := "rediss://" + addr + "/0"
	for end := time.Now().Add(30 * time.Second); ; { // on a busy machine a try may end before the certificate is checked
		l, err := Open(t.Context(), url, durable.Options{Logger: quiet})
		if err == nil {
			l.Close()
			t.Fatal("a certificate that nobody has signed is trusted")
		}
		if strings.Contains(err.Error(), "x509") {
			if !errors.Is(err, driver.ErrURL) {
				t.Errorf("%v: want %v", err, driver.ErrURL)
			}
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			t.Fatalf("a certificate that nobody has signed: %v", err)
		}
	}
	appendAll(t, open(t, url+"?skip_verify=true"), "e.k", 0, "one", "two")
}

// certificate writes a self-signed certificate, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	signed, err := x509.CreateCertificate(rand.Reader, form, form, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "EC PRIVATE KEY", secret)
}
