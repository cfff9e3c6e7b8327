package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
)

// patience is how much longer than expected a call may take before it counts as lost.
const patience = 30 * time.Second

// callers starts clients that make calls until ctx is done. The channel gets the first error,
// or nil, when the last call of each client has ended.
func callers(ctx context.Context, url string, clients int, sum *score) (finished <-chan error) {
	var all sync.WaitGroup
	var ids atomic.Int64
	failed := make(chan error, clients)
	for range clients {
		all.Go(func() {
			if err := caller(ctx, url, &ids, sum); err != nil {
				failed <- err
			}
		})
	}
	done := make(chan error, 1)
	go func() {
		all.Wait()
		close(failed)
		done <- <-failed // nil if no client has failed
	}()
	return done
}

// caller runs one client: the go-sdk's, over Holdfast's transport.
func caller(ctx context.Context, url string, ids *atomic.Int64, sum *score) error {
	client := mcp.NewClient(&mcp.Implementation{Name: "caller", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			sum.progress(fmt.Sprint(req.Params.ProgressToken), req.Params.Progress)
		},
	})
	bounded, stop := context.WithTimeout(context.Background(), patience)
	session, err := client.Connect(bounded, holdfast.NewClientTransport(url, nil), nil)
	stop()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	for ctx.Err() == nil {
		id := fmt.Sprint("call-", ids.Add(1))
		params := &mcp.CallToolParams{Name: "count", Arguments: countArgs{Call: id, To: rand.IntN(50)}}
		if rand.IntN(2) == 0 {
			params.Name = "count_again"
		}
		params.SetProgressToken(id)
		sum.begin(id, params.Name == "count_again")
		bounded, stop := context.WithTimeout(context.Background(), 5*time.Second+patience)
		_, err := session.CallTool(bounded, params)
		stop()
		sum.end(id, err)
	}
	_ = session.Close() // tells the server, if that can be reached
	return nil
}
