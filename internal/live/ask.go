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

// How nodes are asked.
const (
	askAgain    = 500 * time.Millisecond // after an answer has ended
	askOldAgain = 10 * time.Second       // after a node has refused to answer
	mostLine    = 4 << 20                // bytes of a message of a node
	mostRows    = mostInFlight + mostEnded + mostLight
)

// paths of what nodes ask each other.
const (
	pathNews   = "/news"
	pathLife   = "/life"
	pathAction = "/action"
)

// news is what has changed on a node since the news before; the first of a connection has all.
type news struct {
	snapshot
	GoneCalls    []uint64 `json:"gone_calls,omitempty"`
	GoneSessions []string `json:"gone_sessions,omitempty"`
}

// askNode takes in the news of a node, until the node is lost or ctx is done.
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

// sleep waits, and reports whether ctx was not done meanwhile.
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

// ask sends a request to a node.
func (l *Live) ask(ctx context.Context, method, node, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+node+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return l.from().Ask(r)
}

// readNews reads the news of a node until they end. refused says why the node gives none; else err is not
// nil.
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

// take takes news in. others.mu is held.
func (n *node) take(one *news) error {
	n.heard, n.refused = time.Now(), ""
	if n.skew = n.heard.UnixMilli() - one.At; n.skew > -1000 && n.skew < 1000 {
		n.skew = 0 // it may have been on its way for so long
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
	stop  context.CancelFunc // nil: nobody asks for it
}

// hold has the life of a call on another node kept up to date, until release.
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

// forgetFeeds makes room for one more. o.mu is held.
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

// release is for who has called hold. What is known of the life is kept.
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

// askLife takes in the life of a call, until ctx is done or its node does not have it.
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
			if res.StatusCode != http.StatusOK {
				return
			}
		}
		if !sleep(ctx, askAgain) {
			return
		}
	}
}

// askAction has a node do what an operator asks for, who had the token.
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
