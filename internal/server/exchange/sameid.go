package exchange

import (
	"time"

	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// inFlight returns the stream number of the call in flight that has the first of the requests, and
// promotes that call; 0 if none has. guest is as in [session.Origin].
func inFlight(s *session.Session, guest stream.SessionKey, msgs []jsonrpc.Message) uint64 {
	for i := range msgs {
		if msgs[i].Kind != jsonrpc.Request {
			continue
		}
		if c := s.CallFrom(guest, msgs[i].ID); c != nil {
			c.Promote()
			return c.Number()
		}
		return 0
	}
	return 0
}

// brokenWithin is how long a repeated request waits for the end of the connection that it first came on: the network may report
// that end later than the client, which has made the request again.
const brokenWithin = time.Second

// Attach finds the call of a request that the client repeats under the same id because its first connection has broken: some HTTP
// clients do that by themselves, even for a POST. If the request is not repeated, or the connection has not broken, the error is
// fail. ended says that the call has ended since, so that the id is free.
func (st *Starter) Attach(x *Exchange, guest stream.SessionKey, fail error) (b Begun, ended bool, err error) {
	if len(x.Msgs) != 1 || x.Muxed {
		return Begun{}, false, fail
	}
	c := x.Session.CallFrom(guest, x.Msgs[0].ID)
	if c == nil {
		return Begun{}, true, fail
	}
	conn := st.Origin(x).Conn
	for end := time.Now().Add(brokenWithin); ; time.Sleep(brokenWithin / 100) {
		same, lost := c.Again(&x.Msgs[0], conn)
		switch {
		case x.Session.CallFrom(guest, x.Msgs[0].ID) != c:
			return Begun{}, true, fail
		case same && lost:
			return Begun{Session: x.Session, Number: c.Number()}, false, nil
		case !same, time.Now().After(end), x.HTTP.Context().Err() != nil:
			return Begun{}, false, fail
		}
	}
}
