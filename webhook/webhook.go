// Package webhook configures completion webhooks: when a request ends and no client is
// connected to read its response, Holdfast POSTs the outcome to the URL that the client
// put into _meta["holdfast/webhook"].
//
// Set the Webhooks field of holdfast.Options to an [Options] with a [Secret]. Each POST has the
// type mcp.request.ended, the id of the request, and "completed" or "failed"; it is signed as
// Standard Webhooks 1.0.0 specifies, so that its receiver can check that it comes from this server.
// It is sent again, at growing intervals, until the receiver answers with a status of 2xx. With a
// store that outlives the process, another node or the next process goes on with the tries, and may
// send a POST again: its webhook-id is the same.
//
// # Addresses
//
// The URLs come from clients, which must not reach the operator's own network that way.
// So a webhook goes to port 443 of a public address, by https, and to nothing else,
// unless [Options.Allow] names it. The address is checked after the name was looked up
// and before the connection is made. Redirects are not followed, and no proxy is used.
package webhook

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"
)

// Options configure webhooks. All fields but Secret may be left zero, which stands for
// the default given with each.
type Options struct {
	// Secret signs the POSTs. Without it no webhook is sent.
	Secret Secret
	// Allow lists where webhooks may go besides port 443 of public addresses. These destinations
	// may be reached by http too, and at any port.
	Allow []Allowed

	Tries      int           // how often one POST is tried at most; 8
	Within     time.Duration // how long after the first try it is repeated; 1 h
	Pause      time.Duration // between the first two tries; each further pause is three times as long; 2 s
	Timeout    time.Duration // of one try; 15 s
	Queue      int           // how many POSTs wait at most on a node; further ones are dropped and logged; 10,000
	Concurrent int           // how many tries run at a time; 16
	PerHost    int           // how many of them to one host and port; 4

	Resolver *net.Resolver // looks up host names; net.DefaultResolver
	TLS      *tls.Config   // for receivers with certificates that the system does not trust
	Logger   *slog.Logger  // slog.Default()
}
