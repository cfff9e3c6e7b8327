package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/login"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// greetsWithin is how long a host's first request waits for a login: hosts give up a server that does not answer it, some after 30
// seconds. The bridge answers before, and says what the user has to do.
const greetsWithin = 25 * time.Second

// waiting returns the context for a request to the server, which may have to wait for a login. The host is then told.
func (b *bridge) waiting(r *request) context.Context {
	w := login.Waiter{Tell: b.teller(r)}
	if id := b.greeting.Load(); protocol.Opens(r.method) && id != nil && b.host.waits.has(*id) {
		w.Within = greetsWithin
	}
	return login.With(b.ctx, w)
}

// teller returns a function that tells the host what the user has to do before a request goes on: as progress, if the request has a progress
// token, so that the host goes on waiting, or else once as a log message. A request without an id stands for a notification.
func (b *bridge) teller(r *request) func(string) {
	var mu sync.Mutex
	last, count := "", 0
	id, hears, own := r.id, r.token != nil, r.from.exchange == nil // they change later
	return func(text string) {
		b.eras.legacy.away.bar()
		mu.Lock()
		defer mu.Unlock()
		count++
		switch {
		case hears:
			b.received(id, progressOf(id, count, text))
		case text != last:
			params := fmt.Appendf(nil, `{"level":"warning","logger":"holdfast","data":%s}`, quoted(text))
			b.received(id, mustParse(jsonrpc.AppendRequest(nil, nil, protocol.MethodLog, params)))
		}
		if own {
			b.eras.modern.tellWaiting(count, text) // the request is a translation's, for all requests of the host
		}
		last = text
	}
}

// progressOf returns a progress notification. Its value is less than any that the server is likely to send later: progress grows.
func progressOf(token []byte, count int, text string) jsonrpc.Message {
	value := strconv.FormatFloat(float64(count)*1e-6, 'f', -1, 64)
	params := fmt.Appendf(nil, `{"progressToken":%s,"progress":%s,"message":%s}`, token, value, quoted(text))
	return mustParse(jsonrpc.AppendRequest(nil, nil, protocol.MethodProgress, params))
}

func quoted(text string) []byte {
	raw, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can be encoded
	}
	return raw
}

// tellWaiting tells the host by progress of all requests that wait and have a progress token.
func (h *modernHost) tellWaiting(count int, text string) {
	var all [][]byte
	h.mu.Lock()
	for x := range h.open {
		if x.state == waiting && x.token != nil {
			all = append(all, x.token)
		}
	}
	h.mu.Unlock()
	for _, token := range all {
		h.b.host.write(progressOf(token, count, text).Raw)
	}
}
