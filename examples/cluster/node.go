package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/engine"
	_ "holdfast/engine/nats"
	_ "holdfast/engine/redis"
	"holdfast/stream"
)

// runNode runs a node: an MCP server behind a Holdfast handler that shares its store with the other
// nodes. It needs no more configuration: nodes find each other through the engine.
func runNode(storeURL, ledger string) error {
	go func() { // exit with the program that started this one
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	logger := slog.New(slog.DiscardHandler)
	store, err := openStore(storeURL, engine.Options{Logger: logger})
	if err != nil {
		return err
	}
	server := newServer(ledger)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server },
		&holdfast.Options{Store: store, Retry: 200 * time.Millisecond, Logger: logger})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr()) // for the balancer
	return http.Serve(handler.Listener(l), handler)
}

// openStore opens the store. It tries for a while, because the engine has just been started.
func openStore(url string, o engine.Options) (stream.Store, error) {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		store, err := engine.Open(context.Background(), url, o)
		if err == nil || time.Now().After(end) {
			return store, err
		}
	}
}

type countArgs struct {
	Call string `json:"call"`
	To   int    `json:"to"`
}

// newServer returns a server with two tools that do the same: they count, ten times a second.
// Only one of them is annotated as safe to retry.
func newServer(ledger string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "counts", Version: "1"}, nil)
	count := func(ctx context.Context, req *mcp.CallToolRequest, args countArgs) (*mcp.CallToolResult, any, error) {
		if err := report(ledger, args.Call); err != nil {
			return nil, nil, err
		}
		for i := range args.To {
			time.Sleep(100 * time.Millisecond)
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1), Total: float64(args.To),
			})
			if err != nil {
				return nil, nil, err
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(args.To)}}}, nil, nil
	}
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, count)
	mcp.AddTool(server, &mcp.Tool{Name: "count_again", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, count)
	return server
}

// report reports to the ledger, outside the node, that a call begins to run.
func report(ledger, call string) error {
	resp, err := http.Post(ledger, "text/plain", strings.NewReader(call))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// nodes are the processes of all nodes.
type nodes struct {
	args []string

	mu  sync.Mutex
	all []*node
}

type node struct {
	addr string
	cmd  *exec.Cmd
}

// startNodes starts n nodes: this program again.
func startNodes(n int, args ...string) (*nodes, error) {
	ns := &nodes{args: args}
	for range n {
		node, err := ns.start()
		if err != nil {
			ns.stop()
			return nil, err
		}
		ns.all = append(ns.all, node)
	}
	return ns, nil
}

func (ns *nodes) start() (*node, error) {
	cmd := exec.Command(os.Args[0], append([]string{"node"}, ns.args...)...)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // open as long as this process lives
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("a node does not start: %w", cmd.Wait())
	}
	return &node{strings.TrimSpace(addr), cmd}, nil
}

// killOne kills any of the nodes, with SIGKILL, and starts another in its place.
func (ns *nodes) killOne() error {
	i := rand.IntN(len(ns.all))
	ns.all[i].kill()
	node, err := ns.start()
	if err != nil {
		return err
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.all[i] = node
	return nil
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait() // it was killed
}

func (ns *nodes) stop() {
	for _, n := range ns.all {
		n.kill()
	}
}

// addresses returns the addresses of the nodes.
func (ns *nodes) addresses() []string {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	addrs := make([]string, len(ns.all))
	for i, n := range ns.all {
		addrs[i] = n.addr
	}
	return addrs
}
