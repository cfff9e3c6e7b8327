package backpressure

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/stream"
)

// page is a stream with a reader that came at a time, in a store with little room or none.
type page struct {
	said     uint64
	came     time.Time
	expected bool
	over     bool

	pressed, tight bool
	shed           uint64
}

func (*page) ID() stream.ID                     { return stream.ID{} }
func (*page) Lease() stream.Lease               { return stream.Lease{} }
func (p *page) IsOver() bool                    { return p.over }
func (p *page) Read() (uint64, time.Time, bool) { return p.said, p.came, p.expected }
func (p *page) Pressed(stream.Lease) bool       { return p.pressed }
func (p *page) Tight(stream.Lease) bool         { return p.tight }
func (p *page) Shed(_ stream.ID, upTo uint64)   { p.shed = upTo }

// say appends n entries, each a tenth of Kept.
func (p *page) say(of *Pace, o *Options, n int) {
	for range n {
		p.said++
		of.Said(o, p.said, int(o.Kept/10)-entryRoom)
	}
}

// Await waits for a reader that makes progress, and gives up a reader that stalls.
func TestAwait(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		page  page
		kept  int64
		says  int
		reads time.Duration // when the reader has read all; 0: never
		came  bool
		want  time.Duration
	}{
		"it is not known what is kept": {says: 50, came: true},
		"little":                       {kept: 10000, says: 7, came: true},
		"reads":                        {kept: 10000, says: 8, reads: time.Second / 2, came: true, want: time.Second / 2},
		"stalls":                       {kept: 10000, says: 8, came: true, want: stalled + stalled/10},
		"nobody reads":                 {kept: 10000, says: 50},
		"it is over":                   {kept: 10000, says: 50, came: true, page: page{over: true}},
		"little room":                  {kept: 10000, says: 2, reads: time.Second / 2, came: true, want: time.Second / 2, page: page{pressed: true}},
		"no room":                      {kept: 10000, says: 1, reads: time.Second / 2, came: true, want: time.Second / 2, page: page{tight: true}},
		"no room, a reader to come":    {kept: 10000, says: 1, reads: time.Second / 2, want: time.Second / 2, page: page{tight: true, expected: true}},
		"no room, it does not begin":   {kept: 10000, says: 1, came: true, want: stalled + stalled/10, page: page{tight: true}},
		"no room, nobody reads":        {kept: 10000, says: 1, page: page{tight: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, p := test.page, &Pace{}
				o := &Options{Kept: test.kept, Room: &s, Quit: make(chan struct{})}
				began := time.Now()
				if test.came {
					s.came = began
				}
				s.say(p, o, test.says)
				if test.reads > 0 {
					time.AfterFunc(test.reads, func() { p.Reach(o, s.said, s.said) })
				}
				p.Await(o, &s)
				if got := time.Since(began); got != test.want {
					t.Errorf("waited for %v, want %v", got, test.want)
				}
				if want := s.said; test.page.tight && test.reads > 0 && s.shed != want {
					t.Errorf("shed through %d, want %d", s.shed, want)
				}
			})
		})
	}
}

// A reader that makes progress too slowly is not awaited again until it has caught up. Quit ends the waiting.
func TestSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p, quit := &page{came: time.Now()}, &Pace{}, make(chan struct{})
		o := &Options{Kept: 10000, Quit: quit}
		s.say(p, o, 20)
		go func() {
			for seq := uint64(1); seq <= 10; seq++ {
				time.Sleep(stalled - stalled/20)
				p.Reach(o, seq, s.said)
			}
		}()
		began := time.Now()
		p.Await(o, s)
		if got := time.Since(began); got < Most || got > Most+stalled/10 {
			t.Errorf("waited for %v", got)
		}
		again := time.Now()
		if p.Await(o, s); time.Since(again) != 0 {
			t.Error("it is waited for again")
		}
		time.Sleep(time.Minute)
		p.Reach(o, s.said, s.said)
		if p.Told() != s.said {
			t.Errorf("told %d of %d", p.Told(), s.said)
		}
		s.say(p, o, 10)
		s.came = time.Now()
		time.AfterFunc(stalled/2, func() { close(quit) })
		again = time.Now()
		if p.Await(o, s); time.Since(again) != stalled/2 {
			t.Errorf("waited for %v once it had caught up", time.Since(again))
		}
	})
}
