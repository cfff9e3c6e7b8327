package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A script that kills a process in the middle of a call needs the call to be in flight then,
// however slow the machine is. So the call halts.

// halting lets the calls of a server that send progress halt half-way, for as long as halt returns true.
func halting(server *mcp.Server, halt func() bool) {
	server.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			p, ok := req.GetParams().(*mcp.ProgressNotificationParams)
			for ok && p.Progress == math.Floor(p.Total/2)+1 && halt() {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(5 * time.Millisecond): // polling, as a script sets halt by a file
				}
			}
			return next(ctx, method, req)
		}
	})
}

// there returns a function that reports whether a file or a directory exists.
func there(name string) func() bool {
	return func() bool {
		_, err := os.Stat(name)
		return err == nil
	}
}

// haltingMain is the demo as a stdio server. Its calls halt for as long as the directory DIR exists:
//
//	halting DIR
func haltingMain() {
	server := newDemo()
	halting(server, there(os.Args[1]))
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, "halting:", err)
	}
}
