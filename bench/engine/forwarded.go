package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/bench/load"
)

// Indexes of the two nodes: the owner of all sessions, and the other.
const (
	atOwner = iota
	atOther
)

// A cost is the CPU time of one call, or of one event of a stream.
type cost struct {
	nodes  time.Duration // of both nodes together
	engine time.Duration // of the engine's servers
}

func (c cost) both() time.Duration { return c.nodes + c.engine }

// A kind is a kind of call, with the units that its answers are counted in.
type kind struct {
	name    string
	message string
	units   func(*load.Response) int // in an answer; 0: the answer is wrong
}

var kinds = []kind{
	{"light call", load.Echo(32), func(r *load.Response) int {
		if r.Expect(200, `"result"`) != nil {
			return 0
		}
		return 1
	}},
	{"stream event", load.Progress(2000, 64), func(r *load.Response) int { return load.Events(r.Body) }},
	{"stream event, 50 at a time", strings.Replace(load.Progress(1000, 64), `"size":64`, `"size":64,"pause_ms":2`, 1),
		func(r *load.Response) int { return load.Events(r.Body) }},
}

// forward starts two nodes over each engine, with all sessions on one, and prints the CPU of calls
// that clients make at that node, and through the other, in turns.
func (s settings) forward(ctx context.Context) error {
	all, stop, err := startShared(s.only)
	defer stop()
	if err != nil {
		return err
	}
	fmt.Printf("CPU of both nodes, and with the engine's servers, of calls made at their session's node and at another; %d clients; median of %d rounds; %s\n\n",
		callers, s.rounds, loadAverage())
	fmt.Println("| engine | what | nodes, at its owner | forwarded | ratio | with the engine, at its owner | forwarded | ratio |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, e := range all {
		for _, k := range kinds {
			if err := s.forwardOne(ctx, e, k); err != nil {
				return fmt.Errorf("%s: %s: %w", e.name, k.name, err)
			}
		}
	}
	fmt.Printf("\n%s\n", loadAverage())
	return nil
}

// forwardOne measures one kind of call.
func (s settings) forwardOne(ctx context.Context, e engine, k kind) error {
	var nodes []*member
	defer func() {
		for _, n := range nodes {
			n.kill()
		}
	}()
	for range 2 {
		n, err := startMember(ctx, e.url, s.profiles)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	var costs [2][]cost
	for round := range s.rounds + 1 {
		for at := range costs {
			c, err := s.forwardFor(e, k, nodes, nodes[at].addr)
			if err != nil {
				return err
			}
			if round > 0 { // the first round warms up
				costs[at] = append(costs[at], c)
			}
		}
	}
	mid := func(at int, of func(cost) time.Duration) time.Duration {
		slices.SortFunc(costs[at], func(a, b cost) int { return int(of(a) - of(b)) })
		return of(costs[at][len(costs[at])/2])
	}
	line := fmt.Sprintf("| %s | %s |", e.name, k.name)
	for _, of := range []func(cost) time.Duration{func(c cost) time.Duration { return c.nodes }, cost.both} {
		own, other := mid(atOwner, of), mid(atOther, of)
		line += fmt.Sprintf(" %.1f µs | %.1f µs | %.2f |", micros(own), micros(other), float64(other)/float64(own))
	}
	fmt.Println(line)
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// forwardFor measures clients with sessions on the first node that call at an address for s.each.
func (s settings) forwardFor(e engine, k kind, nodes []*member, addr string) (cost, error) {
	clients := make([]*load.Client, callers)
	requests := make([]*load.Request, callers)
	for i := range clients {
		c, err := load.Dial(nodes[0].addr)
		if err != nil {
			return cost{}, err
		}
		session, err := c.Handshake("/")
		_ = c.Close()
		if err != nil {
			return cost{}, err
		}
		if clients[i], err = load.Dial(addr); err != nil {
			return cost{}, err
		}
		defer clients[i].Close()
		requests[i] = load.Post(addr, "/", session, k.message)
		if _, err := clients[i].Do(requests[i].Next()); err != nil { // opens the connections between nodes
			return cost{}, err
		}
	}
	now := func() (c cost) {
		for _, n := range nodes {
			c.nodes += spentBy(n.cmd.Process.Pid)
		}
		for _, pid := range e.servers {
			c.engine += spentBy(pid)
		}
		return c
	}
	var calls sync.WaitGroup
	var mu sync.Mutex
	var failed error
	n := 0
	before, began := now(), time.Now()
	for i, c := range clients {
		calls.Go(func() {
			done := 0
			var err error
			for time.Since(began) < s.each && err == nil {
				var res load.Response
				if res, err = c.Do(requests[i].Next()); err == nil {
					units := k.units(&res)
					if units == 0 {
						err = res.Expect(200, "what was asked for")
					}
					done += units
				}
			}
			mu.Lock()
			defer mu.Unlock()
			n += done
			failed = errors.Join(failed, err)
		})
	}
	calls.Wait()
	after := now()
	per := time.Duration(max(n, 1))
	return cost{(after.nodes - before.nodes) / per, (after.engine - before.engine) / per}, failed
}
