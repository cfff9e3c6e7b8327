package e2e

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// eachBackend runs a test against the demo server and against a stdio server.
func eachBackend(t *testing.T, test func(t *testing.T, serve func(flags ...string) *program)) {
	for name, what := range map[string][]string{"demo": {"--demo"}, "stdio": {"--", os.Args[0], "stdio"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(flags ...string) *program { return serve(t, append(flags, what...)...) })
		})
	}
}

// At SIGTERM the program sends listening clients away, refuses new requests, and waits for the
// calls in flight and for their clients: for a client that is connected, and for a client that
// was not connected at the signal.
func TestTerminate(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, serve func(...string) *program) {
		const steps = 15
		p := serve("--retry", "200ms")
		idle := connect(t, p)
		listening := idle.listen("GET", "", "")
		reading := connect(t, p).count(steps, 150*time.Millisecond)
		other := connect(t, p)
		gone := other.count(steps, 150*time.Millisecond)
		reading.until(2)
		gone.until(2)
		gone.Close()

		p.signal(t, syscall.SIGTERM)
		if listening.rest(); listening.retry < 200*time.Millisecond || listening.retry > 400*time.Millisecond {
			t.Errorf("who listens was told to wait %v, want 200 to 400 ms", listening.retry)
		}
		if r := idle.Post(t, mcptest.Request(1, "tools/list", "")); r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
			t.Errorf("a new request got %d, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
		}
		if got := other.listen("GET", gone.LastID, "").rest().received; !slices.Equal(got, counted(2, steps)) {
			t.Errorf("who came back received %q", got)
		}
		if reading.rest(); !slices.Equal(reading.received, counted(0, steps)) {
			t.Errorf("who stayed received %q", reading.received)
		}
		if err := p.wait(t, 15*time.Second); err != nil {
			t.Errorf("holdfast: %v", err)
		}
	})
}

// A call that ends while its client is away, as polling clients mostly are, is kept until the
// client has had time to come back.
func TestTerminatePolling(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, serve func(...string) *program) {
		const steps = 10
		p := serve("--retry", "2s", "--disconnect-after", "100ms")
		c := connect(t, p)
		l := c.count(steps, 100*time.Millisecond).rest()
		if l.retry != 2*time.Second {
			t.Fatalf("told to wait %v after %q, want to be sent away for 2 s", l.retry, l.received)
		}
		p.signal(t, syscall.SIGTERM)
		received := l.received
		for len(received) == 0 || !strings.HasPrefix(received[len(received)-1], "result ") {
			time.Sleep(l.retry) // the retry time: unless the machine stalls, the call ends meanwhile
			l = c.listen("GET", l.LastID, "").rest()
			received = append(received, l.received...)
		}
		if !slices.Equal(received, counted(0, steps)) {
			t.Errorf("received %q", received)
		}
		if err := p.wait(t, 15*time.Second); err != nil {
			t.Errorf("holdfast: %v", err)
		}
	})
}

// A call that takes longer than --drain fails, and the error says that the server is shutting down.
func TestTerminateBounded(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, serve func(...string) *program) {
		p := serve("--drain", "300ms")
		l := connect(t, p).count(1, time.Minute)
		p.signal(t, syscall.SIGTERM)
		if l.rest(); len(l.received) != 1 || !strings.Contains(l.received[0], "the server is shutting down") {
			t.Errorf("received %q, want an error that says why", l.received)
		}
		if err := p.wait(t, 15*time.Second); err != nil {
			t.Errorf("holdfast: %v", err)
		}
	})
}

// A second signal does not wait for --drain.
func TestTerminateTwice(t *testing.T) {
	eachBackend(t, func(t *testing.T, serve func(...string) *program) {
		p := serve("--drain", "1m")
		c := connect(t, p)
		listening := c.listen("GET", "", "")
		l := c.count(1, time.Minute)
		p.signal(t, syscall.SIGTERM)
		listening.rest() // by then the program drains
		p.signal(t, syscall.SIGINT)
		if l.rest(); len(l.received) != 1 || !strings.HasPrefix(l.received[0], "error ") {
			t.Errorf("received %q, want an error", l.received)
		}
		if err := p.wait(t, 15*time.Second); err != nil {
			t.Errorf("holdfast: %v", err)
		}
	})
}
