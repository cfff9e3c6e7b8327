package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/tools"
	hf "holdfast/engine"
)

// perSession is how many calls wait in one session.
const perSession = 1000

// wait lets a node take calls that wait, kills it, and starts another on its data.
func (s settings) wait(ctx context.Context) error {
	dir := s.dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	for _, what := range []string{"take", "again"} {
		if err := s.process(ctx, what, dir); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		fmt.Printf("on disk: %d MiB\n", size(dir)>>20)
	}
	return nil
}

// process runs a node in a process of its own until it prints "done", and kills it.
func (s settings) process(ctx context.Context, what, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "-child", what, "-dir", dir, "-waiting", strconv.Itoa(s.waiting))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	done := false
	for !done && lines.Scan() {
		if done = lines.Text() == "done"; !done {
			fmt.Println(lines.Text())
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !done {
		return fmt.Errorf("the node ended early: %s", cmd.ProcessState)
	}
	return nil
}

func size(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// node runs in the processes of [settings.process].
func (s settings) node(ctx context.Context) error {
	began := time.Now()
	st, err := hf.Open(ctx, "file:"+s.dir, hf.Options{})
	if err != nil {
		return err
	}
	backend := message.New(message.HandlerFunc(tools.Answer))
	h := holdfast.NewBackendHandler(backend, &holdfast.Options{
		Store: st, Response: holdfast.ResponseSSE, MaxCalls: 2 * s.waiting, MaxSessions: s.waiting, MaxShare: 1, Logger: slog.New(slog.DiscardHandler),
	})
	sessions := (s.waiting + perSession - 1) / perSession
	if s.child == "again" {
		return s.again(h, began, sessions)
	}
	before := inUse()
	began = time.Now()
	ids := make([]string, sessions)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ids[i] = open(h)
			for n := range min(perSession, s.waiting-i*perSession) {
				post(h, ids[i], fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"slow","arguments":{"ms":86400000}}}`, n))
			}
		})
	}
	wg.Wait()
	fmt.Printf("%d calls wait in %d sessions: taken in %v (%.0f a second)\n", s.waiting, sessions,
		time.Since(began).Round(time.Millisecond), float64(s.waiting)/time.Since(began).Seconds())
	runtime.GC()
	after := inUse()
	fmt.Printf("heap and stacks: %d MiB, %d bytes a call; resident: %d MiB\n", after>>20, (after-before)/int64(s.waiting), resident()>>20)
	if err := os.WriteFile(filepath.Join(s.dir, "..", filepath.Base(s.dir)+".first"), []byte(ids[0]), 0o600); err != nil {
		return err
	}
	fmt.Println("done")
	select {} // until it is killed
}

// again is the rest of node after the kill.
func (s settings) again(h http.Handler, began time.Time, sessions int) error {
	fmt.Printf("killed; started again on the same data: open after %v\n", time.Since(began).Round(time.Millisecond))
	name := filepath.Join(s.dir, "..", filepath.Base(s.dir)+".first")
	id, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	_ = os.Remove(name)
	began = time.Now()
	w := post(h, string(id), `{"jsonrpc":"2.0","id":"again","method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`)
	if w.code != http.StatusOK {
		return fmt.Errorf("a call in the old session: HTTP %d %s", w.code, w.body.String())
	}
	fmt.Printf("first call in a session of %d waiting calls, which is taken over for it: %v (one of %d sessions)\n",
		perSession, time.Since(began).Round(time.Millisecond), sessions)
	fmt.Printf("resident: %d MiB\n", resident()>>20)
	fmt.Println("done")
	select {}
}

// open begins a session and returns its id.
func open(h http.Handler) string {
	w := post(h, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	return w.header.Get("Mcp-Session-Id")
}

// post makes a request. The client of a call of slow leaves as soon as it has the first event;
// others wait for the answer.
func post(h http.Handler, session, body string) *leaver {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/", strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1"
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2025-11-25"},
	}
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	w := &leaver{header: make(http.Header), code: http.StatusOK}
	if strings.Contains(body, `"slow"`) {
		w.leave = leave
	}
	h.ServeHTTP(w, r)
	return w
}

// A leaver is an http.ResponseWriter of a client that may leave: it calls leave at the first flush,
// if that is not nil.
type leaver struct {
	header http.Header
	code   int
	body   strings.Builder
	leave  func()
}

func (w *leaver) Header() http.Header              { return w.header }
func (w *leaver) WriteHeader(code int)             { w.code = code }
func (w *leaver) SetWriteDeadline(time.Time) error { return nil }
func (w *leaver) SetReadDeadline(time.Time) error  { return nil }

func (w *leaver) Flush() {
	if w.leave != nil {
		w.leave()
	}
}

func (w *leaver) Write(p []byte) (int, error) {
	if w.leave == nil {
		return w.body.Write(p)
	}
	return len(p), nil
}

// inUse returns the heap and stacks in use, in bytes.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// resident returns the process's resident memory, in bytes.
func resident() int64 {
	f, err := os.Open("/proc/self/statm")
	if err != nil {
		return 0
	}
	defer f.Close()
	text, _ := io.ReadAll(f)
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
