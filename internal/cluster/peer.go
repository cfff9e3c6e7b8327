package cluster

import (
	"sync/atomic"
	"time"
)

// A peer is the state of another node, as this node knows it. It has more than fifteen fields with
// those of flow, which counts the bytes on their way to the peer and from it.
type peer struct {
	name  string
	seen  atomic.Int64 // when its last message came, by Node.now
	state atomic.Int32 // a peerState; changes under Node.mu
	users atomic.Int32 // goroutines that use it: it is not forgotten

	flow flow

	// Under Node.mu:
	conns    int  // connections to it
	beats    bool // its heartbeat has come
	draining bool
	load     peerLoad
	asked    time.Duration // since when it is pinged and does not answer; 0: it is not pinged
	excused  bool          // the pings began anew, as the bus had carried no messages for a short time
	nameless time.Duration // since when the bus says that no node has its name; 0: it does not say so
	lostAt   time.Duration
	toldLost bool          // the loss was logged, and no message has come since
	news     chan struct{} // closed when anything changes; nil: no goroutine waits
}

// A peerState is a node's belief about a peer. These are the transitions:
//
//	           message  silence    no name    no answer  farewell  awake
//	unknown    alive    -          gone       gone       left      -
//	alive      -        suspected  suspected  gone       left      -
//	suspected  alive    -          -          gone       left      alive
//	gone       alive    -          -          -          left      suspected
//	left       -        -          -          -          -         -
//
// The work of a peer that is gone or left is lost. A peer that is gone may only have been stopped,
// and comes back with its next message. A node that was away may have missed that message, so it
// asks again.
type peerState int32

const (
	unknown   peerState = iota // only its name is known
	alive                      // its messages come
	suspected                  // it is pinged
	gone                       // it seems to have ended
	left                       // it has said that it ends
)

func (s peerState) String() string {
	return [...]string{"unknown", "alive", "suspected", "gone", "left"}[s]
}

// A sign is an event that changes the state of a peer.
type sign int

const (
	signMessage  sign = iota // a message of the peer has come
	signSilence              // its heartbeat is late
	signNoName               // the bus says that no node has its name
	signNoAnswer             // it had its time to answer a ping; or the bus has not known its name for long
	signFarewell             // it says that it ends
	signAwake                // this node was or is away, so that silence says nothing
)

// after returns the state that follows a sign.
func (s peerState) after(g sign) peerState {
	switch {
	case s == left:
	case g == signFarewell:
		return left
	case g == signMessage:
		return alive
	case s == gone && g == signAwake:
		return suspected
	case s == gone:
	case g == signNoAnswer, g == signNoName && s == unknown:
		return gone
	case s == alive && (g == signSilence || g == signNoName):
		return suspected
	case s == suspected && g == signAwake:
		return alive
	}
	return s
}

// take changes the state as a sign demands, and returns the states before and after.
// Node.mu is held.
func (p *peer) take(g sign) (was, is peerState) {
	was = p.is()
	is = was.after(g)
	p.state.Store(int32(is))
	if is == alive {
		p.asked, p.nameless, p.excused = 0, 0, false
	}
	return was, is
}

func (p *peer) is() peerState { return peerState(p.state.Load()) }

// lost reports whether the peer is gone or has left.
func (p *peer) lost() bool { return p.is() >= gone }

// announce wakes the goroutines that wait for news of the peer. Node.mu is held.
func (p *peer) announce() {
	if p.news != nil {
		close(p.news)
		p.news = nil
	}
}

// silence returns how long no message of the peer has come.
func (p *peer) silence(now time.Duration) time.Duration {
	return now - time.Duration(p.seen.Load())
}
