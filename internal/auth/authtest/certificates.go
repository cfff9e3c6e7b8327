package authtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A CA issues certificates.
type CA struct {
	PEM []byte // its own certificate

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA returns a new CA with a name.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	ca := &CA{t: t}
	ca.cert = &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	pair, _ := ca.issue(ca.cert)
	ca.cert, ca.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	ca.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	return ca
}

// issue returns a certificate as a pair, and the PEM of its key.
func (ca *CA) issue(cert *x509.Certificate) (tls.Certificate, []byte) {
	ca.t.Helper()
	check := func(err error) {
		if err != nil {
			ca.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	cert.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	check(err)
	if cert.NotAfter.IsZero() {
		cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	by, parent := ca.key, ca.cert
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), by)
	check(err)
	leaf, err := x509.ParseCertificate(der)
	check(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// Server returns a certificate for 127.0.0.1, with a name as its subject, and its key: both PEM. A server may use it as a client, too.
func (ca *CA) Server(name string) (cert, key []byte) {
	pair, key := ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), key
}

// Client returns a client's certificate for a subject, with URIs.
func (ca *CA) Client(subject pkix.Name, uris ...string) tls.Certificate {
	ca.t.Helper()
	cert := &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, uri := range uris {
		u, err := url.Parse(uri)
		if err != nil {
			ca.t.Fatal(err)
		}
		cert.URIs = append(cert.URIs, u)
	}
	pair, _ := ca.issue(cert)
	return pair
}

// Expired returns a client's certificate that has expired.
func (ca *CA) Expired(name string) tls.Certificate {
	pair, _ := ca.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	})
	return pair
}

// Browse returns an HTTP client that trusts this CA. It has the certificates of own, or none.
func (ca *CA) Browse(own ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	network := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: own}, ForceAttemptHTTP2: true}
	ca.t.Cleanup(network.CloseIdleConnections)
	return &http.Client{Transport: network}
}

// Files writes files to a new directory, and returns their names.
func Files(t testing.TB, contents ...[]byte) (names []string) {
	t.Helper()
	dir := t.TempDir()
	for i, c := range contents {
		names = append(names, filepath.Join(dir, string(rune('a'+i))+".pem"))
		if err := os.WriteFile(names[i], c, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return names
}
