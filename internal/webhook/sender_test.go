package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"holdfast/internal/mcptest"
	sender "holdfast/internal/webhook"
	"holdfast/webhook"
)

// A webhook arrives as documented, with a signature that the official library
// accepts and that follows the text of Standard Webhooks.
func TestSend(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1")})
	library := mcptest.Must(standardwebhooks.NewWebhook(secretText))(t)
	at := time.Date(2025, 11, 25, 12, 0, 0, 5e8, time.FixedZone("", 3600))
	for _, c := range []struct {
		id     string
		failed bool
		data   string
	}{
		{`7`, false, `{"requestId":7,"status":"completed"}`},
		{`"a\"b"`, true, `{"requestId":"a\"b","status":"failed"}`},
		{`123456789012345678901234567890`, false, `{"requestId":123456789012345678901234567890,"status":"completed"}`},
	} {
		s.Send(sender.Event{URL: r.URL + "/hook?key=k", RequestID: []byte(c.id), Failed: c.failed, Time: at})
		g := r.next(t)
		want := `{"type":"mcp.request.ended","timestamp":"2025-11-25T11:00:00.5Z","data":` + c.data + `}`
		if string(g.body) != want || g.method != "POST" || g.target != "/hook?key=k" {
			t.Errorf("got %s %s %s, want %s", g.method, g.target, g.body, want)
		}
		if ct := g.header.Get("Content-Type"); ct != "application/json" {
			t.Errorf("Content-Type is %q", ct)
		}
		if err := library.Verify(g.body, g.header); err != nil {
			t.Error(err)
		}
		mac := hmac.New(sha256.New, rawSecret(t))
		fmt.Fprintf(mac, "%s.%s.%s", g.header.Get("webhook-id"), g.header.Get("webhook-timestamp"), g.body)
		if sig := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); g.header.Get("webhook-signature") != sig {
			t.Errorf("signature is %s, want %s", g.header.Get("webhook-signature"), sig)
		}
		if id := g.header.Get("webhook-id"); !strings.HasPrefix(id, "msg_") || strings.Contains(id, ".") || len(id) < 24 {
			t.Errorf("webhook-id is %q", id)
		}
		g.body[0] = '['
		if library.Verify(g.body, g.header) == nil {
			t.Error("the signature fits another body")
		}
	}
	log.has(t, "webhook sent")
	if strings.Contains(log.String(), "key=k") || strings.Contains(log.String(), "/hook") {
		t.Errorf("the URL was logged: %s", log)
	}
}

// An event is tried again until the receiver accepts it, under one id, and with a new signature each time.
func TestRetry(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(n int, w http.ResponseWriter) {
		switch n {
		case 0:
			w.WriteHeader(http.StatusInternalServerError)
		case 1:
			panic(http.ErrAbortHandler) // the connection breaks
		case 2:
			w.WriteHeader(http.StatusNotFound)
		case 3:
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case 4:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.0/8")})
	s.Send(event(r.URL + "/hook"))
	library, _ := standardwebhooks.NewWebhook(secretText)
	id := ""
	for i := range 5 {
		g := r.next(t)
		if g.target != "/hook" {
			t.Errorf("a redirect was followed to %s", g.target)
		}
		if err := library.Verify(g.body, g.header); err != nil {
			t.Error(err)
		}
		if i == 0 {
			id = g.header.Get("webhook-id")
		}
		if got := g.header.Get("webhook-id"); got != id {
			t.Errorf("try %d has the id %s, the first had %s", i+1, got, id)
		}
	}
	log.has(t, "webhook sent")
	r.silent(t)
}

// After a 410 an event is given up, and also when its tries or its time have run out.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		after  string
		o      webhook.Options
		tries  int
	}{
		{"gone", http.StatusGone, "", webhook.Options{}, 1},
		{"gone, come back", http.StatusGone, "1", webhook.Options{}, 1},
		{"tries", http.StatusBadGateway, "", webhook.Options{Tries: 3}, 3},
		{"time", http.StatusBadGateway, "", webhook.Options{Pause: time.Minute, Within: 20 * time.Second}, 1},
		{"asked for too long", http.StatusServiceUnavailable, "3601", webhook.Options{}, 1},
		{"asked for a date too far", http.StatusServiceUnavailable, "Fri, 01 Jan 2100 00:00:00 GMT", webhook.Options{}, 1},
		{"asked for the last date of all", http.StatusServiceUnavailable, "Fri, 31 Dec 9999 23:59:59 GMT", webhook.Options{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, func(_ int, w http.ResponseWriter) {
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				w.WriteHeader(c.status)
			})
			c.o.Allow = allow(t, "127.0.0.1")
			s, log := newSender(t, c.o)
			s.Send(event(r.URL))
			for range c.tries {
				r.next(t)
			}
			log.has(t, "webhook given up")
			r.silent(t)
		})
	}
}

// A receiver's Retry-After is obeyed.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(n int, w http.ResponseWriter) {
		if n == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1")})
	s.Send(event(r.URL))
	r.next(t)
	from := time.Now()
	r.next(t)
	if took := time.Since(from); took < 950*time.Millisecond {
		t.Errorf("it was tried again after %v", took)
	}
	log.has(t, "webhook sent")
}

// An endless answer is not read to its end, and an answer that never comes times
// out.
func TestBadReceivers(t *testing.T) {
	t.Parallel()
	var wrote atomic.Int64
	endless := newReceiver(t, func(_ int, w http.ResponseWriter) {
		for block := make([]byte, 64<<10); ; {
			n, err := w.Write(block)
			wrote.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	release := make(chan struct{})
	mute := newReceiver(t, func(n int, _ http.ResponseWriter) {
		if n == 0 {
			<-release
		}
	})
	t.Cleanup(func() { close(release) })
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Timeout: 300 * time.Millisecond})
	s.Send(event(endless.URL))
	log.has(t, "webhook sent")
	endless.next(t)
	mcptest.Eventually(t, "the endless answer to end", time.Minute, func() bool {
		n := wrote.Load()
		time.Sleep(20 * time.Millisecond)
		return wrote.Load() == n
	})
	if n := wrote.Load(); n > 64<<20 {
		t.Errorf("%d bytes of an answer were taken", n)
	}
	s.Send(event(mute.URL))
	mute.next(t)
	mute.next(t) // the second try

	verbose := newReceiver(t, func(_ int, w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 64<<10)) })
	s.Send(event(verbose.URL))
	verbose.next(t)
	log.has(t, "headers exceeded")
}

// However many events wait, few are in flight at a time, and fewer for one receiver.
// A receiver that hangs does not delay another.
func TestBounds(t *testing.T) {
	t.Parallel()
	const queue = 2000
	var busy, most atomic.Int64
	release := make(chan struct{})
	slow := newReceiver(t, func(int, http.ResponseWriter) {
		n := busy.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		busy.Add(-1)
	})
	quick := newReceiver(t, nil)
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Queue: queue, Concurrent: 5, PerHost: 3})
	before := runtime.NumGoroutine()
	for range queue - 10 {
		s.Send(event(slow.URL))
	}
	for range 10 {
		s.Send(event(quick.URL))
	}
	for range 10 {
		quick.next(t)
	}
	if n := runtime.NumGoroutine() - before; n > 300 { // including goroutines of parallel tests
		t.Errorf("%d goroutines for %d events", n, queue)
	}
	mcptest.Eventually(t, "the slow receiver to be busy", time.Minute, func() bool { return busy.Load() == 3 })
	close(release)
	for range queue - 10 {
		slow.next(t)
	}
	if n := most.Load(); n > 3 {
		t.Errorf("%d tries at a time to one receiver", n)
	}
	mcptest.Eventually(t, "all to be sent", time.Minute, func() bool { return strings.Count(log.String(), "webhook sent") >= queue })
}

// With many receivers, exactly Concurrent tries are made at a time.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	var busy, most atomic.Int64
	var once sync.Once // three tries may be in flight more than once
	together := make(chan struct{})
	answer := func(n int, w http.ResponseWriter) {
		if n < 2 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		now := busy.Add(1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		if now == 3 {
			once.Do(func() { close(together) })
		}
		<-together
		busy.Add(-1)
	}
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Pause: time.Hour / 3, Concurrent: 3})
	for range 4 {
		r := newReceiver(t, answer)
		s.Send(event(r.URL))
		s.Send(event(r.URL))
	}
	mcptest.Eventually(t, "all to wait", time.Minute, func() bool { return strings.Count(log.String(), "to be tried again") == 8 })
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := most.Load(); n != 3 || strings.Contains(log.String(), "given up") { // with fewer than three, the first try would time out
		t.Errorf("%d tries at a time; the log is %s", n, log)
	}
}

// Events beyond the queue are dropped, and the log says so now and then.
func TestFull(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := newReceiver(t, func(int, http.ResponseWriter) { <-release })
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Queue: 4})
	for range 100 {
		s.Send(event(r.URL))
	}
	close(release)
	for range 4 {
		r.next(t)
	}
	mcptest.Eventually(t, "all to be sent", time.Minute, func() bool { return strings.Count(log.String(), "webhook sent") == 4 })
	r.silent(t)
	if n := strings.Count(log.String(), "webhooks dropped"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
}

// Close tries each waiting event at once, and accepts no more events.
func TestClose(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(n int, w http.ResponseWriter) {
		if n == 0 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1"), Pause: time.Hour / 3})
	s.Send(event(r.URL))
	r.next(t)
	log.has(t, "to be tried again")
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	r.next(t)
	if !strings.Contains(log.String(), "webhook sent") {
		t.Errorf("the log is %s", log)
	}
	s.Send(event(r.URL))
	log.has(t, "webhook not sent")
	r.silent(t)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Close does not try a receiver that has sent a Retry-After.
func TestCloseAsked(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ int, w http.ResponseWriter) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	log := &diary{}
	s := sender.New(webhook.Options{Secret: secret(t), Allow: allow(t, "127.0.0.1"), Logger: log.logger()})
	s.Send(event(r.URL))
	r.next(t)
	log.has(t, "to be tried again")
	if err := s.Close(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "1 webhooks not sent") {
		t.Errorf("got %v", err)
	}
	r.silent(t)
}

// When its context ends, Close returns at once.
func TestCloseInTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := newReceiver(t, func(int, http.ResponseWriter) { <-release })
	defer close(release)
	log := &diary{}
	s := sender.New(webhook.Options{Secret: secret(t), Allow: allow(t, "127.0.0.1"), PerHost: 2, Logger: log.logger()})
	for range 50 {
		s.Send(event(r.URL))
	}
	r.next(t)
	r.next(t)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	err := s.Close(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "50 webhooks not sent") {
		t.Errorf("got %v", err)
	}
	r.silent(t)
}

// Without a secret nothing is sent.
func TestNoSecret(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	log := &diary{}
	s := sender.New(webhook.Options{Allow: allow(t, "127.0.0.1"), Logger: log.logger()})
	s.Send(event(r.URL))
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	r.silent(t)
	if n := strings.Count(log.String(), "there is no secret"); n != 2 {
		t.Errorf("the log is %s", log)
	}
}

// An id that would make the payload huge is not sent.
func TestLongID(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s, log := newSender(t, webhook.Options{Allow: allow(t, "127.0.0.1")})
	e := event(r.URL)
	e.RequestID = []byte(strconv.Quote(strings.Repeat("x", 5000)))
	s.Send(e)
	log.has(t, "longer than 4096 bytes")
	r.silent(t)
}
