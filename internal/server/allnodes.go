package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// holds counts messages as on their way, for as long as what they ask for may have to
// be asked of another node again, until the function that it returns is called.
func (h *Handler) holds(msgs []jsonrpc.Message) (done func()) {
	size := int64(0)
	for i := range msgs {
		size += int64(len(msgs[i].Raw))
	}
	h.opts.Flight.Add(size)
	return func() { h.opts.Flight.Add(-size) }
}

// ask serves an exchange whose answer stays here: its body is returned, nil if it has
// none. The exchange's request is one of [askFor].
func (h *Handler) ask(x *exchange) (answer []byte, err error) {
	got := &kept{}
	if err = h.find(x); err == nil {
		err = h.serveIn(got, x)
	}
	if h.displaced(x, err) {
		err = h.newPlacement(got, x).run(err)
	}
	if err != nil {
		return nil, err
	}
	return got.answer()
}

// askFor is a POST of our own in the place of a request, or on its connection.
func askFor(r *http.Request) *http.Request {
	to := r.Clone(context.WithValue(r.Context(), visitKey{}, (*visit)(nil)))
	to.Method, to.Body, to.ContentLength = http.MethodPost, http.NoBody, 0
	to.URL.RawQuery = ""
	for _, name := range []string{protocol.HeaderLastEventID, protocol.HeaderIdempotencyKey, "Upgrade", "Connection"} {
		to.Header.Del(name)
	}
	to.Header["Accept"] = []string{"application/json, " + sse.ContentType}
	to.Header["Content-Type"] = typeJSON
	return to
}

// mostLeft bounds how many sessions that nobody looks after are taken over for one
// answer, and leftAtOnce how many of them at a time.
const (
	mostLeft   = 64
	leftAtOnce = 8
)

// everywhere makes a request on each other node that has sessions of the principal, for what
// that node knows by itself. It returns their results, and which sessions they are of: those
// after one, until too many have come here that nobody looked after. What this node knows
// of sessions in that range is to be asked for afterwards. Sessions that follow are for
// another time.
func (h *Handler) everywhere(x *exchange, after stream.SessionKey) ([]json.RawMessage, session.Range, error) {
	ctx, stop := context.WithTimeout(x.r.Context(), reachFor)
	defer stop()
	gone := func(name string) bool { return h.peers.node.Gone(ctx, name) }
	for {
		at, err := h.sessions.LocateAll(ctx, x.principal, after, gone, mostLeft)
		if err != nil {
			return nil, at.Range, err
		}
		settled, err := h.takeLeft(ctx, at.Orphans)
		var all []json.RawMessage
		if err == nil && settled {
			all, settled, err = h.askHomes(ctx, x, &at)
		}
		if err != nil || settled {
			return all, at.Range, err
		}
		select { // others have taken some, or a node was lost: it is looked again
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, at.Range, errUnreached
		}
	}
}

// takeLeft takes sessions over that nobody looks after. It is false where others were
// faster: then it has to be looked again where they are.
func (h *Handler) takeLeft(ctx context.Context, left []*session.Remote) (settled bool, err error) {
	switch {
	case len(left) == 0:
		return true, nil
	case h.isDraining():
		return false, session.ErrClosing
	case h.isDoor():
		return false, nil // workers take them over soon
	}
	var mu sync.Mutex
	settled = true
	var work sync.WaitGroup
	places := make(chan struct{}, leftAtOnce)
	for _, at := range left {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			_, fail := h.takeOver(ctx, at)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fail == nil, errors.Is(fail, session.ErrNotFound):
			case errors.Is(fail, stream.ErrConflict):
				settled = false
			default:
				err = fail
			}
		})
	}
	work.Wait()
	return settled, err
}

// askHomes asks nodes for what they know by themselves. It is not settled where one
// of them was lost meanwhile.
func (h *Handler) askHomes(ctx context.Context, x *exchange, at *session.Locations) (all []json.RawMessage, settled bool, err error) {
	var mu sync.Mutex
	settled = true
	var work sync.WaitGroup
	for _, home := range at.Owners {
		work.Go(func() {
			result, gone, fail := h.askHome(ctx, home, x, &at.Range)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fail != nil && gone:
				settled = false
			case fail != nil:
				err = fmt.Errorf("%w: %w", errUnreached, fail)
			case result != nil:
				all = append(all, result)
			}
		})
	}
	work.Wait()
	return all, settled, err
}

// askHome asks one of them. There is no result if it does not know the method. gone says that
// the node is.
func (h *Handler) askHome(ctx context.Context, home string, x *exchange, in *session.Range) (result json.RawMessage, gone bool, err error) {
	defer panics.Catch(&err, h.logger, "a request to another node", "")
	got := &kept{}
	y := *x
	y.r, y.from, y.once = askFor(x.r), nil, runOnce{}
	rl := h.newPlacement(got, &y)
	rl.visit.Local = in
	if err := rl.forward(ctx, home, nil, false); err != nil {
		return nil, rl.gone != "", err
	}
	text, err := got.answer()
	var refused *jsonrpc.Error
	if errors.As(err, &refused) && refused.Code == codeInvalid && isBetweenNodes(x.msgs[0].Method) {
		h.logger.Debug("a node of an older build was not asked", "node", home, "method", x.msgs[0].Method)
		return nil, false, nil
	}
	if err != nil {
		return nil, rl.gone != "", err
	}
	return jsonrpc.Field(text, "result"), false, nil
}

// kept is an answer that stays here.
type kept struct {
	head   http.Header
	status int
	body   bytes.Buffer
}

// answer returns the body, nil if there is none to expect.
func (k *kept) answer() ([]byte, error) {
	switch k.status {
	case http.StatusOK:
		return k.body.Bytes(), nil
	case http.StatusAccepted, http.StatusNoContent:
		return nil, nil
	}
	var told struct{ Error *jsonrpc.Error }
	if json.Unmarshal(k.body.Bytes(), &told) == nil && told.Error != nil && k.status != http.StatusServiceUnavailable {
		return nil, told.Error
	}
	return nil, fmt.Errorf("%w: %d", errUnreached, k.status)
}

// Header implements [http.ResponseWriter].
func (k *kept) Header() http.Header {
	if k.head == nil {
		k.head = make(http.Header)
	}
	return k.head
}

// WriteHeader implements [http.ResponseWriter].
func (k *kept) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
}

// Write implements [http.ResponseWriter].
func (k *kept) Write(text []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(text)
}

// SetWriteDeadline is there for [http.ResponseController].
func (k *kept) SetWriteDeadline(time.Time) error { return nil }
