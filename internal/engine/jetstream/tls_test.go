package jetstream_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/mcptest"
)

// A server requires a client's certificate, and credentials that its operator's
// account has signed. The engine opens with all of them. Without one of them it is
// refused, and the error says why.
func TestTLSAndCredentials(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	addr, creds := secured(t, cert, key)
	url := func(q ...string) string { return "tls://" + addr + "/?" + strings.Join(q, "&") }
	all := []string{"creds=" + creds, "ca=" + cert, "cert=" + cert + "&key=" + key}
	l := patient(must(t, url(all...)))
	defer closed(t, l)
	at := mcptest.Must(l.Append(t.Context(), "a", 0, []byte("frame")))(t)
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
		if want := []error{driver.ErrPermission, driver.ErrURL, driver.ErrPermission}[i]; !errors.Is(err, want) {
			t.Errorf("without %s: %v: want %v", what, err, want)
		}
	}
}

// secured runs an operator's server, over TLS. creds is the file with the credentials
// of a user of the operator's account.
func secured(t *testing.T, cert, key string) (addr, creds string) {
	t.Helper()
	operator, account, system := pair(t, nkeys.CreateOperator), pair(t, nkeys.CreateAccount), pair(t, nkeys.CreateAccount)
	user := pair(t, nkeys.CreateUser)
	own := jwt.NewOperatorClaims(operator.public)
	own.SystemAccount = system.public
	room := jwt.NewAccountClaims(account.public)
	room.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	accounts := account.public + ": " + signed(t, room, operator) + "\n" +
		system.public + ": " + signed(t, jwt.NewAccountClaims(system.public), operator) + "\n"
	seed := mcptest.Must(user.Seed())(t)
	shown := mcptest.Must(jwt.FormatUserConfig(signed(t, jwt.NewUserClaims(user.public), account), seed))(t)
	creds = filepath.Join(t.TempDir(), "user.creds")
	mcptest.Check(t, os.WriteFile(creds, shown, 0o600))
	conf := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf(`
server_name: secured
listen: "127.0.0.1:-1"
jetstream { store_dir: %q, max_file_store: 1TB }
tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }
operator: %s
resolver: MEMORY
resolver_preload {
%s}
`, t.TempDir(), cert, key, cert, signed(t, own, operator), accounts)
	mcptest.Check(t, os.WriteFile(conf, []byte(text), 0o600))
	o := mcptest.Must(natsserver.ProcessConfigFile(conf))(t)
	o.NoLog, o.NoSigs = true, true
	s := mcptest.Must(natsserver.NewServer(o))(t)
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
	return s.Addr().String(), creds
}

// keys are a key pair.
type keys struct {
	nkeys.KeyPair
	public string
}

func pair(t *testing.T, create func() (nkeys.KeyPair, error)) keys {
	t.Helper()
	both := mcptest.Must(create())(t)
	public := mcptest.Must(both.PublicKey())(t)
	return keys{both, public}
}

// signed returns a token with claims.
func signed(t *testing.T, claims jwt.Claims, by keys) string {
	t.Helper()
	return mcptest.Must(claims.Encode(by))(t)
}

// faults keeps the errors that a server logs.
type faults struct{ mcptest.Log }

func (f *faults) note(format string, v ...any) { fmt.Fprintf(f, format+"\n", v...) }

func (f *faults) Noticef(string, ...any)         {}
func (f *faults) Debugf(string, ...any)          {}
func (f *faults) Tracef(string, ...any)          {}
func (f *faults) Warnf(format string, v ...any)  { f.note(format, v...) }
func (f *faults) Errorf(format string, v ...any) { f.note(format, v...) }
func (f *faults) Fatalf(format string, v ...any) { f.note(format, v...) }

// certificate writes a self-signed certificate, for both ends, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private := mcptest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signed := mcptest.Must(x509.CreateCertificate(rand.Reader, form, form, &private.PublicKey, private))(t)
	secret := mcptest.Must(x509.MarshalECPrivateKey(private))(t)
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		mcptest.Check(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "EC PRIVATE KEY", secret)
}
