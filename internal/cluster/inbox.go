package cluster

import "sync"

// rooms are memory for what has arrived at a connection, by size: an idle
// connection has none.
var rooms = [...]struct {
	size int
	pool sync.Pool
}{{size: 2 << 10}, {size: 16 << 10}, {size: 64 << 10}, {size: 256 << 10}}

type room struct {
	b     []byte
	class int // of rooms; -1: none
}

func newRoom(size int) *room {
	for i := range rooms {
		if size <= rooms[i].size {
			if r, ok := rooms[i].pool.Get().(*room); ok {
				return r
			}
			return &room{b: make([]byte, 0, rooms[i].size), class: i}
		}
	}
	return &room{b: make([]byte, 0, size), class: -1}
}

func (r *room) free() {
	if r != nil && r.class >= 0 {
		r.b = r.b[:0]
		rooms[r.class].pool.Put(r)
	}
}

// An inbox holds the bytes that have arrived and nobody has read.
type inbox struct {
	room *room
	read int // how many bytes of the room have been read
}

func (i *inbox) len() int {
	if i.room == nil {
		return 0
	}
	return len(i.room.b) - i.read
}

// add copies bytes in.
func (i *inbox) add(p []byte) {
	switch {
	case i.room == nil:
		i.room = newRoom(len(p))
	case len(i.room.b)+len(p) <= cap(i.room.b):
	case i.read >= cap(i.room.b)/2 && i.len()+len(p) <= cap(i.room.b):
		i.room.b = i.room.b[:copy(i.room.b, i.room.b[i.read:])]
		i.read = 0
	default:
		// At least twice as large, so that each byte is moved once or twice.
		larger := newRoom(max(i.len()+len(p), 2*cap(i.room.b)))
		larger.b = append(larger.b, i.room.b[i.read:]...)
		i.room.free()
		i.room, i.read = larger, 0
	}
	i.room.b = append(i.room.b, p...)
}

// take moves bytes out.
func (i *inbox) take(p []byte) int {
	n := copy(p, i.room.b[i.read:])
	if i.read += n; i.read == len(i.room.b) {
		i.drop()
	}
	return n
}

// drop forgets what is there.
func (i *inbox) drop() {
	i.room.free()
	i.room, i.read = nil, 0
}
