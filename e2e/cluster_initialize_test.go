package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestClusterInitialize stops a node and continues it while it waits for servers that start slowly, to answer the
// initialize of official clients: at a door, and at the node itself. Each client gets its answer, and its session
// works.
func TestClusterInitialize(t *testing.T) {
	testlong.Only(t, "nodes are missed, and wake, after seconds")
	npm(t, sdk1, sdk2)
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		for _, doors := range []int{0, 1} {
			t.Run([]string{"nodes", "doors"}[doors], func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, e, shape{nodes: 2 + doors, doors: doors, late: 3, flags: []string{"--eras", "legacy"}})
				at, stopped := f.nodes[0], f.nodes[0]
				if doors > 0 {
					stopped = f.nodes[1]
				}
				const clients = 6
				var all sync.WaitGroup
				for i := range clients {
					q := toolCall{"look", map[string]any{"id": callID(t, i), "steps": 1, "ms": 1}}
					all.Go(func() {
						began := time.Now()
						if err := connectAndCall(t, at, i%3, q); err != nil {
							t.Errorf("client %d, after %v: %v", i, time.Since(began), err)
						}
					})
				}
				mcptest.Eventually(t, "a client waits", time.Minute, func() bool { return stopped.sessions() > 0 })
				time.Sleep(200 * time.Millisecond) // by now the client waits for a stream
				stopped.signal(syscall.SIGSTOP)
				time.Sleep(4 * time.Second) // until another node has taken the sessions over
				stopped.signal(syscall.SIGCONT)
				all.Wait()
			})
		}
	})
}

// connectAndCall has a client of the go-sdk (0), or of a TypeScript SDK, connect to a node and make a call.
func connectAndCall(t *testing.T, at *node, sdk int, q toolCall) error {
	if sdk > 0 {
		r := client(t, script{SDK: sdk, URL: at.url(), Retries: 20, Calls: []toolCall{q}})
		if len(r.Calls) != 1 || r.Calls[0].Error != "" || r.Calls[0].Result == nil {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}
	ctx := bounded(t, time.Minute)
	s, err := connectOfficial(ctx, &mcp.StreamableClientTransport{Endpoint: at.url()}, "", nil)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.CallTool(ctx, &mcp.CallToolParams{Name: q.Name, Arguments: q.Arguments})
	return err
}
