package limit

import (
	"maps"
	"time"
)

// This file is for nodes that share a policy. Each node counts by itself, and tells the others its
// counts from time to time: how many calls have begun, which the others take from their own buckets,
// and how many are in flight. No node is asked when a call begins. docs/limits.md says how exact
// that is.

const (
	// ShareEvery is how often other nodes are told.
	ShareEvery = 250 * time.Millisecond
	// againEvery is after how many of these intervals an unchanged number is told again.
	// forgetAfter is after which time a number is forgotten, as its node is gone.
	againEvery  = 4
	forgetAfter = 3 * time.Second
	// mostShared bounds how many numbers are told at a time. The others are told later.
	mostShared = 4096
)

// A Number is one node's number for one key. It is sent as JSON; a node of another build ignores
// kinds and members that it does not know.
type Number struct {
	Kind   kind   `json:"k"`
	Server string `json:"s,omitempty"`
	Name   []byte `json:"n,omitempty"` // not always UTF-8
	N      int    `json:"c"`           // calls that have begun since the last time, or that are in flight
}

// shared has the numbers of other nodes, and the changes to tell them. Guarded by Limiter.mu.
type shared struct {
	turn  int                   // how often other nodes were told
	used  map[key]struct{}      // the keys of buckets with use that was not told yet
	known map[nodeKey]elsewhere // calls in flight on other nodes
}

// A nodeKey is a key of a node.
type nodeKey struct {
	node string
	key
}

// elsewhere is how many calls were in flight on another node, as it told at a time.
type elsewhere struct {
	n  int
	at time.Time
}

// Share begins to count for other nodes. It is called once, before the first call.
func (l *Limiter) Share() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shared.used, l.shared.known = make(map[key]struct{}), make(map[nodeKey]elsewhere)
}

// use notes that calls have begun, to tell other nodes. l.mu is held.
func (l *Limiter) use(k key, b *bucket, calls int) {
	if l.shared.used != nil && l.buckets.all[k] == b { // shared buckets are not told
		b.used += calls
		l.shared.used[k] = struct{}{}
	}
}

// Changes returns the numbers to tell other nodes now. It is called every [ShareEvery], and forgets
// the numbers of silent nodes.
func (l *Limiter) Changes() (all []Number) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shared.turn++
	for k := range l.shared.used {
		if len(all) >= mostShared/2 {
			break
		}
		delete(l.shared.used, k)
		if b := l.buckets.all[k]; b != nil && b.used > 0 {
			all = append(all, Number{k.kind, k.server, []byte(k.name), b.used})
			b.used = 0
		}
	}
	for k, c := range l.counts {
		if len(all) >= mostShared {
			break
		}
		if c.here != c.shared || c.here > 0 && l.shared.turn%againEvery == 0 {
			all = append(all, Number{k.kind, k.server, []byte(k.name), c.here})
			c.shared = c.here
			l.settle(k, c)
		}
	}
	now := time.Now()
	silent := false
	maps.DeleteFunc(l.shared.known, func(of nodeKey, was elsewhere) bool {
		if now.Sub(was.at) < forgetAfter {
			return false
		}
		l.addElsewhere(of.key, -was.n)
		silent = true
		return true
	})
	if silent {
		l.dispatch()
	}
	return all
}

// Merge takes the numbers that another node tells.
func (l *Limiter) Merge(node string, all []Number) {
	rates := make([]Rate, len(all)) // read before the lock is taken
	for i := range all {
		rates[i] = l.rateOf(&all[i])
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	freed := false
	for i := range all {
		k := key{all[i].Kind, all[i].Server, string(all[i].Name)}
		switch {
		case all[i].N < 0 || all[i].N > 1<<30:
		case k.kind >= clientCalls && k.kind <= toolCalls:
			of := nodeKey{node, k}
			was := l.shared.known[of].n
			if l.addElsewhere(k, all[i].N-was); all[i].N == 0 {
				delete(l.shared.known, of)
			} else if l.shared.known != nil {
				l.shared.known[of] = elsewhere{all[i].N, now}
			}
			freed = freed || all[i].N < was
		case rates[i].PerSecond > 0:
			l.buckets.of(k, rates[i], now).owe(all[i].N, now)
		}
	}
	if freed {
		l.dispatch()
	}
}

// rateOf returns the rate that a number counts for; zero for calls in flight.
func (l *Limiter) rateOf(n *Number) Rate {
	switch {
	case n.Kind == clientRate:
		return l.p.Rate
	case n.Kind == addressRate:
		return l.p.AddressRate
	case n.Kind == serverRate && l.p.Servers != nil:
		return l.p.Servers.Limits(n.Server, "").Rate
	}
	return Rate{}
}

// addElsewhere counts n more calls that are in flight on other nodes. l.mu is held.
func (l *Limiter) addElsewhere(k key, n int) {
	if n == 0 || l.shared.known == nil {
		return
	}
	c := l.counts[k]
	if c == nil {
		c = &count{}
		l.counts[k] = c
	}
	c.elsewhere += n
	l.settle(k, c)
}
