package cluster

import (
	"encoding/binary"
	"sync"
)

// A message between nodes is a version, a kind, the name of the node that sends it (its length
// first), and the content of the kind:
//
//	beat     flags, calls, sessions: a heartbeat; older builds send and read the flags alone
//	bye      that it ends
//	ping     asks for a pong
//	notice   data of Notify
//	open     conn, window: a connection is dialled
//	accept   conn, window: and taken
//	data     conn, number, place, bytes
//	fin      conn, number: the end has closed; it sends nothing after this, and reads nothing
//	reset    conn: it is not known, or has failed
//	credit   conn, how many bytes may have been sent in all, the number waited for
//	check    for each conn: the number of the next message to be sent
//	have     for each conn of a check: the numbers of a credit
//	sent     place: how many bytes of data were sent to the node in all
//	arrived  place: the bytes up to it are not on their way any more
//
// A conn is its id, and whether the dialler or the other end sends the message. Messages of a
// conn's direction are numbered from 0. The place of a data message is how many bytes all conns
// have sent to the node, with it (see flowcontrol.go). Numbers are varints.
const version = 1

type kind byte

const (
	kindBeat kind = iota
	kindBye
	kindPing
	kindPong
	kindNotice
	kindOpen
	kindAccept
	kindData
	kindFin
	kindReset
	kindCredit
	kindCheck
	kindHave
	kindSent
	kindArrived
)

// Flags of a beat.
const (
	beatDraining = 1 << iota // no new sessions here; a door says so from the start
	beatHello                // answer with a heartbeat
)

// headRoom is more than the size of the head before the bytes of a data message.
const headRoom = 2 + 1 + 255 + 9 + 2*binary.MaxVarintLen64

// connID names a connection at one of its ends.
type connID struct {
	id     uint64
	dialed bool // this end has dialled
}

// appendHead begins a message.
func (n *Node) appendHead(b []byte, k kind) []byte {
	b = append(b, version, byte(k), byte(len(n.name)))
	return append(b, n.name...)
}

// parseHead takes a message apart. ok: it is well-formed.
func parseHead(m []byte) (k kind, from, body []byte, ok bool) {
	if len(m) < 3 || m[0] != version || len(m) < 3+int(m[2]) {
		return 0, nil, nil, false
	}
	end := 3 + int(m[2])
	return kind(m[1]), m[3:end], m[end:], true
}

// appendConn names a connection as the sending end has it.
func appendConn(b []byte, id connID) []byte {
	side := byte(0)
	if id.dialed {
		side = 1
	}
	return binary.BigEndian.AppendUint64(append(b, side), id.id)
}

// A reader takes a message's body apart. Once a value is missing, all values are zero.
type reader struct {
	b   []byte
	bad bool
}

// conn returns the name of a connection as the receiving end has it.
func (r *reader) conn() connID {
	if len(r.b) < 9 {
		r.bad, r.b = true, nil
		return connID{}
	}
	id := connID{id: binary.BigEndian.Uint64(r.b[1:]), dialed: r.b[0] == 0}
	r.b = r.b[9:]
	return id
}

func (r *reader) number() uint64 {
	v, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[size:]
	return v
}

// A packet is a message to be sent. Its memory is used again.
type packet struct{ b []byte }

var packets = sync.Pool{New: func() any { return &packet{make([]byte, 0, 1<<10)} }}

// compose begins a message. The function that sends the packet puts it back.
func (n *Node) compose(k kind) *packet {
	p := packets.Get().(*packet)
	p.b = n.appendHead(p.b[:0], k)
	return p
}

func (p *packet) conn(id connID) *packet {
	p.b = appendConn(p.b, id)
	return p
}

func (p *packet) number(v uint64) *packet {
	p.b = binary.AppendUvarint(p.b, v)
	return p
}

func (p *packet) bytes(b ...byte) *packet {
	p.b = append(p.b, b...)
	return p
}
