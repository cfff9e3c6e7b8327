package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"holdfast/bench/load"
)

// A kind is a way to serve the subject.
type kind struct {
	name, path, tool string

	clients  []*load.Client
	requests []*load.Request
	memory   int // of one session, in KiB: its part of the node and of the servers' processes
	costs    []cost
}

// A cost is the cost of the calls of one round.
type cost struct {
	perSecond float64
	node, all float64 // CPU for a call in µs: of the node, and of the node with the servers
}

// measure measures a subject and prints its table.
func (s settings) measure(ctx context.Context, sub subject, program, dir string) (err error) {
	file := filepath.Join(dir, "servers.json")
	if err := os.WriteFile(file, sub.configuration(), 0o600); err != nil {
		return err
	}
	n, err := startNode(ctx, program, file)
	if err != nil {
		return err
	}
	defer n.stop()
	kinds := []*kind{{name: "a process each", path: "/each/mcp", tool: "echo"}, {name: "`share`", path: "/share/mcp", tool: "echo"}}
	if sub.merged {
		kinds = append(kinds, &kind{name: "merged: three servers, of which one is shared", path: "/mcp", tool: "each_echo"})
	}
	for _, k := range kinds {
		defer func() { err = errors.Join(err, k.close()) }()
		if err := k.open(n, sub, s.sessions); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	for round := range s.rounds + 1 {
		for _, k := range kinds {
			c, err := k.round(n, s.each)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			if round > 0 { // the first round warms up
				k.costs = append(k.costs, c)
			}
		}
	}
	fmt.Printf("\n## With %s\n\n", sub.name)
	fmt.Println("| | memory per session | calls/s | CPU of the node, µs per call | of the first | with the servers, µs per call | of the first |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|")
	node, all := func(c cost) float64 { return c.node }, func(c cost) float64 { return c.all }
	for _, k := range kinds {
		fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", k.name, size(k.memory),
			spread(k.costs, func(c cost) float64 { return c.perSecond }, "%.0f"),
			spread(k.costs, node, "%.0f"), ratio(k, kinds[0], node), spread(k.costs, all, "%.0f"), ratio(k, kinds[0], all))
	}
	return nil
}

// open opens sessions of a kind, makes a call in each, and notes their memory.
func (k *kind) open(n *node, sub subject, sessions int) error {
	before := n.memory()
	for range sessions {
		c, err := load.Dial(n.addr)
		if err != nil {
			return err
		}
		k.clients = append(k.clients, c)
		session, err := c.Handshake(k.path)
		if err != nil {
			return err
		}
		k.requests = append(k.requests, load.Post(n.addr, k.path, session, fmt.Sprintf(
			`{"jsonrpc":"2.0","id":10000000,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, k.tool, sub.args)))
		if err := k.call(len(k.clients) - 1); err != nil {
			return err
		}
	}
	k.memory = (n.memory() - before) / sessions
	return nil
}

func (k *kind) call(i int) error {
	res, err := k.clients[i].Do(k.requests[i].Next())
	if err != nil {
		return err
	}
	if err := res.Expect(200, `"result"`); err != nil {
		return err
	}
	return res.Expect(200, "eeeeeeee")
}

// round makes calls in all sessions for a time, and returns their cost.
func (k *kind) round(n *node, lasts time.Duration) (cost, error) {
	calls, errs := make([]int, len(k.clients)), make([]error, len(k.clients))
	node, all := n.spent()
	began := time.Now()
	var group sync.WaitGroup
	for i := range k.clients {
		group.Go(func() {
			for errs[i] == nil && time.Since(began) < lasts {
				errs[i] = k.call(i)
				calls[i]++
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	nodeAfter, allAfter := n.spent()
	sum := 0
	for _, n := range calls {
		sum += n
	}
	per := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(sum) }
	return cost{float64(sum) / took.Seconds(), per(nodeAfter - node), per(allAfter - all)}, errors.Join(errs...)
}

func (k *kind) close() error {
	var errs []error
	for _, c := range k.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// spread returns the median of a value of all rounds, and the least and the most.
func spread(costs []cost, of func(cost) float64, format string) string {
	var values []float64
	for _, c := range costs {
		values = append(values, of(c))
	}
	return middle(values, format)
}

// ratio returns a value of a kind as a multiple of another kind's in the same round: median, least
// and most.
func ratio(k, to *kind, of func(cost) float64) string {
	var values []float64
	for i, c := range k.costs {
		values = append(values, of(c)/of(to.costs[i]))
	}
	return middle(values, "%.2f") + " ×"
}

func middle(values []float64, format string) string {
	slices.Sort(values)
	return fmt.Sprintf(format+" ("+format+"–"+format+")", values[len(values)/2], values[0], values[len(values)-1])
}

func size(kib int) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }
