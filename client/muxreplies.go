package client

import (
	"context"

	"holdfast/jsonrpc"
)

// mostReplies bounds how many replies wait for a confirmation.
const mostReplies = 1000

// replies are the host's replies that were written to a [mux] and that the server has not
// confirmed: they are written again to the next connection. mux.mu guards them.
type replies struct {
	unconfirmed map[string]*reply // by the key of their id
	count       int               // how many replies there have been
	confirming  bool              // the server is being asked whether it has them
}

// A reply is an unconfirmed reply of the host.
type reply struct {
	k          *call
	raw        []byte
	number     int // counts the replies
	connection int // over which it was written; 0: none yet
}

// add notes a reply. If there are too many, it forgets the oldest.
func (r *replies) add(k *call, m jsonrpc.Message) *reply {
	if len(r.unconfirmed) >= mostReplies {
		oldest := ""
		for key, old := range r.unconfirmed {
			if oldest == "" || old.number < r.unconfirmed[oldest].number {
				oldest = key
			}
		}
		delete(r.unconfirmed, oldest)
	}
	r.count++
	one := &reply{k: k, raw: m.Raw, number: r.count}
	r.unconfirmed[string(jsonrpc.Key(m.ID))] = one
	return one
}

// loseSession forgets the replies to requests of an ended session that belonged to no call.
func (r *replies) loseSession() {
	for key, one := range r.unconfirmed {
		if one.k == nil {
			delete(r.unconfirmed, key)
		}
	}
}

// written returns, by their keys, the replies that were written over a connection.
func (r *replies) written(connection int) map[string]*reply {
	some := make(map[string]*reply)
	for key, one := range r.unconfirmed {
		if one.connection == connection {
			some[key] = one
		}
	}
	return some
}

// writeReply writes a message over the connection of a number. r is the reply to be confirmed, or nil.
func (x *mux) writeReply(ctx context.Context, number int, raw []byte, r *reply) error {
	if err := x.write(ctx, number, raw); err != nil || r == nil {
		return err
	}
	x.mu.Lock()
	r.connection = max(r.connection, number) // a newer connection may have it by now
	start := !x.replies.confirming
	x.replies.confirming = true
	x.mu.Unlock()
	if start {
		x.c.spawn(x.confirm)
	}
	return nil
}

// confirm asks the server to confirm replies, and forgets them, until none that was written
// over this connection is left.
func (x *mux) confirm() {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() { x.replies.confirming = false }()
	for {
		number := x.number
		some := x.replies.written(number)
		if !x.state.connected() || len(some) == 0 {
			return
		}
		x.mu.Unlock()
		err := x.conn.confirm(x.c.ctx)
		x.mu.Lock()
		switch {
		case !x.up(number): // the replies were written again, or will be
			continue
		case err != nil:
			return // the next reply that is written starts this again
		}
		for key, one := range some {
			if x.replies.unconfirmed[key] == one {
				delete(x.replies.unconfirmed, key)
			}
		}
	}
}

// repeatReplies writes the unconfirmed replies again, over a new connection.
func (x *mux) repeatReplies(number int) {
	x.mu.Lock()
	var again []*reply
	for id, r := range x.replies.unconfirmed {
		if r.k != nil && r.k.done() {
			delete(x.replies.unconfirmed, id)
			continue
		}
		again = append(again, r)
	}
	x.mu.Unlock()
	for _, r := range again {
		if x.writeReply(x.c.ctx, number, r.raw, r) != nil {
			return
		}
	}
}
