package jetstream_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/stream"
)

// variable makes the test's program append to the directory in it, until the program
// is killed.
const variable = "HOLDFAST_TEST_APPEND"

// appender appends numbers, and prints each one when it is acknowledged.
func appender() {
	dir := os.Getenv(variable)
	if dir == "" {
		return
	}
	l, err := embedded.Open(context.Background(), "file:"+dir, durable.Options{Logger: quiet})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	patient(l) // the machine may be busy
	fmt.Println("ready")
	for i := range 8 {
		go func() {
			key := "k" + strconv.Itoa(i)
			var last, n uint64
			_ = l.Frames(context.Background(), key, 0, func(at uint64, _ time.Duration, frame []byte) bool {
				last, n = at, binary.BigEndian.Uint64(frame)
				return true
			})
			for {
				n++
				at, err := l.Append(context.Background(), key, last, binary.BigEndian.AppendUint64(nil, n))
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				last = at
				fmt.Println(key, n) // one write, straight to the pipe
			}
		}()
	}
	select {}
}

// A process that is killed loses no acknowledged frame, and the next process goes on
// after the last one.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	acked := make(map[string]uint64)
	for range 3 {
		killed(t, dir, acked)
	}
	l := must(t, "file:"+dir)
	defer closed(t, l)
	for key, n := range acked {
		if err := dense(t.Context(), l, key, n); err != nil {
			t.Error(err)
		}
	}
	if len(acked) != 8 {
		t.Errorf("%d keys, want 8", len(acked))
	}
}

// killed runs an appender until some frames are acknowledged, and kills it.
func killed(t *testing.T, dir string, acked map[string]uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Check(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		key, number, _ := strings.Cut(lines.Text(), " ")
		switch key {
		case "error":
			t.Fatal(lines.Text())
		case "ready":
			refused(t, "file:"+dir, "in use by another process")
			continue
		}
		if n == 3000 {
			_ = cmd.Process.Kill() // and read its output up to then
		}
		if acked[key], err = strconv.ParseUint(number, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
}

// dense reports whether a key's frames count from 1 to at least n.
func dense(ctx context.Context, l durable.Log, key string, n uint64) error {
	var next uint64
	var wrong, err error
	for end := time.Now().Add(time.Minute); ; {
		next, wrong = 1, nil
		err = l.Frames(ctx, key, 0, func(_ uint64, _ time.Duration, frame []byte) bool {
			if got := binary.BigEndian.Uint64(frame); got != next {
				wrong = fmt.Errorf("%s: frame %d where %d should be", key, got, next)
			}
			next++
			return wrong == nil
		})
		if !errors.Is(err, stream.ErrUnavailable) || time.Now().After(end) {
			break // otherwise the machine may have stood still
		}
	}
	if err == nil {
		err = wrong
	}
	if err == nil && next <= n {
		err = fmt.Errorf("%s: %d frames, and %d were acknowledged", key, next-1, n)
	}
	return err
}

// A writer appends numbers, and repeats an append with an unknown outcome.
type writer struct {
	log   durable.Log
	key   string
	last  uint64
	acked uint64
	slow  time.Duration // the longest append
	stop  chan struct{}
}

// run returns nil when it was stopped, and stream.ErrConflict when another node has appended.
func (w *writer) run(ctx context.Context) error {
	for {
		start := time.Now()
		if err := w.append(ctx); err != nil {
			return err
		}
		w.slow = max(w.slow, time.Since(start))
		select {
		case <-w.stop:
			return nil
		default:
		}
	}
}

func (w *writer) append(ctx context.Context) error {
	frame := binary.BigEndian.AppendUint64(nil, w.acked+1)
	for unknown := false; ; unknown = true {
		at, err := w.log.Append(ctx, w.key, w.last, frame)
		if errors.Is(err, stream.ErrConflict) && unknown {
			mine, err := w.find(ctx, frame)
			if err == nil && mine == 0 {
				return stream.ErrConflict
			}
			at = mine
			if err != nil {
				at = 0
			}
		} else if errors.Is(err, stream.ErrConflict) {
			return err
		}
		if at > 0 {
			w.last, w.acked = at, w.acked+1
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // like a store between two tries
	}
}

// find returns the place of frame if it is the next one after w.last, or 0.
func (w *writer) find(ctx context.Context, frame []byte) (at uint64, err error) {
	first := true
	err = w.log.Frames(ctx, w.key, w.last, func(place uint64, _ time.Duration, f []byte) bool {
		if first && string(f) == string(frame) {
			at = place
		}
		first = false
		return false
	})
	return at, err
}

// A cluster with a leader that is killed, or stopped, loses no acknowledged frame,
// and takes no frame from a fenced writer.
func TestKilledLeader(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it takes 10 s")
	for name, trouble := range map[string]func(*natstest.Servers, int) error{
		"killed":  func(s *natstest.Servers, i int) error { s.Kill(i); return nil },
		"stopped": (*natstest.Servers).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "stopped" {
				testlong.Only(t, "it takes more than 10 s")
			}
			t.Parallel()
			leaderLost(t, trouble)
		})
	}
}

func leaderLost(t *testing.T, trouble func(*natstest.Servers, int) error) {
	s := natstest.Processes(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, other := must(t, s.URL()), must(t, s.URL())
	defer closed(t, l)
	defer closed(t, other)
	var wg sync.WaitGroup
	writers := make([]*writer, 8)
	ended := make([]error, len(writers))
	for i := range writers {
		w := &writer{log: l, key: "k" + strconv.Itoa(i), stop: make(chan struct{})}
		writers[i] = w
		wg.Go(func() { ended[i] = w.run(ctx) })
	}
	time.Sleep(300 * time.Millisecond) // until some frames are appended
	i := -1
	until(t, func() (err error) {
		if i, err = s.Leader(ctx, "holdfast-events"); err == nil && i < 0 {
			err = errors.New("nobody leads")
		}
		return err
	})
	mcptest.Check(t, trouble(s, i))
	fence := takeOver(ctx, t, other, "k0")
	for _, w := range writers[1:] {
		close(w.stop)
	}
	wg.Wait() // for the first writer too, which must notice the fence by itself
	mcptest.Check(t, s.Restart(i))
	if !errors.Is(ended[0], stream.ErrConflict) {
		t.Errorf("the writer that was fenced: %v", ended[0])
	}
	var slow time.Duration
	for i, w := range writers[1:] {
		if ended[i+1] != nil {
			t.Errorf("%s: %v", w.key, ended[i+1])
		}
		if err := dense(ctx, l, w.key, w.acked); err != nil {
			t.Error(err)
		}
		slow = max(slow, w.slow)
	}
	t.Logf("appends waited for %v at most", slow)
	var at uint64
	until(t, func() (err error) { at, err = lastOf(ctx, other, "k0"); return err })
	if at != fence {
		t.Errorf("after the fence at %d there is %d", fence, at)
	}
}

// takeOver appends to the frames of another writer, like a node that takes a session over. If the other
// writer is faster, takeOver continues at the place in the conflict, as reading takes longer.
func takeOver(ctx context.Context, t *testing.T, l durable.Log, key string) (fence uint64) {
	t.Helper()
	var err error
	for last, known := uint64(0), false; ctx.Err() == nil; {
		if !known {
			last, err = lastOf(ctx, l, key)
		}
		at := uint64(0)
		if known || err == nil {
			at, err = l.Append(ctx, key, last, []byte("fence"))
		}
		if err == nil {
			return at
		}
		if known = errors.Is(err, stream.ErrConflict) && at > 0; known {
			last = at
			continue
		}
		time.Sleep(5 * time.Millisecond) // repeat until it succeeds
	}
	t.Fatalf("cannot take over: %v", err)
	return 0
}

func lastOf(ctx context.Context, l durable.Log, key string) (last uint64, err error) {
	err = l.Frames(ctx, key, 0, func(at uint64, _ time.Duration, _ []byte) bool { last = at; return true })
	return last, err
}

// If the engine is away for ten seconds, no operation waits longer than an attempt,
// and all go on when the engine is back.
func TestAway(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it takes more than 10 s")
	s := natstest.Processes(t)
	l := must(t, s.URL())
	defer closed(t, l)
	var at uint64
	until(t, func() (err error) {
		if at, err = l.Append(t.Context(), "a", 0, []byte("1")); errors.Is(err, stream.ErrConflict) && at > 0 {
			return nil // the frame was appended, but the answer was lost
		}
		return err
	})
	for i := range s.Len() {
		mcptest.Check(t, s.Pause(i))
	}
	until(t, func() error { // a signal needs time to stop a process, which goes on with requests that arrive meanwhile
		if err := l.Ping(t.Context()); !errors.Is(err, stream.ErrUnavailable) {
			return fmt.Errorf("Ping: %w", err)
		}
		return nil
	})
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		start := time.Now()
		if err := l.Ping(t.Context()); !errors.Is(err, stream.ErrUnavailable) {
			t.Fatalf("Ping while all servers are stopped: %v", err)
		}
		if _, _, _, err := l.Get(t.Context(), "a"); !errors.Is(err, stream.ErrUnavailable) {
			t.Fatalf("Get while all servers are stopped: %v", err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("two requests took %v", took)
		}
	}
	for i := range s.Len() {
		mcptest.Check(t, s.Resume(i))
	}
	start := time.Now()
	until(t, func() error {
		last, err := l.Append(t.Context(), "a", at, []byte("2"))
		if errors.Is(err, stream.ErrConflict) && last > at {
			return nil // the frame was appended, but the answer was lost
		}
		return err
	})
	t.Logf("back after %v", time.Since(start))
	if n := count(t, l, "a"); n != 2 {
		t.Errorf("%d frames, want 2", n)
	}
}
