package client

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/sse"
)

// A headersOf is an Authorizer that has headers for single messages, as a server in front of another one has
// headers of its clients. Headers of the options, and of the protocol, take precedence.
type headersOf interface {
	// Headers returns the headers of the message that the host has sent with ctx. The caller does not change them.
	Headers(ctx context.Context) http.Header
}

// head sets the header of a request.
func (s *remote) head(ctx context.Context, req *http.Request, x exchange) error {
	h := req.Header
	if more, ok := s.opts.Auth.(headersOf); ok && x.message {
		if host, ok := ctx.Value(hostKey{}).(context.Context); ok {
			maps.Copy(h, more.Headers(host))
		}
	}
	for name, values := range s.opts.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	switch x.method {
	case http.MethodPost:
		h["Content-Type"] = typeJSON
		h["Accept"] = typeBoth
	case http.MethodGet:
		h["Accept"] = typeSSE
	}
	if h["Accept-Encoding"] == nil {
		h["Accept-Encoding"] = uncompressed
	}
	if x.session != nil && x.session.id != "" {
		h[protocol.HeaderSession] = []string{x.session.id}
	}
	if x.session != nil && x.session.revision != "" {
		h[protocol.HeaderVersion] = []string{x.session.revision}
	}
	if x.last != "" {
		h[protocol.HeaderLastEventID] = []string{x.last}
	}
	if x.key != "" {
		h[protocol.HeaderIdempotencyKey] = []string{`"` + x.key + `"`}
	}
	if x.headers != nil {
		x.headers(h)
	}
	if s.opts.Auth != nil {
		value, err := s.authorization(ctx, x.message)
		if err != nil {
			return fmt.Errorf("authorization: %w", err)
		}
		if value != "" {
			h.Set("Authorization", value)
			if err := s.withProof(req, x.body); err != nil {
				return fmt.Errorf("authorization: %w", err)
			}
		}
	}
	return nil
}

var (
	typeJSON = []string{"application/json"}
	typeBoth = []string{"application/json, text/event-stream"}
	typeSSE  = []string{sse.ContentType}
)

// uncompressed is sent because a server may compress for a client that says nothing (RFC 9110,
// section 12.5.3). A compressed stream may be held back.
var uncompressed = []string{"identity"}

// headable reports whether a header can hold a value (RFC 9110, section 5.5). An event id
// that no header can hold is ignored.
func headable(value string) bool {
	return len(value) <= mostWay && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// sameOrigin reports whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// upgrades reports whether a redirect goes from http to https on the same host, both on
// their default ports.
func upgrades(from, to *url.URL) bool {
	return from.Scheme == "http" && to.Scheme == "https" && strings.EqualFold(from.Hostname(), to.Hostname()) &&
		port(from) == "80" && port(to) == "443"
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" || u.Scheme == "wss" {
		return "443"
	}
	return "80"
}
