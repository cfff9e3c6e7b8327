package auth

import (
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
	"sync/atomic"
	"time"
)

// Certificates are the certificate and the key of a server, and the certificates that those of
// clients are issued by. They are files, which may change. Its methods may be called
// concurrently.
type Certificates struct {
	files   // certificate, key, and clients' issuers ("": clients need none)
	current atomic.Pointer[tls.Config]
}

// OpenCertificates reads the files of a server's certificate (with those that it is issued by) and
// key, and of the certificates that clients' are issued by: all PEM. The last is "" if clients
// need no certificate.
func OpenCertificates(cert, key, clientCA string) (*Certificates, error) {
	c := &Certificates{files: files{what: "certificates", names: []string{cert, key, clientCA}}}
	c.take = func(texts [][]byte) ([]any, error) {
		conf, err := c.parse(texts)
		if err != nil {
			return nil, err
		}
		c.current.Store(conf)
		leaf := conf.Certificates[0].Leaf
		if now := time.Now(); now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
			slog.Warn("the certificate is not valid now, and clients refuse it: renew it, or set the clock right", "file", cert, "from", leaf.NotBefore, "until", leaf.NotAfter)
		}
		return []any{"valid until", leaf.NotAfter.UTC().Format(time.RFC3339)}, nil
	}
	if err := c.open(); err != nil {
		return nil, err
	}
	return c, nil
}

// Config returns what a listener needs. Each connection gets the files as they were when they
// were last read.
func (c *Certificates) Config() *tls.Config {
	conf := c.current.Load().Clone() // as what looks at it without a connection expects
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil }
	return conf
}

// parse makes a configuration of files.
func (c *Certificates) parse(texts [][]byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", c.names[0], c.names[1], err)
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
	if !conf.ClientCAs.AppendCertsFromPEM(texts[2]) {
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

// holds reports whether the client of a request is the one that a token is for, as far as its connection says that: it has the
// certificate that the token names (RFC 8705, section 3.1). proofs says that a token may be bound to a key, of which the
// request has a proof. What else a token may be bound to is not known here, so that such a token is refused.
func (c confirmation) holds(r *http.Request, proofs bool) bool {
	for name, value := range c {
		switch name {
		case "x5t#S256":
			cert := certificateOf(r)
			if cert == nil {
				return false
			}
			if sum := sha256.Sum256(cert.Raw); value != base64.RawURLEncoding.EncodeToString(sum[:]) {
				return false
			}
		case "jkt":
			if _, ok := c.key(); !ok || !proofs {
				return false
			}
		default:
			return false
		}
	}
	return c == nil || len(c) > 0
}

// key returns the thumbprint of the key that a token is bound to (RFC 9449, section 6.1).
func (c confirmation) key() (thumbprint string, ok bool) {
	thumbprint, _ = c["jkt"].(string)
	return thumbprint, thumbprint != ""
}
