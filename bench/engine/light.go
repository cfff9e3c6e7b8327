package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/load"
	"holdfast/bench/tools"
	hf "holdfast/engine"
)

// callers is how many clients call at a time.
const callers = 16

// light measures and prints the CPU of a light call and of a stored one with each engine, in turns.
func (s settings) light(ctx context.Context, all []engine) error {
	fmt.Printf("CPU of a call over HTTP, client included, %d clients; median of %d rounds.\n\n", callers, s.rounds)
	fmt.Println("| engine | light call | to memory's | stored call | to memory's |")
	fmt.Println("|---|---|---|---|---|")
	type row struct{ light, stored []time.Duration }
	rows := make([]row, len(all))
	for range s.rounds {
		for i, e := range all {
			light, stored, err := s.calls(ctx, e)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			rows[i].light = append(rows[i].light, light)
			rows[i].stored = append(rows[i].stored, stored)
		}
	}
	mid := func(all []time.Duration) time.Duration {
		slices.Sort(all)
		return all[len(all)/2]
	}
	light, stored := mid(rows[0].light), mid(rows[0].stored)
	for i, e := range all {
		l, st := mid(rows[i].light), mid(rows[i].stored)
		fmt.Printf("| %s | %v | %.2f | %v | %.2f |\n", e.name, l.Round(100*time.Nanosecond), float64(l)/float64(light),
			st.Round(100*time.Nanosecond), float64(st)/float64(stored))
	}
	return nil
}

// calls measures light and stored calls with one engine once.
func (s settings) calls(ctx context.Context, e engine) (light, stored time.Duration, err error) {
	st, err := hf.Open(ctx, e.url, hf.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer st.Close()
	backend := message.New(message.HandlerFunc(tools.Answer))
	h := holdfast.NewBackendHandler(backend, &holdfast.Options{Store: st, Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(l) }() // until it is closed
	defer func() {
		stop, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = h.Shutdown(stop)
		_ = server.Close()
	}()
	addr := l.Addr().String()
	if light, err = s.call(e, addr, load.Echo(32)); err != nil {
		return 0, 0, err
	}
	stored, err = s.call(e, addr, load.Slow(0))
	return light, stored, err
}

// call measures one kind of call.
func (s settings) call(e engine, addr, message string) (time.Duration, error) {
	clients := make([]*load.Client, callers)
	requests := make([]*load.Request, callers)
	for i := range clients {
		c, err := load.Dial(addr)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		session, err := c.Handshake("/")
		if err != nil {
			return 0, err
		}
		clients[i], requests[i] = c, load.Post(addr, "/", session, message)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	n := 0
	began, cpu := time.Now(), spent(e.pid)
	for i, c := range clients {
		wg.Go(func() {
			done := 0
			var err error
			for time.Since(began) < s.each && err == nil {
				var res load.Response
				if res, err = c.Do(requests[i].Next()); err == nil {
					err = res.Expect(200, `"result"`)
				}
				done++
			}
			mu.Lock()
			defer mu.Unlock()
			n += done
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	return (spent(e.pid) - cpu) / time.Duration(max(n, 1)), failed
}
