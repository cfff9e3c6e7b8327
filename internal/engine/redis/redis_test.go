//go:build unix

package redis

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/testlong"
	"holdfast/stream"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(16)
	// That goroutine ends within a second of Close.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var quiet = slog.New(slog.DiscardHandler)

// open opens a URL until the test ends, for a test in which Redis is never away.
func open(t testing.TB, rawURL string) *Log {
	t.Helper()
	l := patient(t, rawURL, durable.Options{Logger: quiet})
	t.Cleanup(func() { l.Close() })
	return l.(*Log)
}

// hasty opens a URL until the test ends, with the time limits of nodes.
func hasty(t testing.TB, rawURL string) *Log {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		l, err := Open(t.Context(), rawURL, durable.Options{Logger: quiet})
		var late net.Error
		if errors.As(err, &late) && late.Timeout() && time.Now().Before(end) {
			continue // the machine is busy
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.(*Log)
	}
}

// appendAll appends frames after last, and returns the place of the last frame.
func appendAll(t testing.TB, l *Log, key string, last uint64, frames ...string) uint64 {
	t.Helper()
	w := writer{log: l, key: key, last: last}
	for _, frame := range frames {
		if err := w.add(t.Context(), frame); err != nil {
			t.Fatal(err)
		}
	}
	return w.last
}

// settled repeats f while its outcome is unknown, as on a busy machine.
func settled(f func() error) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err := f(); !errors.Is(err, stream.ErrUnavailable) || time.Now().After(end) {
			return err
		}
	}
}

// frames returns the frames of a sequence.
func frames(t testing.TB, l *Log, key string) []string {
	t.Helper()
	var all []string
	err := settled(func() error {
		all = nil
		return l.Frames(t.Context(), key, 0, func(_ uint64, _ time.Duration, frame []byte) bool {
			all = append(all, string(frame))
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// No place or version is used twice, even if the key was gone meanwhile.
func TestNothingStartsAnew(t *testing.T) {
	t.Parallel()
	l := open(t, redistest.Start(t).URL())
	ctx := t.Context()
	first := appendAll(t, l, "e.a", 0, "one")
	if err := l.Trim(ctx, "e.a", 0); err != nil {
		t.Fatal(err)
	}
	if at, err := l.Append(ctx, "e.a", first, []byte("two")); !errors.Is(err, stream.ErrConflict) || at != 0 {
		t.Errorf("after what is gone: %d, %v", at, err)
	}
	if second := appendAll(t, l, "e.a", 0, "two"); second <= first {
		t.Errorf("place %d after %d", second, first)
	}
	was, err := l.Put(ctx, "s.a", 0, []byte("one"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ctx, "s.a", 0); err != nil {
		t.Fatal(err)
	}
	if version, err := l.Put(ctx, "s.a", 0, []byte("two"), time.Second); err != nil || version <= was {
		t.Errorf("version %d after %d, %v", version, was, err)
	}
	if _, err := l.Put(ctx, "s.a", was, []byte("three"), time.Second); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("put over a version that is gone: %v", err)
	}
}

// Frames and values that have expired are removed.
func TestExpires(t *testing.T) {
	t.Parallel()
	l := patient(t, redistest.Start(t).URL(), durable.Options{Keep: 1500 * time.Millisecond, Logger: quiet})
	defer l.Close()
	began := time.Now()
	last := appendAll(t, l.(*Log), "e.k", 0, "one", "two")
	for len(frames(t, l.(*Log), "e.k")) > 0 {
		if time.Since(began) > 20*time.Second {
			t.Fatal("frames are there after 20 s")
		}
		time.Sleep(5 * time.Millisecond) // polling
	}
	if kept := time.Since(began); kept < l.Retention() || l.Retention() != 3*time.Second {
		t.Errorf("kept for %v, want at least %v, and that to be three seconds", kept, l.Retention())
	}
	if _, err := l.Append(t.Context(), "e.k", last, nil); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("after what has expired: %v", err)
	}
	if at := appendAll(t, l.(*Log), "e.k", 0, "three"); at <= last {
		t.Errorf("place %d after %d", at, last)
	}
}

// Frames of all sizes come back, in order and page by page.
func TestManyFrames(t *testing.T) {
	t.Parallel()
	l := open(t, redistest.Start(t).URL())
	var want []string
	for i := range 3000 {
		want = append(want, fmt.Sprint(i))
	}
	for i := range 12 {
		want = append(want, strings.Repeat(fmt.Sprint(i%10), 1<<20-i))
	}
	want = append(want, "", strings.Repeat("x", maxFrame), "last")
	last := appendAll(t, l, "e.k", 0, want...)
	if got := frames(t, l, "e.k"); !equal(got, want) {
		t.Errorf("%d frames, want %d, or others", len(got), len(want))
	}
	if _, err := l.Append(t.Context(), "e.k", last, make([]byte, maxFrame+1)); !errors.Is(err, stream.ErrTooLarge) {
		t.Errorf("a frame that is too large: %v", err)
	}
	if err := l.Trim(t.Context(), "e.k", last); err != nil {
		t.Fatal(err)
	}
	if got := frames(t, l, "e.k"); !equal(got, []string{"last"}) {
		t.Errorf("after trimming all but the last: %d frames", len(got))
	}
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A server that evicts keys when it is full is refused. Other wrong settings are
// refused, or cause a warning. No error contains the password.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	plain := redistest.Start(t, "--requirepass", "s3cret", "--appendonly", "no", "--user", "few", "on", ">f3w", "~*", "&*", "+@all", "-info")
	evicting := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	host := plain.Addr()
	for _, c := range []struct{ url, want string }{
		{"redis://:s3cret-not@" + host, "WRONGPASS"},
		{"redis://" + host, "NOAUTH"},
		{"redis://:s3cret@" + host + "/99", "DB index is out of range"},
		{"redis://:s3cret@127.0.0.1:1", "refused"},
		{evicting.URL(), "CONFIG SET maxmemory-policy noeviction"},
		{replica.URL(), "replica"},
		{"redis+cluster://:s3cret@" + host, "cluster support disabled"},
		{"redis://:s3cret/x@" + host, "%2F"},
		{"redis://:s3cret@" + host + "/x", "database"},
		{"redis://:s3cret@" + host + "?wait=x", "wait"},
		{"redis://:s3cret@" + host + "?prefix={x}", "prefix"},
		{"redis://:s3cret@" + host + "?colour=x", "colour"},
		{"redis://:s3cret@" + host + ",other", "several hosts"},
		{"redis://:s3cret%zz@" + host, "%XX"},
		{"redis+sentinel://:s3cret@" + host, "master"},
		{"redis:x", "redis://USER"},
	} {
		l, err := Open(t.Context(), c.url, durable.Options{Logger: quiet})
		if err == nil {
			l.Close()
			t.Errorf("%s: no error", c.url)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", c.url, err)
		}
	}
	for _, c := range []struct{ url, want string }{
		{"redis://:s3cret@" + host, "appendonly is no"},
		{"redis://few:f3w@" + host, "INFO is forbidden"},
		{master.URL() + "?wait=2", "fewer replicas"},
	} {
		var said bytes.Buffer
		l, err := Open(t.Context(), c.url, durable.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))})
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		l.Close()
		if !strings.Contains(said.String(), c.want) {
			t.Errorf("%s: no warning %q: %s", c.url, c.want, &said)
		}
	}
}

// A full Redis refuses an append with an error, and keeps its frames. The log goes
// on when there is room again.
func TestFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "8mb")
	l := open(t, server.URL())
	big := bytes.Repeat([]byte("x"), 256<<10)
	var last uint64
	count := 0
	fill := func(size int) {
		t.Helper()
		for range 10000 {
			at, err := l.Append(t.Context(), "e.k", last, big[:size])
			if errors.Is(err, stream.ErrFull) {
				return
			}
			if err != nil {
				t.Fatalf("after %d frames: %v", count, err)
			}
			last = at
			count++
		}
		t.Fatal("never full")
	}
	fill(len(big))
	if _, err := l.Put(t.Context(), "s.k", 0, big, time.Minute); !errors.Is(err, stream.ErrFull) {
		t.Errorf("put: %v", err)
	}
	// The refused frames took room in a buffer of the connection, which Redis frees
	// after a while. Then there is room for small frames.
	var err error
	for end := time.Now().Add(time.Minute); ; {
		fill(16 << 10)
		fill(64)
		if err = l.Ping(t.Context()); errors.Is(err, stream.ErrFull) || time.Now().After(end) {
			break
		}
	}
	if !errors.Is(err, stream.ErrFull) {
		t.Errorf("ping: %v", err)
	}
	if got := frames(t, l, "e.k"); len(got) != count {
		t.Errorf("%d frames are kept, %d were acknowledged", len(got), count)
	}
	if err := l.Trim(t.Context(), "e.k", last); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, "e.k", last, "more")
}
