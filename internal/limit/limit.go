// Package limit decides how many calls clients may begin in a time (rates), and how many may be in
// flight at once. It knows names and numbers only: no connection, no session, no I/O. Calls over a
// limit are refused, or wait in a queue that has a bound.
//
// docs/limits.md lists the limits; docs/decisions has the reasons.
package limit

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/defaults"
)

// A Rate is how many calls may begin in a time. The zero value sets no bound.
type Rate struct {
	PerSecond float64
	Burst     int // how many may begin at once; 0: as many as in a second, and at least 1
}

// burst returns Burst or its default.
func (r Rate) burst() int { return cmp.Or(r.Burst, max(1, int(r.PerSecond))) }

// units are the units of rates, in seconds.
var units = map[string]float64{"s": 1, "m": 60, "h": 3600}

// ParseRate returns the calls a second of a text like "50/s", "600/m" or "10/h".
func ParseRate(text string) (perSecond float64, _ error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	seconds, ok := units[unit]
	if err != nil || !ok || !(n > 0 && n <= 1e9) {
		return 0, errors.New("want a rate like 50/s, 600/m or 10/h")
	}
	return n / seconds, nil
}

// A Policy has the bounds. The zero value bounds nothing.
type Policy struct {
	Rate        Rate // of calls of one client: a principal, or else an address
	AddressRate Rate // of calls and new sessions of one address
	ClientCalls int  // in flight, of one client; 0: any number
	ToolCalls   int  // in flight, of one tool; 0: any number

	Queue     int           // calls that may wait for others to end; 0: none
	QueueWait time.Duration // for how long; 10 s
	Share     float64       // part of the queue that one client may fill; 0: all

	// Servers knows the bounds of single servers; nil: there are none.
	Servers Servers
}

// Servers knows bounds of single servers. The methods may be called concurrently, and do not wait.
type Servers interface {
	// Limited reports whether any server has bounds.
	Limited() bool
	// Limits returns the bounds of a server and its tool, or "" for another request.
	Limits(server, tool string) Own
}

// bounds reports whether the policy itself has a bound.
func (p *Policy) bounds() bool {
	return p.Rate.PerSecond > 0 || p.AddressRate.PerSecond > 0 || p.ClientCalls > 0 || p.ToolCalls > 0
}

// An Own has the bounds of one server, and of a tool of it.
type Own struct {
	Server, Tool string // that the calls count for; they may differ from those in the request
	Calls        int    // of the server, in flight; 0: any number
	ToolCalls    int    // of the tool, in flight; 0: Policy.ToolCalls
	Rate         Rate   // of calls of one client
}

// A Caller is the client that begins calls.
type Caller struct {
	Server  string // or "" if there is only one server
	Client  string // a principal or an address; "": not known, and not bounded
	Address string // "": not known
}

// A Limiter enforces a policy. Its methods may be called concurrently; those of a nil Limiter bound
// nothing. Its memory is bounded: see [buckets] and [Policy.Queue].
type Limiter struct {
	p Policy

	mu      sync.Mutex
	buckets buckets
	counts  map[key]*count
	queue   queue
	shared  shared
}

// New returns a limiter, or nil if the policy bounds nothing.
func New(p Policy) *Limiter {
	if !p.bounds() && p.Servers == nil {
		return nil
	}
	p.QueueWait = cmp.Or(p.QueueWait, defaults.QueueWait)
	return &Limiter{p: p, counts: make(map[key]*count)}
}

// Bounds reports whether there is a bound now.
func (l *Limiter) Bounds() bool {
	return l != nil && (l.p.bounds() || l.p.Servers.Limited())
}

// A kind is a kind of count or rate.
type kind uint8

const (
	clientRate kind = iota
	serverRate      // of one client, at one server
	addressRate
	clientCalls
	serverCalls
	toolCalls
)

// A key names a count or a rate.
type key struct {
	kind         kind
	server, name string
}

// shortName is the longest name that is kept as it is, in bytes.
const shortName = 128

// short returns a name, or its digest if it is long. No name looks like a digest.
func short(name string) string {
	if len(name) <= shortName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "\x00" + string(sum[:])
}

// A demand has the counts and rates that one request needs.
type demand struct {
	client string
	work   int // how many calls the request counts as; 0: one
	counts [3]struct {
		key
		most int
	}
	n     int // of counts
	rates [3]struct {
		key
		Rate
	}
	m int // of rates
}

// demand returns the demand of a request. tool is the tool that it calls, or "".
func (l *Limiter) demand(c Caller, tool string) (d demand) {
	own := Own{Server: c.Server, Tool: tool}
	if l.p.Servers != nil {
		own = l.p.Servers.Limits(c.Server, tool)
	}
	d.client = c.Client
	if c.Client != "" {
		d.count(clientCalls, "", c.Client, l.p.ClientCalls)
		d.rate(clientRate, "", c.Client, l.p.Rate)
		d.rate(serverRate, own.Server, c.Client, own.Rate)
	}
	d.count(serverCalls, own.Server, "", own.Calls)
	if tool != "" {
		d.count(toolCalls, own.Server, own.Tool, cmp.Or(own.ToolCalls, l.p.ToolCalls))
	}
	if c.Address != "" {
		d.rate(addressRate, "", c.Address, l.p.AddressRate)
	}
	return d
}

func (d *demand) count(kind kind, server, name string, most int) {
	if most > 0 {
		d.counts[d.n].key, d.counts[d.n].most = key{kind, server, short(name)}, most
		d.n++
	}
}

func (d *demand) rate(kind kind, server, name string, r Rate) {
	if r.PerSecond > 0 {
		d.rates[d.m].key, d.rates[d.m].Rate = key{kind, server, short(name)}, r
		d.m++
	}
}

// Admit admits requests that begin together. tools has the tool that each request calls, or "". The Pass has
// their slots, which they hold until they end; nil: they take none. The error is a *[Refusal] of all of them.
func (l *Limiter) Admit(c Caller, tools ...string) (*Pass, error) {
	if l == nil || len(tools) == 0 {
		return nil, nil
	}
	var one [1]demand
	demands := one[:0]
	for _, tool := range tools {
		demands = append(demands, l.demand(c, tool))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pass, full := l.take(demands)
	if full != nil {
		full.limiter, full.demands = l, slices.Clone(demands)
		full.waits = l.p.Queue > 0 && len(demands) == 1
		return nil, full
	}
	if no := l.charge(demands, time.Now()); no != nil {
		pass.release()
		return nil, no
	}
	return pass, nil
}

// AdmitWork admits a request that counts as a number of calls for the rates, but as no call in flight. The
// error is a *[Refusal].
func (l *Limiter) AdmitWork(c Caller, work int) error {
	if l == nil || work == 0 {
		return nil
	}
	d := l.demand(c, "")
	d.work = work
	l.mu.Lock()
	defer l.mu.Unlock()
	if no := l.charge([]demand{d}, time.Now()); no != nil {
		return no
	}
	return nil
}

// AdmitAddress admits a new session of an address. The error is a *[Refusal].
func (l *Limiter) AdmitAddress(address string) error {
	if l == nil || address == "" || l.p.AddressRate.PerSecond == 0 {
		return nil
	}
	var d [1]demand
	d[0].rate(addressRate, "", address, l.p.AddressRate)
	l.mu.Lock()
	defer l.mu.Unlock()
	if no := l.charge(d[:], time.Now()); no != nil {
		return no
	}
	return nil
}

// Hold counts requests that are in flight already: the requests of a session that was taken over.
func (l *Limiter) Hold(c Caller, tools ...string) *Pass {
	if l == nil || len(tools) == 0 {
		return nil
	}
	demands := make([]demand, len(tools))
	for i, tool := range tools {
		demands[i] = l.demand(c, tool)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pass := l.newPass(len(demands))
	for i := range demands {
		pass.add(&demands[i])
	}
	return pass
}

// Waiting returns how many calls wait.
func (l *Limiter) Waiting() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.n
}
