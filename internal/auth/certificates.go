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

// Certificates are the certificate and the key of a server, and the certificates of the CAs that issue clients' certificates.
// They are files, which may change. The methods may be called concurrently.
type Certificates struct {
	files   // certificate, key, and CAs of clients ("": clients need no certificate)
	current atomic.Pointer[tls.Config]
}

// OpenCertificates reads the files of a server's certificate (with those of its issuers), of its key, and of the CAs of
// clients: all PEM. clientCA is "" if clients need no certificate.
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

// Config returns the configuration of a listener. Each connection gets the certificates that were read last.
func (c *Certificates) Config() *tls.Config {
	conf := c.current.Load().Clone() // complete, for code that reads it without a connection
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil }
	return conf
}

// parse returns the configuration that the files' texts make.
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
	conf.SessionTicketsDisabled = true // each connection is checked against the CAs that were read last
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		_, err := identityOf(s.PeerCertificates[0])
		return err
	}
	return conf, nil
}

// certificateOf returns the verified certificate of a request's client, or nil.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// identityOf returns the principal of a certificate: its SPIFFE ID (X509-SVID, section 2), or else "cert:" and its subject as
// text (RFC 2253).
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
	// cert.Subject keeps only one value of some kinds.
	var subject pkix.RDNSequence
	if _, err := asn1.Unmarshal(cert.RawSubject, &subject); err != nil || len(subject) == 0 {
		return "", errors.New("the certificate has neither a SPIFFE ID nor a subject")
	}
	return "cert:" + subject.String(), nil
}

// A confirmation says which client a token is bound to (RFC 7800).
type confirmation map[string]any

// holds reports whether the connection of a request satisfies the confirmation: its client has the certificate that the token
// names (RFC 8705, section 3.1). proofs allows tokens that are bound to a key; [Policy.prove] checks their proofs. A token
// that is bound in any other way is refused.
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
