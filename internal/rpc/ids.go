package rpc

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
)

// The ids of our own requests lie between these two numbers: clients that count their requests, or use the time in
// seconds or milliseconds, use none of them, and a float64 has all of them exactly.
const (
	lowestID  = 3e12
	highestID = 9e12
)

// OwnIDs makes ids for requests that Holdfast itself makes to a server. They are integers: some servers accept only
// integers, and end at a string. The first id is random. The zero value is ready for use; its method may be called
// concurrently.
type OwnIDs struct{ last atomic.Int64 }

// Next returns a new id, as raw JSON.
func (o *OwnIDs) Next() []byte {
	if o.last.Load() == 0 {
		o.last.CompareAndSwap(0, lowestID+rand.Int64N(highestID-lowestID))
	}
	return strconv.AppendInt(nil, o.last.Add(1), 10)
}
