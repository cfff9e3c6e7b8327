package durable

import (
	"encoding/binary"
	"errors"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A record is a session's value in the engine: its owner, and Create's argument.
type record struct {
	owner string
	epoch uint64
	born  uint64 // random; tells a session from an earlier one of the same key
	stamp uint64 // random, new at each change of the owner: no two records are the same
	open  bool
	about []byte
}

// recordVersion is the first byte of an encoded record.
const recordVersion = 1

const recordOpen = 1 // a flag

var errEncoding = errors.New("not what this version writes")

func (r *record) encode() []byte {
	flags := byte(0)
	if r.open {
		flags |= recordOpen
	}
	b := []byte{recordVersion, flags}
	b = binary.BigEndian.AppendUint64(b, r.born)
	b = binary.BigEndian.AppendUint64(b, r.stamp)
	b = binary.AppendUvarint(b, r.epoch)
	b = binary.AppendUvarint(b, uint64(len(r.owner)))
	b = append(b, r.owner...)
	return append(b, r.about...)
}

// parseRecord decodes a record. Its about is a part of b.
func parseRecord(b []byte) (record, error) {
	d := decoder{b: b}
	version, flags := d.byte(), d.byte()
	r := record{born: d.fixed(), stamp: d.fixed(), epoch: d.number(), owner: string(d.bytes(d.number()))}
	if d.bad || version != recordVersion || flags&^recordOpen != 0 {
		return record{}, errEncoding
	}
	r.open, r.about = flags&recordOpen != 0, d.b
	return r, nil
}

// seen is a record as it was read, for shared.Session.Seen.
type seen struct {
	record
	version uint64
}

// session returns the record as a shared.Session.
func (r record) session(key stream.SessionKey, version uint64) shared.Session {
	return shared.Session{
		Key: key, Owner: r.owner, Open: r.open, Epoch: r.epoch, About: r.about, Seen: &seen{r, version},
	}
}

// is reports whether the record has the owner and the epoch of was.
func (r *record) is(was *shared.Session) bool {
	return r.epoch == was.Epoch && r.owner == was.Owner
}

// A decoder takes values from the front of b. Once b was too short it is bad, and
// all later values are zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) bytes(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	taken := d.b[:n:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (d *decoder) fixed() uint64 {
	if b := d.bytes(8); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}
