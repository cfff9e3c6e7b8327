package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/bench/load"
)

// When sessions fall asleep, and how many are woken: one after another, and by wakers at a time.
const (
	asleepAfter = 2 * time.Second
	wokenAlone  = 2_000
	wokenAtOnce = 10_000
	wakers      = 64
	awakeFor    = 75 * time.Second // after that the memory for ready sessions is given back
)

// asleep lets very many clients begin a session on a node, and not use it until it sleeps. It prints the memory of the node and
// the size of the store for a sleeping session, and how long waking takes.
func (s settings) asleep(ctx context.Context) error {
	url, addr, remove, err := s.asleepStore()
	if err != nil {
		return err
	}
	defer remove()
	s.sleepers, s.ttl = s.sleeping, time.Hour
	node, err := s.startIdle(ctx, url)
	if err != nil {
		return err
	}
	defer node.kill()
	w := watcher{node: node, began: time.Now()}
	if w.open(ctx, 1_000) > 0 {
		return errors.New("sessions were refused")
	}
	if err := w.awaitAsleep(ctx); err != nil {
		return err
	}
	rss, held := residentOf(node.cmd.Process.Pid), heldBy(url, addr)
	began := time.Now()
	ids, err := w.openKeeping(ctx, s.sleeping, wokenAlone+wokenAtOnce)
	if err != nil {
		return err
	}
	opened := time.Since(began)
	if err := w.awaitAsleep(ctx); err != nil {
		return err
	}
	n := float64(s.sleeping)
	fmt.Printf("%d sessions begun in %v on one node with %s, asleep %v after the last one; %s\n\n", s.sleeping, opened.Round(time.Second),
		strings.SplitN(url, ":", 2)[0]+":", (time.Since(began) - opened).Round(100*time.Millisecond), loadAverage())
	grown := residentOf(node.cmd.Process.Pid) - rss
	fmt.Printf("| RSS of the node over an empty one | %d MiB, %.1f bytes a session |\n", grown>>20, float64(grown)/n)
	fmt.Printf("| the store over an empty one | %.1f bytes a session |\n", float64(heldBy(url, addr)-held)/n)
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	alone, err := w.wake(ids[:wokenAlone], 1)
	if err != nil {
		return err
	}
	fmt.Printf("| waking, one after the other | p50 %v, p99 %v |\n", alone[len(alone)/2].Round(10*time.Microsecond), alone[len(alone)*99/100].Round(10*time.Microsecond))
	began = time.Now()
	all, err := w.wake(ids[wokenAlone:], wakers)
	if err != nil {
		return err
	}
	fmt.Printf("| %d woken over %d connections | all after %v, p50 %v, p99 %v |\n", len(all), wakers, time.Since(began).Round(time.Millisecond),
		all[len(all)/2].Round(10*time.Microsecond), all[len(all)*99/100].Round(10*time.Microsecond))
	return nil
}

// stayAwake lets many clients begin a session on a node, list its tools, and stay. It prints the memory of the node for a
// session.
func (s settings) stayAwake(ctx context.Context) error {
	url, _, remove, err := s.asleepStore()
	if err != nil {
		return err
	}
	defer remove()
	s.ttl = time.Hour
	node, err := s.startIdle(ctx, url)
	if err != nil {
		return err
	}
	defer node.kill()
	w := watcher{node: node, began: time.Now()}
	if _, err := w.openKeeping(ctx, 1_000, 1); err != nil {
		return err
	}
	before, err := w.stats(ctx, true)
	if err != nil {
		return err
	}
	rss := residentOf(node.cmd.Process.Pid)
	ids, err := w.openKeeping(ctx, s.awake, s.awake)
	if err != nil {
		return err
	}
	if _, err := w.wake(ids, wakers); err != nil { // a call that lists the tools
		return err
	}
	pause(ctx, awakeFor)
	after, err := w.stats(ctx, true)
	if err != nil {
		return err
	}
	each := func(n int64) float64 { return float64(n) / float64(s.awake) }
	fmt.Printf("%d sessions awake on one node with %s:, over 1,000; %s\n\n| resident | heap | stacks |\n|---|---|---|\n| %.0f B | %.0f B | %.0f B |\n", s.awake,
		strings.SplitN(url, ":", 2)[0], loadAverage(), each(residentOf(node.cmd.Process.Pid)-rss), each(int64(after.Heap-before.Heap)), each(int64(after.Stacks)-int64(before.Stacks)))
	return nil
}

// asleepStore returns the URL of the store: as [settings.idleStore] does, or of a new Redis, with its address.
func (s settings) asleepStore() (url, addr string, remove func(), err error) {
	if s.store != "redis" {
		url, remove, err = s.idleStore()
		return url, "", remove, err
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return "", "", nil, err
	}
	addr, _, stop, err := startRedis(dir)
	if err != nil {
		return "", "", nil, err
	}
	return "redis://" + addr, addr, func() { stop(); _ = os.RemoveAll(dir) }, nil
}

// openKeeping begins n sessions, and returns the ids of some of them.
func (w *watcher) openKeeping(ctx context.Context, n, some int) (ids []string, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	left := n
	for range idleOpeners {
		group.Go(func() {
			c, bad := load.Dial(w.node.addr)
			for ctx.Err() == nil && bad == nil {
				mu.Lock()
				left--
				i := left
				mu.Unlock()
				if i < 0 {
					break
				}
				var id string
				if id, bad = c.Handshake("/mcp"); bad == nil && i%max(1, n/some) == 0 {
					mu.Lock()
					ids = append(ids, id)
					mu.Unlock()
				}
			}
			mu.Lock()
			err = errors.Join(err, bad)
			mu.Unlock()
		})
	}
	group.Wait()
	return ids[:min(some, len(ids))], err
}

// awaitAsleep waits until no session of the node is awake, and makes the node give memory back.
func (w *watcher) awaitAsleep(ctx context.Context) error {
	for end := time.Now().Add(5 * time.Minute); ; {
		is, err := w.stats(ctx, false)
		switch {
		case err != nil:
			return err
		case is.Sessions == 0:
			_, err = w.stats(ctx, true)
			return err
		case time.Now().After(end):
			return fmt.Errorf("%d sessions stay awake", is.Sessions)
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// wake makes a call in each session, over a number of connections, and returns how long the calls took, sorted.
func (w *watcher) wake(ids []string, connections int) (took []time.Duration, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range connections {
		group.Go(func() {
			c, bad := load.Dial(w.node.addr)
			for j := i; j < len(ids) && bad == nil; j += connections {
				request := load.Post(w.node.addr, "/mcp", ids[j], `{"jsonrpc":"2.0","id":"w","method":"tools/list"}`)
				began := time.Now()
				var res load.Response
				if res, bad = c.Do(request); bad == nil {
					bad = res.Expect(http.StatusOK, `"result"`)
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
			mu.Lock()
			err = errors.Join(err, bad)
			mu.Unlock()
		})
	}
	group.Wait()
	slices.Sort(took)
	return took, err
}

// residentOf returns the resident size of a process, in bytes.
func residentOf(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// heldBy returns the size of a store in bytes: on disk, or in the memory of the Redis at addr.
func heldBy(url, addr string) (n int64) {
	if addr != "" {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		info, _ := rdb.Info(context.Background(), "memory").Result()
		for line := range strings.Lines(info) {
			if used, ok := strings.CutPrefix(line, "used_memory:"); ok {
				n, _ = strconv.ParseInt(strings.TrimSpace(used), 10, 64)
			}
		}
		return n
	}
	_ = filepath.WalkDir(strings.TrimPrefix(url, "file:"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
