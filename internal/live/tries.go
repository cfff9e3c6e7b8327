package live

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/observe"
)

// The bounds of wrong tokens.
const (
	mostTries  = 10          // wrong tokens of one address in a window
	triesFor   = time.Minute // the window, which the first wrong token begins
	mostTriers = 1_000       // addresses with a count of their own; the others share one
)

// tries counts the wrong tokens of addresses. Its zero value is ready for use.
type tries struct {
	mu   sync.Mutex
	last map[netip.Prefix]*tried
}

// tried counts the wrong tokens of one address in a window.
type tried struct {
	end  time.Time
	n    int
	told bool // try has returned first
}

// try notes a token of an address. If the address has sent too many wrong ones, try returns for how long no token of it is taken, and
// in first whether this is the first time in the window. With a wait of 0 the caller may look at the token.
func (t *tries) try(from netip.Prefix, now time.Time, right bool) (wait time.Duration, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.of(from, now)
	switch {
	case x != nil && x.n >= mostTries && now.Before(x.end):
		first, x.told = !x.told, true
		return x.end.Sub(now), first
	case right:
		return 0, false
	case x == nil:
		x = t.add(from)
	}
	if !now.Before(x.end) {
		*x = tried{end: now.Add(triesFor)}
	}
	x.n++
	return 0, false
}

// of returns the count of an address; if that has none and there is no room for it, the shared one. It may be nil. t.mu is held.
func (t *tries) of(from netip.Prefix, now time.Time) *tried {
	if x := t.last[from]; x != nil || !t.full(now) {
		return x
	}
	return t.last[netip.Prefix{}]
}

// full drops the counts of windows that are over if there is no room for another address, and reports whether there still is none.
// t.mu is held.
func (t *tries) full(now time.Time) bool {
	if len(t.last) < mostTriers {
		return false
	}
	for old, x := range t.last {
		if !now.Before(x.end) {
			delete(t.last, old)
		}
	}
	return len(t.last) >= mostTriers
}

// add begins a count for an address, or the shared one if there is no room. t.mu is held.
func (t *tries) add(from netip.Prefix) *tried {
	if t.last == nil {
		t.last = make(map[netip.Prefix]*tried)
	}
	if len(t.last) >= mostTriers {
		from = netip.Prefix{}
	}
	x := &tried{}
	t.last[from] = x
	return x
}

// admit reports whether a request has the operator's token. If not, it has answered and logged the request.
func (l *Live) admit(w http.ResponseWriter, r *http.Request) bool {
	now, from := time.Now(), prefixOf(r)
	refuse := func(reason string, status int, text string) bool {
		l.opts.Happened(observe.PageRefused{Reason: reason})
		http.Error(w, text, status)
		return false
	}
	const text = "the token is not the one that this node has printed, or was given with --admin-token"
	if r.Header.Get(HeaderToken) == "" {
		l.opts.Logger.Warn("an action on the live page was refused: its token is missing", "address", addressOf(r))
		return refuse("missing", http.StatusForbidden, text)
	}
	right := l.hasToken(r)
	if wait, first := l.tries.try(from, now, right); wait > 0 {
		if first {
			l.opts.Logger.Warn("too many wrong tokens for the live page: no token of this address is taken for now", "address", addressOf(r), "for", wait.Round(time.Second))
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)+1))
		return refuse("limited", http.StatusTooManyRequests, fmt.Sprintf("%d wrong tokens came from this address: try again in %v", mostTries, wait.Round(time.Second)))
	}
	if right {
		return true
	}
	l.opts.Logger.Warn("a wrong token for the live page was refused", "address", addressOf(r))
	return refuse("wrong", http.StatusForbidden, text)
}

// hasToken reports whether a request has the token. The time that it takes reveals nothing of the token.
func (l *Live) hasToken(r *http.Request) bool {
	want, got := sha256.Sum256([]byte(l.opts.Token)), sha256.Sum256([]byte(r.Header.Get(HeaderToken)))
	return l.opts.Token != "" && subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// addressOf returns the address of a client, without its port.
func addressOf(r *http.Request) string {
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return at.Addr().Unmap().String()
	}
	return shortened(r.RemoteAddr)
}

// prefixOf returns the network that counts as one address: for IPv6 a /64, and one for all loopback addresses.
func prefixOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr, bits := at.Addr().Unmap().WithZone(""), 32
	switch {
	case addr.IsLoopback():
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	case addr.Is6():
		bits = 64
	}
	p, _ := addr.Prefix(bits)
	return p
}

// shortened cuts a client's text to mostText bytes.
func shortened(text string) string {
	if len(text) > mostText {
		return text[:mostText] + "…"
	}
	return text
}
