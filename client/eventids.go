package client

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// eventIDs are the newest event ids that have come: an event that comes again is not
// delivered again. They are stored as hashes, which a server can't predict.
type eventIDs struct {
	seed   maphash.Seed
	newest []uint64 // a ring once it is full
	next   int      // the index of the oldest
	all    map[uint64]struct{}
}

const (
	// mostSeen is how many event ids of a stream are remembered. No server repeats more events.
	mostSeen = 512
	// fewSeen is how many ids are found faster in a slice than in a map.
	fewSeen = 16
)

// add notes an id, and reports whether it is new.
func (s *eventIDs) add(id string) bool {
	if s.seed == (maphash.Seed{}) {
		s.seed = maphash.MakeSeed()
	}
	return s.addHash(maphash.String(s.seed, id))
}

// has reports whether an id was noted.
func (s *eventIDs) has(id string) bool {
	if len(s.newest) == 0 {
		return false
	}
	h := maphash.String(s.seed, id)
	if s.all == nil {
		return slices.Contains(s.newest, h)
	}
	_, ok := s.all[h]
	return ok
}

// hash returns the hash of an id together with the event's data. It reads only s.seed.
func (s *eventIDs) hash(id string, data []byte) uint64 {
	return maphash.String(s.seed, id) ^ bits.RotateLeft64(maphash.Bytes(s.seed, data), 1)
}

// addHash is add for a hash.
func (s *eventIDs) addHash(h uint64) bool {
	if s.all == nil && slices.Contains(s.newest, h) {
		return false
	}
	if _, old := s.all[h]; old {
		return false
	}
	if len(s.newest) < mostSeen {
		s.newest = append(s.newest, h)
	} else {
		delete(s.all, s.newest[s.next])
		s.newest[s.next] = h
		s.next = (s.next + 1) % mostSeen
	}
	switch {
	case s.all != nil:
		s.all[h] = struct{}{}
	case len(s.newest) > fewSeen:
		s.all = make(map[uint64]struct{})
		for _, h := range s.newest {
			s.all[h] = struct{}{}
		}
	}
	return true
}
