package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"holdfast/jsonrpc"
)

// connectFlags are the flags of holdfast connect.
type connectFlags struct {
	remoteFlags
	state string
}

func newConnect() *cobra.Command {
	f := connectFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "connect [flags] URL",
		Short: "Be the stdio server that a host wants, for a remote one",
		Long: `Connect speaks stdio to the program that runs it, an MCP host, and HTTP to a remote
server, over as many connections as it takes. It is what a host's configuration
names as the command of a server.

A host that kills it and runs it again loses nothing: the session goes on, and a
call that was in flight is not made a second time when the host makes the same one
again within ten minutes, but gets the answer of the first.

With --state '' it keeps nothing, and ends the session when its stdin ends and
everything has been answered.`,
		Example: `  holdfast connect https://example.com/mcp --header 'Authorization: Bearer TOKEN'

In the configuration of a host:
  {"mcpServers": {"example": {"command": "holdfast", "args": ["connect", "https://example.com/mcp"]}}}`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("which server? Give its URL, as in %s http://127.0.0.1:8080/mcp", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.connect(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	addState(cmd, &f.state, "sessions and what is in flight")
	return cmd
}

// mostLine bounds a message of the host, in bytes.
const mostLine = 16 << 20

// connect carries messages between a host and a server until the host leaves.
func (f *connectFlags) connect(ctx context.Context, to string, in io.Reader, out io.Writer) error {
	opts, err := f.options(slog.Default())
	if err != nil {
		return err
	}
	if _, err := dial(to, opts); err != nil {
		return err // the URL is wrong
	}
	// A host that does not listen any more must not end this before it has saved.
	signal.Ignore(syscall.SIGPIPE)
	h := &host{w: out, gone: make(chan struct{})}
	b := newBridge(to, *opts, h)
	if f.state != "" {
		b.slots = newSlots(f.state, to, f.transport.value, opts.Header)
		b.claims = b.slots.claims()
		defer b.claims.leave()
	}
	ended := make(chan error, 1)
	go func() { ended <- b.read(ctx, in) }()
	select {
	case err = <-ended:
		b.leave(ctx, true)
	case <-h.gone:
		b.leave(ctx, false)
	case <-ctx.Done():
		b.leave(ctx, false)
	}
	return err
}

// read takes what the host says until it says no more.
func (b *bridge) read(ctx context.Context, in io.Reader) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(r, mostLine)
		switch {
		case errors.Is(err, errLongLine):
			b.host.fail(nil, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", mostLine))
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("read from the host: %w", err)
		}
		if len(line) > 0 {
			b.line(ctx, line)
		}
		if err != nil {
			return nil
		}
	}
}

// line takes one line of the host: a message, or a batch of them.
func (b *bridge) line(ctx context.Context, line []byte) {
	msgs, _, err := jsonrpc.ParseBody(line)
	if err != nil {
		code := jsonrpc.CodeInvalidRequest
		if errors.Is(err, jsonrpc.ErrParse) {
			code = jsonrpc.CodeParse
		}
		b.host.fail(nil, jsonrpc.Errorf(code, "%v", err))
		return
	}
	for _, m := range msgs {
		b.fromHost(ctx, m)
	}
}

var errLongLine = errors.New("line is too long")

// readLine returns the next line without its end; an empty one is none. What was
// too long has been read to its end. Each line has bytes of its own.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > most; !long {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if long {
			return nil, errLongLine
		}
		for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n = len(line) {
			line = line[:n-1]
		}
		return line, err
	}
}

// host is where messages for the host go. Its methods may be called concurrently.
type host struct {
	gone chan struct{} // closed when it takes no more

	mu sync.Mutex
	w  io.Writer // nil when it is gone
}

// write gives the host a message. It reports whether it was taken.
func (h *host) write(raw []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.w == nil {
		return false
	}
	line := append(append(make([]byte, 0, len(raw)+1), raw...), '\n')
	if _, err := h.w.Write(line); err != nil {
		slog.Error("the host does not listen any more", "error", err)
		h.w = nil
		close(h.gone)
		return false
	}
	return true
}

// fail answers the host's request id with an error.
func (h *host) fail(id []byte, e *jsonrpc.Error) { h.write(jsonrpc.AppendError(nil, id, e)) }
