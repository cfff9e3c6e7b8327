package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/resume"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
)

// One of three clients that follow a call reads its end and ends the session. New calls
// are refused at once, but the other two can still read the end of the call, for a time.
func TestEndWaitsForFollowers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // only waiting takes time
		h := newHouse(t, Options{}, nil)
		defer h.close()
		s := h.able("alice")
		c := begin(t, s, false, request(1))
		token := tokenOf(t, c)
		began := time.Now()
		ready := make(chan struct{}, 1)
		follow := func() *reading.Reader {
			r, err := s.Read(t.Context(), c.Number(), 0, 0, ready)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		first, second, third := follow(), follow(), follow()
		if !first.Gone() || !second.Gone() {
			t.Fatal("two read the stream")
		}
		first.Detach(false, true, false)
		second.Detach(false, true, false)
		h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{"the":"result"}}`)
		toEnd(t, third, ready)
		third.Detach(false, true, false)
		time.Sleep(reading.FollowFor / 2)
		h.End(s)
		if _, err := h.Find(s.ID(), caller.At("", "alice")); !errors.Is(err, ErrNotFound) {
			t.Errorf("its id is still good: %v", err)
		}
		if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(2))}, false); !errors.Is(err, ErrNotFound) {
			t.Errorf("calls are still made in it: %v", err)
		}
		for range 2 { // the other two, one after the other
			found, number, err := h.resumes.Find(token, []byte("1"), caller.At("", "alice"))
			if err != nil {
				t.Fatalf("after one has ended the session: %v", err)
			}
			r, err := found.Read(t.Context(), number, 0, 0, ready)
			if err != nil {
				t.Fatal(err)
			}
			if said := toEnd(t, r, ready); !strings.Contains(strings.Join(said, "\n"), `"the":"result"`) {
				t.Errorf("%q", said)
			}
			r.Detach(false, true, false)
		}
		time.Sleep(time.Until(began.Add(reading.FollowFor + time.Second))) // the session waits no longer than that since the others were here
		_, _, err := h.resumes.Find(token, []byte("1"), caller.At("", "alice"))
		_, found := h.FindName(s.Name(), caller.At("", "alice"))
		if !errors.Is(err, resume.ErrBadToken) || !errors.Is(found, ErrNotFound) {
			t.Errorf("it has not ended: %v, %v", err, found)
		}
	})
}

// A node that ends does not wait for clients that may still follow a call, if another
// client has ended its session. No other node takes that session over.
func TestEndWithFollowersAndNode(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.able("alice")
	c := begin(t, s, false, request(1))
	ready := make(chan struct{}, 1)
	var readers []*reading.Reader
	for range 2 {
		r, err := s.Read(t.Context(), c.Number(), 0, 0, ready)
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, r)
	}
	readers[0].Detach(true, true, false)
	a.desk.last().say(c, response(1))
	toEnd(t, readers[1], ready)
	readers[1].Detach(false, true, false)
	a.End(s)
	ctx, stop := context.WithTimeout(t.Context(), reading.FollowFor/2)
	defer stop()
	if err := a.Departure.HandOver(ctx); err != nil {
		t.Errorf("hand over: %v", err)
	}
	a.Close()
	if _, _, err := b.Locate(t.Context(), s.key, caller.At("", "alice")); !errors.Is(err, ErrNotFound) {
		t.Errorf("it lives on: %v", err)
	}
}
