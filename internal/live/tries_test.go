package live

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestTries has addresses send wrong tokens: ten in a minute are checked, and then none until the minute is over. Clients with the same address
// share the tries.
func TestTries(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	for name, c := range map[string]struct {
		from, other string
		same        bool // from and other count as one address
	}{
		"the same":            {"192.0.2.1:1", "192.0.2.1:2", true},
		"IPv4":                {"192.0.2.1:1", "192.0.2.2:1", false},
		"IPv4 in IPv6":        {"192.0.2.1:1", "[::ffff:192.0.2.1]:1", true},
		"IPv6, the same /64":  {"[2001:db8::1]:1", "[2001:db8::2]:1", true},
		"IPv6, another /64":   {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		"IPv6, with zones":    {"[fe80::1%a]:1", "[fe80::2%b]:1", true},
		"loopback":            {"127.0.0.1:1", "127.1.2.3:1", true},
		"loopback of IPv6":    {"127.0.0.1:1", "[::1]:1", true},
		"no address":          {"@", "pipe", true},
		"no address, and one": {"@", "192.0.2.1:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all tries
			try := func(from string, after time.Duration, right bool) time.Duration {
				wait, _ := all.try(prefixOf(&http.Request{RemoteAddr: from}), begin.Add(after), right)
				return wait
			}
			for i := range mostTries {
				if try(c.from, time.Duration(i)*time.Second, true) != 0 || try(c.from, time.Duration(i)*time.Second, false) != 0 {
					t.Fatalf("try %d is not looked at", i)
				}
			}
			if wait := try(c.from, 20*time.Second, true); wait != triesFor-20*time.Second {
				t.Errorf("the right token, after too many wrong ones: %v", wait)
			}
			if wait := try(c.other, 20*time.Second, true); wait > 0 != c.same {
				t.Errorf("the right token of %s: %v", c.other, wait)
			}
			if wait := try(c.from, triesFor, true); wait != 0 {
				t.Errorf("when the minute is over: %v", wait)
			}
		})
	}
}

// TestManyTriers has more addresses guess than are remembered: the excess addresses share their tries, and in the next minute there is
// room again.
func TestManyTriers(t *testing.T) {
	t.Parallel()
	var all tries
	now := time.Now()
	looked := 0
	for i := range 3 * mostTriers {
		wait, _ := all.try(prefixOf(&http.Request{RemoteAddr: fmt.Sprintf("10.0.%d.%d:1", i/250, i%250)}), now, false)
		if wait == 0 {
			looked++
		}
	}
	if looked != mostTriers+mostTries || len(all.last) > mostTriers+1 {
		t.Errorf("%d tries are looked at, %d addresses remembered", looked, len(all.last))
	}
	now = now.Add(triesFor)
	if wait, _ := all.try(prefixOf(&http.Request{RemoteAddr: "192.0.2.1:1"}), now, false); wait != 0 || len(all.last) > 2 {
		t.Errorf("a minute later: %v, %d addresses", wait, len(all.last))
	}
}
