package durable

import (
	"encoding/binary"

	"holdfast/stream"
)

// A frame is one step of a session's log: the engine has all of it or nothing. It
// names the frame that it follows, so that readers notice missing frames.
//
//	version  1 byte
//	kind     1 byte
//	born     8 bytes, as in the session's record
//	prev     8 bytes, the place of the frame before; 0: none was kept
//	epoch    of the lease that wrote it
//	stamp    8 bytes, in a frame that takes over: that of the session's record
//	count    and so many items otherwise:
//	  flags    1 byte
//	  number   of the stream
//	  seq      unless it is a note
//	  epoch    of the entry, if it is repeated
//	  data     its length, and its bytes
//
// Numbers without a size are varints.
const (
	frameVersion = 1
	prevAt       = 10 // where prev is
	headRoom     = 18 + 2*binary.MaxVarintLen64
	itemRoom     = 1 + 4*binary.MaxVarintLen64
	maxSeq       = 1 << 62 // no stream is as long: a frame with a larger one is not ours
)

// The kinds of frames.
const (
	frameItems = iota
	frameTaken // the session has been taken over: nothing of an older epoch follows
)

// Flags of items.
const (
	itemNote = 1 << iota
	itemLast
	itemRepeated // it was appended before, and its frame would expire
	itemFirst    // the repetition of a whole stream begins with it
	itemWhole    // the repetition ends with it

	itemFlags = itemNote | itemLast | itemRepeated | itemFirst | itemWhole
)

// An item is a record in a frame. Its entry has the epoch under which it was
// first written.
type item struct {
	stream.Record
	flags byte
}

// A head is the part of a frame before its items.
type head struct {
	kind  byte
	born  uint64
	prev  uint64
	epoch uint64
	stamp uint64
	items uint64
}

func (h *head) append(b []byte) []byte {
	b = append(b, frameVersion, h.kind)
	b = binary.BigEndian.AppendUint64(b, h.born)
	b = binary.BigEndian.AppendUint64(b, h.prev)
	b = binary.AppendUvarint(b, h.epoch)
	if h.kind == frameTaken {
		return binary.BigEndian.AppendUint64(b, h.stamp)
	}
	return binary.AppendUvarint(b, h.items)
}

// follow sets prev in an encoded frame.
func follow(frame []byte, prev uint64) { binary.BigEndian.PutUint64(frame[prevAt:], prev) }

// appendItem encodes a record.
func appendItem(b []byte, r *stream.Record, flags byte) []byte {
	if r.Note {
		flags |= itemNote
	} else if r.Last {
		flags |= itemLast
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, r.Number)
	if !r.Note {
		b = binary.AppendUvarint(b, r.Seq)
		if flags&itemRepeated != 0 {
			b = binary.AppendUvarint(b, r.Epoch)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(r.Data)))
	return append(b, r.Data...)
}

// parseFrame decodes a frame and calls yield with its items. Their data are parts
// of b. For a frame that is not well formed it does not call yield.
func parseFrame(b []byte, yield func(item)) (head, error) {
	d := decoder{b: b}
	version := d.byte()
	h := head{kind: d.byte(), born: d.fixed(), prev: d.fixed(), epoch: d.number()}
	switch {
	case version != frameVersion || h.kind > frameTaken:
		return head{}, errEncoding
	case h.kind == frameTaken:
		h.stamp = d.fixed()
	default:
		h.items = d.number()
	}
	for pass := range 2 {
		at := d
		for range h.items {
			x := parseItem(&at, h.epoch)
			if at.bad {
				return head{}, errEncoding
			}
			if pass > 0 {
				yield(x)
			}
		}
		if at.bad || len(at.b) > 0 {
			return head{}, errEncoding
		}
	}
	return h, nil
}

func parseItem(d *decoder, epoch uint64) item {
	x := item{flags: d.byte()}
	if x.flags&^itemFlags != 0 || x.flags&(itemNote|itemLast) == itemNote|itemLast {
		d.bad = true
	}
	x.Number = d.number()
	x.Note = x.flags&itemNote != 0
	if !x.Note {
		x.Seq, x.Epoch, x.Last = d.number(), epoch, x.flags&itemLast != 0
		if x.flags&itemRepeated != 0 {
			x.Epoch = d.number()
		}
		d.bad = d.bad || x.Seq == 0 || x.Seq > maxSeq
	}
	x.Data = d.bytes(d.number())
	return x
}
