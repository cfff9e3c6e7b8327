package client

import "time"

// aliveWithin is the time of two keep-alives and five seconds more, for a server that sends one each 15 s, as Holdfast does.
const aliveWithin = 35 * time.Second

// A keepAliveReader reads a response, and notes that the server sends keep-alives: then more
// of them will come, and silence means a dead connection.
type keepAliveReader struct {
	r       *response
	silence time.Duration // how long nothing may come, at the most
	quick   time.Duration // how long nothing may come, at the least
	reads   int
	seen    bool // the server sends keep-alives
	last    time.Time
	every   time.Duration // the longest time before a keep-alive
	set     time.Duration // the time that expect has set for the response
}

// Read implements io.Reader.
func (k *keepAliveReader) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	if k.reads++; n == 0 {
		return n, err
	}
	now := time.Now()
	// The first bytes may come with the header. A comment that comes later is a keep-alive.
	if k.reads > 1 && p[0] == ':' {
		k.seen = true
		k.every = max(k.every, now.Sub(k.last))
		k.expect()
	}
	k.last = now
	return n, err
}

// surelyApart is the shortest time between two keep-alives: a comment that comes sooner may belong to an event.
const surelyApart = time.Second

// expect sets how long nothing may come from now on: the time of two keep-alives, as they have come so far, and a bit more.
func (k *keepAliveReader) expect() {
	within := k.silence
	if k.every >= surelyApart {
		within = min(k.silence, max(k.quick, 2*k.every+aliveWithin/7))
	}
	if quiet := k.r.quiet; quiet == 0 || quiet > within || quiet == k.set {
		k.set = within
		k.r.expect(within)
	}
}

// silence returns how long the call's connection may be silent before another one replaces it, over which the call can
// be continued.
func (k *call) silence() time.Duration {
	if k.hasWay() {
		return k.c.opts.quick
	}
	return k.c.opts.Silence // the call would be made again, and may just be slow
}
