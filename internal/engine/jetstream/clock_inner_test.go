package jetstream

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// If the servers are slow to answer a look at their clock, the look is repeated, and the quickest of three counts.
func TestSlowLook(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes []time.Duration // negative: the look fails after that time
		asks  int
		off   time.Duration // the largest error
		fails bool
	}{
		"quick":               {takes: []time.Duration{10}, asks: 1, off: 5},
		"slow once":           {takes: []time.Duration{3000, 20}, asks: 2, off: 10},
		"always slow":         {takes: []time.Duration{3000, 800, 1000}, asks: 3, off: 400},
		"slow, and then away": {takes: []time.Duration{3000, -10}, asks: 2, off: 1500},
		"away":                {takes: []time.Duration{-10}, asks: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const ahead = time.Hour
				asks := 0
				said, at, err := look(func() (time.Time, error) {
					takes := test.takes[asks] * time.Millisecond
					asks++
					theirs := time.Now().Add(ahead) // the answer is on its way after this moment
					time.Sleep(max(takes, -takes))
					if takes < 0 {
						return time.Time{}, errors.New("away")
					}
					return theirs, nil
				})
				if asks != test.asks || (err != nil) != test.fails {
					t.Fatalf("asked %d times: %v", asks, err)
				}
				if off := at.Add(ahead).Sub(said); !test.fails && (off < 0 || off > test.off*time.Millisecond) {
					t.Errorf("off by %v", off)
				}
			})
		})
	}
}
