package cluster

import "sync"

// buffers are memory for the bytes that have arrived at a connection, by size. An idle connection
// has no buffer.
var buffers = [...]struct {
	size int
	pool sync.Pool
}{{size: 2 << 10}, {size: 16 << 10}, {size: 64 << 10}, {size: 256 << 10}}

type buffer struct {
	b     []byte
	class int // of buffers; -1: none
}

func newBuffer(size int) *buffer {
	for i := range buffers {
		if size <= buffers[i].size {
			if r, ok := buffers[i].pool.Get().(*buffer); ok {
				return r
			}
			return &buffer{b: make([]byte, 0, buffers[i].size), class: i}
		}
	}
	return &buffer{b: make([]byte, 0, size), class: -1}
}

func (b *buffer) free() {
	if b != nil && b.class >= 0 {
		b.b = b.b[:0]
		buffers[b.class].pool.Put(b)
	}
}

// An inbox holds the bytes that have arrived and are not read yet.
type inbox struct {
	buffer *buffer
	start  int // how many bytes of the buffer have been read
}

func (i *inbox) len() int {
	if i.buffer == nil {
		return 0
	}
	return len(i.buffer.b) - i.start
}

// add copies bytes in.
func (i *inbox) add(p []byte) {
	switch {
	case i.buffer == nil:
		i.buffer = newBuffer(len(p))
	case len(i.buffer.b)+len(p) <= cap(i.buffer.b):
	case i.start >= cap(i.buffer.b)/2 && i.len()+len(p) <= cap(i.buffer.b):
		i.buffer.b = i.buffer.b[:copy(i.buffer.b, i.buffer.b[i.start:])]
		i.start = 0
	default:
		// At least twice as large, so that each byte is moved once or twice.
		larger := newBuffer(max(i.len()+len(p), 2*cap(i.buffer.b)))
		larger.b = append(larger.b, i.buffer.b[i.start:]...)
		i.buffer.free()
		i.buffer, i.start = larger, 0
	}
	i.buffer.b = append(i.buffer.b, p...)
}

// take moves bytes out.
func (i *inbox) take(p []byte) int {
	n := copy(p, i.buffer.b[i.start:])
	if i.start += n; i.start == len(i.buffer.b) {
		i.drop()
	}
	return n
}

// drop discards the bytes.
func (i *inbox) drop() {
	i.buffer.free()
	i.buffer, i.start = nil, 0
}
