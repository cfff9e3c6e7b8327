package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// The times and bounds of asking other nodes.
const (
	askAgain    = 500 * time.Millisecond // after an answer has ended
	askOldAgain = 10 * time.Second       // after a node has refused to answer
	mostLine    = 4 << 20                // bytes of a node's message
	mostRows    = mostInFlight + mostEnded + mostLight
)

// The paths of requests between nodes.
const (
	pathNews   = "/news"
	pathLife   = "/life"
	pathAction = "/action"
)

// news are the changes on a node since the news before; the first on a connection has the whole state.
type news struct {
	snapshot
	GoneCalls    []uint64 `json:"gone_calls,omitempty"`
	GoneSessions []string `json:"gone_sessions,omitempty"`
}

// askNode reads the news of a node, again and again, until the node is lost or has ended, or ctx is done.
func (l *Live) askNode(ctx context.Context, n *node) {
	o := &l.others
	for {
		refused, err := l.readNews(ctx, n)
		wait := askAgain
		if refused != "" {
			wait = askOldAgain
		}
		o.mu.Lock()
		if err == nil && n.refused != refused {
			n.refused = refused
			l.news.Add(1)
		}
		over := n.state >= NodeLost || ctx.Err() != nil
		if over {
			n.asking = false
		}
		o.mu.Unlock()
		if over || !sleep(ctx, wait) {
			return
		}
	}
}

// sleep waits for a time. It returns false if ctx is done before that.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ask sends a request to another node.
func (l *Live) ask(ctx context.Context, method, node, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+node+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return l.from().Ask(r)
}

// readNews reads the news of a node until the connection ends. refused says why the node gives no news;
// if it is "", err is not nil.
func (l *Live) readNews(ctx context.Context, n *node) (refused string, err error) {
	res, err := l.ask(ctx, http.MethodGet, n.name, pathNews, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return refusedPage, nil
	case http.StatusBadRequest:
		return refusedOld, nil
	default:
		return "", fmt.Errorf("status %d", res.StatusCode)
	}
	first := true
	return "", lines(res.Body, func(line []byte) error {
		var one news
		if err := json.Unmarshal(line, &one); err != nil {
			return err
		}
		l.others.mu.Lock()
		defer l.others.mu.Unlock()
		if first {
			clear(n.calls)
			clear(n.sessions)
			n.skew = 0
		}
		first = false
		l.news.Add(1)
		return n.take(&one)
	})
}

// take applies news to the node. others.mu is held.
func (n *node) take(one *news) error {
	n.heard, n.refused = time.Now(), ""
	if n.skew = n.heard.UnixMilli() - one.At; n.skew > -1000 && n.skew < 1000 {
		n.skew = 0 // the news may have been on their way for so long
	}
	for _, id := range one.GoneCalls {
		delete(n.calls, id)
	}
	for _, name := range one.GoneSessions {
		delete(n.sessions, name)
	}
	for i := range one.Calls {
		n.calls[one.Calls[i].ID] = one.Calls[i]
	}
	for i := range one.Sessions {
		n.sessions[one.Sessions[i].Name] = one.Sessions[i]
	}
	if len(n.calls) > mostRows || len(n.sessions) > mostSessions {
		return errors.New("it tells of too much")
	}
	n.last = one.snapshot
	n.last.Calls, n.last.Sessions = nil, nil
	return nil
}

// lines calls f with each line of an answer.
func lines(r io.Reader, f func([]byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, mostLine)
	for s.Scan() {
		if err := f(s.Bytes()); err != nil {
			return err
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// A feed is the life of a call on another node. others.mu guards it.
type feed struct {
	users int // pages that show it
	life  *lifeView
	stop  context.CancelFunc // nil: no goroutine asks for the life
}

// hold keeps the life of a call on another node up to date, until release.
func (l *Live) hold(at place) {
	o := &l.others
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stop == nil || o.ctx.Err() != nil {
		return
	}
	f := o.feeds[at]
	if f == nil {
		o.forgetFeeds()
		f = &feed{}
		o.feeds[at] = f
	}
	if f.users++; f.stop == nil {
		var ctx context.Context
		ctx, f.stop = context.WithCancel(o.ctx)
		o.work.Go(func() { l.askLife(ctx, f, at) })
	}
}

// forgetFeeds makes room for one more feed, if some have no users. o.mu is held.
func (o *others) forgetFeeds() {
	for at, f := range o.feeds {
		if len(o.feeds) < mostFeeds {
			return
		}
		if f.users == 0 {
			delete(o.feeds, at)
		}
	}
}

// release ends a hold. The known part of the life is kept.
func (l *Live) release(at place) {
	o := &l.others
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.feeds[at]
	if f == nil {
		return
	}
	if f.users--; f.users == 0 && f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// askLife reads the life of a call, until ctx is done or the call's node does not know it.
func (l *Live) askLife(ctx context.Context, f *feed, at place) {
	for {
		res, err := l.ask(ctx, http.MethodGet, at.node, pathLife+"?call="+strconv.FormatUint(at.id, 10), nil)
		if err == nil {
			if res.StatusCode == http.StatusOK {
				_ = lines(res.Body, func(line []byte) error {
					life := &lifeView{}
					if err := json.Unmarshal(line, life); err != nil {
						return err
					}
					l.others.mu.Lock()
					f.life = life
					l.others.mu.Unlock()
					l.news.Add(1)
					return nil
				})
			}
			_ = res.Body.Close()
			switch res.StatusCode {
			case http.StatusNotFound, http.StatusBadRequest: // it has no such call, or is of an older build
				return
			}
		}
		if !sleep(ctx, askAgain) {
			return
		}
	}
}

// askAction makes another node do an action. The caller has checked the operator's token.
func (l *Live) askAction(ctx context.Context, node string, a action) error {
	ctx, stop := context.WithTimeout(ctx, writeWithin)
	defer stop()
	a.Node = ""
	body, _ := json.Marshal(a)
	res, err := l.ask(ctx, http.MethodPost, node, pathAction, body)
	if err != nil {
		return errAway
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent {
		return nil
	}
	why, _ := io.ReadAll(io.LimitReader(res.Body, mostText))
	if res.StatusCode != http.StatusConflict {
		return errAway
	}
	return errors.New(string(bytes.TrimSpace(why)))
}
