package webhook

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A desk is an owner that keeps the outcomes that it is given.
type desk struct {
	moved, read, refuses bool
	told                 []string
	noted                int
}

func (d *desk) Moved() bool        { return d.moved }
func (d *desk) IsRead(uint64) bool { return d.read }
func (d *desk) Note()              { d.noted++ }

// session returns the webhooks of a session with the desk as its owner. If shared, other nodes can take the session over.
func (d *desk) session(shared bool) *Session {
	o := &Options{Tell: func(e Ended) bool {
		d.told = append(d.told, fmt.Sprintf("%s %s %v %s", e.ID, e.Webhook, e.Failed, e.Key))
		return !d.refuses
	}}
	if shared {
		o.InBackground = func(f func()) bool { f(); return true }
	}
	return New("key", d, o)
}

func (d *desk) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(d.told, want) {
		t.Errorf("told %q, want %q", d.told, want)
	}
	d.told = nil
}

// params has a webhook.
const params = `{"_meta":{"holdfast/webhook":{"url":"u"}}}`

// An outcome is sent once the stream has ended, and only if no client reads it or has read it.
func TestTold(t *testing.T) {
	t.Parallel()
	d := &desk{}
	s := d.session(false)
	c := s.Begin(s.Begin(nil, "1", []byte(params)), "2", []byte(params))
	c.Answered("1", false, 1, 0)
	c.Answered("2", true, 2, 0)
	c.Dispatch(7)
	d.want(t) // the stream has not ended
	c.End(7)
	c.Dispatch(7)
	d.want(t) // the outcome is held back
	d.read = true
	c.Attached(0)
	c.Delivered(7, 1)
	d.want(t)
	if s.IsIdle() || s.Of(7) != c {
		t.Error("the call is not on record")
	}
	d.read, d.moved = false, true
	c.Dispatch(7)
	d.want(t) // the new owner sends it
	d.moved = false
	c.Dispatch(7)
	d.want(t, "2 u true key 7 2")
	if !s.IsIdle() || s.Of(7) != nil || d.noted > 0 {
		t.Error("the call is on record")
	}
}

// If other nodes can take over, the store knows which outcomes they need not send.
func TestNews(t *testing.T) {
	t.Parallel()
	d := &desk{refuses: true}
	s := d.session(true)
	for number := range uint64(2) {
		c := s.Begin(nil, "1", []byte(params))
		c.Answered("1", false, 1, 0)
		c.End(number + 1)
		c.Release(number + 1)
		d.refuses = false
	}
	d.want(t, "1 u false key 1 1", "1 u false key 2 1")
	if news := s.News(); !slices.Equal(news, []uint64{2}) || d.noted != 1 || !s.HasTold() || s.News() != nil {
		t.Errorf("news %v, noted %d", news, d.noted)
	}
}

// Calls that share a stream pass their outcomes to it, and keep none.
func TestShare(t *testing.T) {
	t.Parallel()
	d := &desk{read: true}
	s := d.session(true)
	all := s.Share()
	a, b := s.Begin(nil, "1", []byte(params)), s.Begin(nil, "2", []byte(params))
	a.Answered("1", false, 4, 9)
	b.Answered("2", false, 5, 0)
	if a.PassOn() != nil || len(a.list)+len(b.list) > 0 {
		t.Error("the calls keep webhooks")
	}
	b.Flush()
	d.want(t)
	d.read = false
	s.ReleaseAll()
	d.want(t, "1 u false key 9 1", "2 u false key at 5 2")
	if len(all.list) > 0 {
		t.Error("the stream keeps webhooks")
	}
}

// No outcome is sent for a call that has passed its requests on, has delivered the answers, or was cancelled. A response that the
// store refuses is sent as a failure.
func TestForgotten(t *testing.T) {
	t.Parallel()
	d := &desk{}
	s := d.session(false)
	c := s.Begin(nil, "1", []byte(params))
	heir := c.PassOn()
	c = s.Begin(c, "2", []byte(params))
	c.Cancelled("2")
	c = s.Begin(c, "3", []byte(params))
	c.Drop()
	c.End(1)
	c.Release(1)
	d.want(t)
	heir.Answered("1", false, 1, 0)
	heir.Stored(2)
	heir.Refused(2)
	heir.End(2)
	heir.Dispatch(2)
	d.want(t, "1 u true key 2 1")
}

// Without a function to send outcomes, nothing is kept.
func TestOff(t *testing.T) {
	t.Parallel()
	o := &Options{}
	s := New("key", &desk{}, o)
	var c *Call
	c.End(1)
	c.Attached(1)
	c.Delivered(1, 1)
	c.Release(1)
	c.Drop()
	c.Flush()
	s.ReleaseAll()
	if s != nil || o.Wants([]byte(params)) || s.Share() != nil || s.Of(1) != nil || c.PassOn() != nil || s.News() != nil || !s.IsIdle() || !s.HasTold() {
		t.Error("something is kept")
	}
}

func TestURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{`"u"`: "u", "7": "", `"` + strings.Repeat("x", longest) + `"`: strings.Repeat("x", longest), `"` + strings.Repeat("x", longest+1) + `"`: ""} {
		p := []byte(`{"_meta":{"holdfast/webhook":{"url":` + url + `}}}`)
		s := (&desk{}).session(false)
		if c := s.Begin(nil, "1", p); !s.opts.Wants(p) || c.list[0].Webhook != want {
			t.Errorf("%.20s: %.20q", url, c.list[0].Webhook)
		}
	}
}
