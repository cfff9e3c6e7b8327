package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// The figures of resumed calls, each also with the suffix cutTwin.
const (
	resumeClientCPU = "client CPU"
	resumeServerCPU = "server CPU"
	resumeLatency   = "latency"
	cutTwin         = ", cut"
)

// resumeWait is how long the server tells clients to wait before they connect again.
const resumeWait = time.Millisecond

// resumedCalls measures calls of echo that are answered with a stream, through a proxy that first
// cuts no call, and then each call once, after its first event. Latency is measured with one
// caller.
func resumedCalls(f figures, dir string, rounds int, each time.Duration) error {
	p, err := start(filepath.Join(dir, binary(ours)), "-backend", "message", "-retry", resumeWait.String())
	if err != nil {
		return err
	}
	defer p.stop()
	c, err := newCutter(p.addr)
	if err != nil {
		return err
	}
	defer c.stop()
	for range rounds {
		for _, k := range clientKinds {
			if !slices.Contains(overHTTP, k.kind) {
				continue
			}
			for _, twin := range []string{"", cutTwin} {
				if err := resumedRound(f, p, c, dir, k.name, k.kind, twin, each); err != nil {
					return fmt.Errorf("%s: resumed calls: %w", k.name, err)
				}
			}
		}
	}
	return nil
}

func resumedRound(f figures, p *process, c *cutter, dir, name, kind, twin string, each time.Duration) error {
	for _, n := range []int{callers, 1} {
		var spent time.Duration
		var cuts int64
		got, err := measureClient(dir, func() (func() error, error) {
			c.on.Store(twin == cutTwin)
			before, err := p.cpu()
			cuts = c.cuts.Load()
			return func() error {
				c.on.Store(false)
				cuts = c.cuts.Load() - cuts
				after, err := p.cpu()
				spent = after - before
				return err
			}, err
		}, "-kind", kind, "-url", "http://"+c.addr()+"/mcp-sse", "-tool", "echo", "-callers", fmt.Sprint(n), "-for", each.String())
		if err != nil {
			return err
		}
		if twin == cutTwin && cuts < int64(got.Calls) {
			return fmt.Errorf("%d of %d calls were cut", cuts, got.Calls)
		}
		if n == 1 {
			f.add(resumeLatency+twin, name, got.Latency)
			continue
		}
		f.add(resumeClientCPU+twin, name, float64(got.CPU)/float64(got.Calls))
		f.add(resumeServerCPU+twin, name, float64(spent.Microseconds())/float64(got.Calls))
	}
	return nil
}
