package jetstream_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"holdfast/engine/durable"
	"holdfast/engine/jetstream"
)

// A server that wants to see a client's certificate, and credentials that its
// operator's account has signed: with all of them an engine works, without any of
// them it is refused, and says why.
func TestTLSAndCredentials(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	addr := secured(t, cert, key)
	const creds = "testdata/user.creds"
	url := func(q ...string) string { return "tls://" + addr + "/?" + strings.Join(q, "&") }
	all := []string{"creds=" + creds, "ca=" + cert, "cert=" + cert + "&key=" + key}
	l := patient(must(t, url(all...)))
	defer closed(t, l)
	at, err := l.Append(t.Context(), "a", 0, []byte("frame"))
	if err != nil {
		t.Fatal(err)
	}
	other := patient(must(t, url(all...)))
	defer closed(t, other)
	if got := count(t, other, "a"); got != 1 {
		t.Errorf("another node sees %d frames after the one at %d", got, at)
	}
	if err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for i, what := range []string{"credentials", "a CA that is known", "a certificate of its own"} {
		some := append(append([]string{}, all[:i]...), all[i+1:]...)
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		l, err := jetstream.Open(ctx, url(some...), durable.Options{Logger: quiet})
		stop()
		if err == nil {
			_ = l.Close()
			t.Errorf("without %s it is opened", what)
		}
		if err != nil && strings.Contains(err.Error(), "SEED") {
			t.Errorf("without %s: %v", what, err)
		}
		t.Logf("without %s: %v", what, err)
	}
}

// secured runs a server of an operator's, over TLS.
func secured(t *testing.T, cert, key string) (addr string) {
	t.Helper()
	var accounts strings.Builder
	for _, name := range []string{"account", "system"} {
		token, err := os.ReadFile(filepath.Join("testdata", name+".jwt"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&accounts, "%s: %s\n", subject(t, token), token)
	}
	conf := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf(`
server_name: secured
listen: "127.0.0.1:-1"
jetstream { store_dir: %q }
tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }
operator: "testdata/operator.jwt"
resolver: MEMORY
resolver_preload {
%s}
`, t.TempDir(), cert, key, cert, &accounts)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := natsserver.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	o.NoLog, o.NoSigs = true, true
	s, err := natsserver.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	said := &faults{}
	s.SetLoggerV2(said, false, false, false)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatalf("the server does not start: %s", said)
	}
	return s.Addr().String()
}

// faults are what a server says is wrong.
type faults struct {
	mu   sync.Mutex
	said strings.Builder
}

func (f *faults) note(format string, v ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.said, format+"\n", v...)
}

func (f *faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said.String()
}

func (f *faults) Noticef(string, ...any)         {}
func (f *faults) Debugf(string, ...any)          {}
func (f *faults) Tracef(string, ...any)          {}
func (f *faults) Warnf(format string, v ...any)  { f.note(format, v...) }
func (f *faults) Errorf(format string, v ...any) { f.note(format, v...) }
func (f *faults) Fatalf(format string, v ...any) { f.note(format, v...) }

// subject is whom a token is about.
func subject(t *testing.T, token []byte) string {
	t.Helper()
	parts := strings.Split(string(token), ".")
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct{ Sub string }
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return claims.Sub
}

// certificate writes a certificate that is signed by itself, for both ends, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
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
