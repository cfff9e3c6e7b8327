package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Certificates are the certificate and the key of a server, and the certificates that those of
// clients are issued by. They are files, which may change. Its methods may be called
// concurrently.
type Certificates struct {
	names [3]string // of the files: certificate, key, and clients' issuers ("": clients need none)

	current atomic.Pointer[tls.Config]

	mu   sync.Mutex       // held while files are read
	used certificateFiles // the files that current was made of
	bad  string           // what was wrong when they were last read
	told bool             // that was logged
}

// OpenCertificates reads the files of a server's certificate (with those that it is issued by) and
// key, and of the certificates that clients' are issued by: all PEM. The last is "" if clients
// need no certificate.
func OpenCertificates(cert, key, clientCA string) (*Certificates, error) {
	c := &Certificates{names: [3]string{cert, key, clientCA}}
	files, err := c.read()
	if err != nil {
		return nil, err
	}
	conf, err := c.parse(files)
	if err != nil {
		return nil, err
	}
	c.current.Store(conf)
	c.used = files
	return c, nil
}

// Config returns what a listener needs. Each connection gets the files as they were when they
// were last read.
func (c *Certificates) Config() *tls.Config {
	conf := c.current.Load().Clone() // as what looks at it without a connection expects
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil }
	return conf
}

// Reload reads the files again. If they are wrong nothing changes. That is logged once: at once
// if asked is true, or else when the files are the same the next time: they may be about to be
// replaced one by one.
func (c *Certificates) Reload(asked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := c.read()
	if err == nil && files.equal(c.used) {
		c.bad, c.told = "", false
		return
	}
	var conf *tls.Config
	if err == nil {
		conf, err = c.parse(files)
	}
	if err != nil {
		again := err.Error() == c.bad
		c.told = c.told && again
		if c.bad = err.Error(); asked || again && !c.told {
			slog.Error("certificates not changed: the files are wrong", "error", err)
			c.told = true
		}
		return
	}
	c.current.Store(conf)
	c.used, c.bad, c.told = files, "", false
	slog.Info("certificates read", "file", c.names[0], "valid until", conf.Certificates[0].Leaf.NotAfter.UTC().Format(time.RFC3339))
}

// certificateFiles is what is in the files.
type certificateFiles [3][]byte

func (a certificateFiles) equal(b certificateFiles) bool {
	return bytes.Equal(a[0], b[0]) && bytes.Equal(a[1], b[1]) && bytes.Equal(a[2], b[2])
}

func (c *Certificates) read() (files certificateFiles, err error) {
	for i, name := range c.names {
		if name == "" {
			continue
		}
		if files[i], err = os.ReadFile(name); err != nil {
			return files, err
		}
	}
	return files, nil
}

// parse makes a configuration of files.
func (c *Certificates) parse(files certificateFiles) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", c.names[0], c.names[1], err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		slog.Warn("the certificate is not valid now", "file", c.names[0], "from", pair.Leaf.NotBefore, "until", pair.Leaf.NotAfter)
	}
	conf := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if c.names[2] == "" {
		return conf, nil
	}
	conf.ClientCAs = x509.NewCertPool()
	if !conf.ClientCAs.AppendCertsFromPEM(files[2]) {
		return nil, fmt.Errorf("%s: there is no certificate in it", c.names[2])
	}
	conf.ClientAuth = tls.RequireAndVerifyClientCert
	conf.SessionTicketsDisabled = true // each connection is checked against the issuers of now
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		_, err := identityOf(s.PeerCertificates[0])
		return err
	}
	return conf, nil
}

// certificateOf returns the certificate of a request's client, which was verified, or nil.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// identityOf returns who a certificate is for: its SPIFFE ID (X509-SVID, section 2), or else its
// subject, as text (RFC 2253) behind "cert:".
func identityOf(cert *x509.Certificate) (string, error) {
	for _, u := range cert.URIs {
		switch {
		case u.Scheme != "spiffe":
		case len(cert.URIs) > 1:
			return "", errors.New("the certificate has a SPIFFE ID and other URIs")
		default:
			return u.String(), nil
		}
	}
	// cert.Subject has one value only of each kind.
	var subject pkix.RDNSequence
	if _, err := asn1.Unmarshal(cert.RawSubject, &subject); err != nil || len(subject) == 0 {
		return "", errors.New("the certificate has neither a SPIFFE ID nor a subject")
	}
	return "cert:" + subject.String(), nil
}

// A confirmation says which client a token is for (RFC 7800).
type confirmation map[string]any

// holds reports whether the client of a request is the one that a token is for: it has the
// certificate that the token names (RFC 8705, section 3.1). What else a token may be bound to
// is not known here, so that such a token is refused.
func (c confirmation) holds(r *http.Request) bool {
	if c == nil {
		return true
	}
	cert := certificateOf(r)
	if cert == nil || len(c) != 1 {
		return false
	}
	sum := sha256.Sum256(cert.Raw)
	return c["x5t#S256"] == base64.RawURLEncoding.EncodeToString(sum[:])
}
